"""Sessions in the benchmark: complete rows, nothing twice, tables, a figure, and tuning."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from session_tasks import made_features

from fewgraft.bench.ray_engine import Worker
from fewgraft.bench.rows import run
from fewgraft.bench.session_runner import (
    SessionBench,
    SessionJob,
    SessionResults,
    SessionRow,
    session_jobs,
)
from fewgraft.bench.session_tables import (
    PUBLISHED,
    described,
    draw_sessions_figure,
    published_sessions,
    session_table,
    title_of,
)
from fewgraft.bench.session_tuning import tune_sessions
from fewgraft.bench.table_formats import markdown
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.metrics import paired
from fewgraft.sessions import SessionSettings
from fewgraft.training.recipe import ChosenOverSessions, load_recipe
from fewgraft.zoo import models_folder

SETTINGS = SessionSettings(sessions=2, ways=3, shots=2, unlabelled=6, queries=15)
STAGES = ("pre-trained", "algorithm-1", "algorithm-2")
ICONS = models_folder("icons")


@pytest.fixture(scope="module")
def bench(icons: ImageStore) -> SessionBench:
    made = SessionBench()
    for split in ("test", "val"):
        features = made_features(icons, split)
        for stage in STAGES:
            made._opened["icons", ICONS, stage, split, 15] = features
    return made


def a_job(method: str = "+pr", draws: int = 12, **changes: object) -> SessionJob:
    settings = dataclasses.replace(SETTINGS, **changes)  # type: ignore[arg-type]
    return SessionJob("icons", "icons", method, {}, settings, draws, ICONS)


def test_a_row_is_complete_and_computed_once(bench: SessionBench, tmp_path: Path) -> None:
    results = SessionResults(tmp_path)
    [(row, computed)] = run([a_job()], results, bench)
    assert computed
    [(again, anew)] = run([a_job()], SessionResults(tmp_path), bench)
    assert not anew
    assert again == row
    scores = results.scores(row)
    assert scores.acc.shape == (12, 3), "two chunks of draws, three sessions"
    whole = bench.split_features(a_job()).session_scores(
        method_spec("+pr").method, bench.draws(a_job()), range(12)
    )
    torch.testing.assert_close(scores.acc, whole.acc)
    assert row.after("acc")[2].mean == pytest.approx(scores.acc[:, 2].mean().item())
    assert row.sessions["novel"][0] == (None, None), "session 0 has no novel classes"
    assert row.over("drop").mean == pytest.approx(scores.drop.mean().item())
    assert row.draw_hash == bench.draws(a_job()).hash
    assert SessionSettings(**row.session_settings) == SETTINGS


def test_whatever_changes_the_numbers_changes_the_name(bench: SessionBench) -> None:
    jobs = [
        a_job(),
        a_job(draws=13),
        a_job(seed=1),
        a_job(mix="new"),
        a_job("nearest-prototype"),
        dataclasses.replace(a_job(), base="means"),
        dataclasses.replace(a_job(), hyper={"steps": 2}),
    ]
    identities = [str(bench.identity(job)) for job in jobs]
    assert len(set(identities)) == len(jobs)


def test_a_worker_of_a_cluster_computes_the_same_chunk(bench: SessionBench) -> None:
    """What `--engine ray` runs elsewhere: a job that was sent there, and a bench of its own."""
    before = torch.get_num_threads()
    try:
        worker = Worker({}, SessionBench)
    finally:
        torch.set_num_threads(before)
    worker._bench._opened = dict(bench._opened)
    job = pickle.loads(pickle.dumps(a_job()))
    found, expected = worker.chunk(job, range(10, 12)), bench.chunk(a_job(), range(10, 12))
    torch.testing.assert_close(found.acc, expected.acc)


def test_a_damaged_row_is_told(bench: SessionBench, tmp_path: Path) -> None:
    [(row, _)] = run([a_job(draws=2)], SessionResults(tmp_path), bench)
    path = tmp_path / "sessions.jsonl"
    path.write_text(path.read_text().replace('"mix":"seen"', '"mix":"sen"'))
    with pytest.raises(FewgraftError, match=r"sessions\.jsonl, line 1 is damaged"):
        SessionResults(tmp_path).rows()
    assert row.draws == 2


def test_rows_with_and_without_u_and_earlier_classes_refined() -> None:
    names = ["nearest-prototype", "+pr"]
    given = (load_recipe("icons"), ICONS, names, SETTINGS, 2, "weights")
    plain, *refined = session_jobs(*given, [0, 5], without=True)
    assert plain.hyper == {}
    assert [job.settings.unlabelled for job in refined] == [0, 6, 6]
    assert [job.configured.hyper.get("earlier", 0) for job in refined[1:]] == [0, 5]
    assert len(session_jobs(*given)) == 2
    with pytest.raises(FewgraftError, match="less than 0"):
        session_jobs(*given, [-1])


def test_titles_say_what_is_not_as_usual(bench: SessionBench, tmp_path: Path) -> None:
    jobs = [
        a_job(draws=2, unlabelled=0),
        a_job("nearest-prototype", draws=2, unlabelled=0),
        dataclasses.replace(a_job(draws=2), hyper={"earlier": 5}, base="means"),
    ]
    bench.split_features(jobs[0]).base_means = bench.split_features(jobs[0]).weights
    found = [title_of(row) for row, _ in run(jobs, SessionResults(tmp_path), bench)]
    pr = "Meta-Inc-Baseline + PR"
    assert found == [f"{pr}, no U", "Imprint", f"{pr}, base class means, earlier refined (5)"]


@pytest.mark.parametrize("method", ["proposed", "soft-k-means"])
def test_methods_that_cannot_go_on_are_refused_at_once(method: str) -> None:
    with pytest.raises(FewgraftError, match="cannot go from session to session"):
        session_jobs(load_recipe("icons"), ICONS, [method], SETTINGS, 2)


def test_what_validation_sessions_chose_goes_first() -> None:
    recipe = load_recipe("icons")
    before = recipe.session_hyper("+pr", 5)
    assert before == recipe.hyper("+pr", 5)
    chosen = ChosenOverSessions(method="+pr", shots=5, hyper={"steps": 7})
    means = ChosenOverSessions(method="+pr", shots=5, hyper={"alpha": 0.9}, base="means")
    tuned = recipe.model_copy(update={"sessions": (means, chosen)})
    assert tuned.session_hyper("+pr", 5) == before | {"steps": 7}
    assert tuned.session_hyper("+pr", 5, "means") == before | {"steps": 7, "alpha": 0.9}
    assert tuned.session_hyper("+pr", 1) == recipe.hyper("+pr", 1)
    assert tuned.hyper("+pr", 5) == before, "episodes have their own"
    assert tuned.hash == recipe.hash, "models stay"


def test_tuning_never_looks_at_test_classes(bench: SessionBench) -> None:
    opened = dict(bench._opened)
    blind = SessionBench()
    blind._opened = {key: value for key, value in opened.items() if key[3] == "val"}
    found = list(
        tune_sessions(load_recipe("icons"), ICONS, ["nearest-prototype+bias"], SETTINGS, 3, blind)
    )
    assert all(key[3] == "val" for key in blind._opened)
    [one] = found
    assert one.chosen.method == "nearest-prototype+bias"
    assert one.chosen.hyper.keys() == {"bias"}
    assert one.gain.difference.mean >= -0.02, "the best of many is not far below the default"


def test_what_only_sessions_know_is_tried_last_and_may_be_off(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrototypeRefinement, "search", {"steps": (1, 2)})
    monkeypatch.setattr(PrototypeRefinement, "over_sessions", {"earlier": (0, 5)})
    [one] = tune_sessions(load_recipe("icons"), ICONS, ["+pr"], SETTINGS, 3, bench)
    assert one.chosen.hyper.keys() == {"steps", "earlier"}
    accuracies = one.over_sessions["earlier"]
    assert accuracies.keys() == {0, 5}
    assert one.best.accuracy == max(accuracies.values())
    assert accuracies[one.chosen.hyper["earlier"]] == one.best.accuracy
    assert one.borders == {}, "any of two is at a border"


def test_values_for_sessions_may_take_the_place_of_a_search(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, each at the best values so far, from the registered ones."""
    monkeypatch.setattr(PrototypeRefinement, "search", {"steps": (1, 2)})
    monkeypatch.setattr(PrototypeRefinement, "over_sessions", {"bias": (0.0, -3.0), "steps": (1,)})
    [one] = tune_sessions(load_recipe("icons"), ICONS, ["+pr"], SETTINGS, 3, bench)
    assert one.chosen.hyper.keys() == {"steps", "bias"}
    assert {name: set(found) for name, found in one.over_sessions.items()} == {
        "bias": {0.0, -3.0},
        "steps": {1},
    }
    assert one.over_sessions["steps"][1] == one.best.accuracy


@pytest.fixture(scope="module")
def rows(
    bench: SessionBench, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SessionResults, list[SessionRow]]:
    results = SessionResults(tmp_path_factory.mktemp("rows"))
    names = ("nearest-prototype", "teen", "+pr")
    return results, [row for row, _ in run(map(a_job, names), results, bench)]


def test_the_table_has_the_layout_of_the_field(
    rows: tuple[SessionResults, list[SessionRow]],
) -> None:
    results, found = rows
    table = session_table(results, found)
    assert [c.name for c in table.columns] == ["", "0", "1", "2", "average", "drop", "− Imprint"]
    [section] = table.sections
    difference = paired(*(results.scores(found[k]).average for k in (2, 0))).difference
    assert section.rows[2][-1].text == str(difference)
    assert any(line[4].bold for line in section.rows)
    assert "published" not in markdown(table).lower()
    base = session_table(results, found, "novel")
    assert base.sections[0].rows[0][1].text == "–"
    assert len(base.columns) == 4


def test_published_rows_stand_beside_the_same_protocol_only(
    rows: tuple[SessionResults, list[SessionRow]],
) -> None:
    results, found = rows
    published = published_sessions("cifar-100-sessions")
    average = sum(published["CEC (Res20)"]) / 9
    assert average == pytest.approx(59.53, abs=0.01)
    assert published["CEC (Res20)"][0] - published["CEC (Res20)"][-1] == pytest.approx(23.93)
    mini = published_sessions("mini-imagenet-sessions")["NC-FSCIL (Res12)"]
    assert sum(mini) / 9 == pytest.approx(67.82, abs=0.01)
    settings = {**found[0].session_settings, "sessions": 8, "ways": 5, "shots": 5}
    other = [
        row.model_copy(update={"data": "cifar-100-sessions", "session_settings": settings})
        for row in found
    ]
    assert session_table(results, other).sections[1].title == PUBLISHED
    fewer = [row.model_copy(update={"data": "cifar-100-sessions"}) for row in found]
    assert len(session_table(results, fewer).sections) == 1


def test_the_figure_shows_every_row(rows: tuple[SessionResults, list[SessionRow]]) -> None:
    figure = draw_sessions_figure(rows[1])
    left, right = figure.axes
    assert len(left.lines) == 3
    assert len(right.lines) == 6, "base and novel classes"
    drawn = np.asarray(left.lines[0].get_ydata())
    assert drawn[1] == pytest.approx(100 * rows[1][0].after("acc")[1].mean)
    assert "TEEN" in described(rows[1])
