"""The runner: complete rows, nothing twice, nothing stale, and going on after a kill."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from by_hand import scores_by_hand
from typer.testing import CliRunner

from fewgraft.bench.results import Results
from fewgraft.bench.rows import run
from fewgraft.bench.runner import Bench, Job, jobs, makes_sense, rerun
from fewgraft.bench.tune import Candidate, combinations, over_coordinates, own_setting, tune
from fewgraft.bench.tuned_recipe import entry_of
from fewgraft.cli import app
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.episodes import SETTINGS, EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import FeatureBank, feature_bank
from fewgraft.methods import method_spec, methods
from fewgraft.methods.base import Method, NovelWeights, Search, Task
from fewgraft.methods.beside_base import BesideBase
from fewgraft.methods.soft_k_means import SoftKMeans
from fewgraft.metrics import Scores
from fewgraft.model import embed_all, weights_hash
from fewgraft.network import Network, View, divided
from fewgraft.prototypes import Refinement, directions
from fewgraft.split_features import SplitFeatures
from fewgraft.training.recipe import load_recipe, tuned_method
from fewgraft.zoo import models_folder, shipped_model

FEW = 12


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWGRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        made = Bench()
        for stage_method in ("nearest-prototype", "+pr", "proposed-without-adaptation"):
            for split in ("test", "val"):
                assert made.split_features(a_job(stage_method, split=split)).bank
    return made


def a_job(method: str = "+pr", setting: str = "s2i", shots: int = 1, split: str = "test") -> Job:
    return Job(
        "icons",
        "icons",
        method,
        {},
        EpisodeSettings.paper(setting, shots, split=split),
        FEW,
        models_folder("icons"),
    )


# --- features ---


def test_a_bank_is_computed_once_and_never_stale(icons: ImageStore, tmp_path: Path) -> None:
    model = shipped_model("icons", "pre-trained")
    pictures = icons.indices(Part.NOVEL_TEST)[:50]
    bank = feature_bank(model, icons, pictures, tmp_path)
    expected = directions(embed_all(model, icons.pictures[pictures]))
    torch.testing.assert_close(bank[torch.from_numpy(pictures)], expected)
    (folder,) = tmp_path.iterdir()
    written = (folder / "features.npy").stat().st_mtime_ns
    feature_bank(model, icons, pictures, tmp_path)
    assert (folder / "features.npy").stat().st_mtime_ns == written, "computed twice"
    with torch.no_grad():
        model.weight[0, 0] += 1e-3  # a stale bank would go unnoticed
        model.backbone.get_parameter("stem.0.weight")[0] += 0.1
    other = feature_bank(model, icons, pictures, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert not torch.equal(other.features, bank.features)
    feature_bank(model, icons, pictures[:10], tmp_path)
    assert len(list(tmp_path.iterdir())) == 3, "other pictures have a bank of their own"


def test_weights_have_a_name(icons: ImageStore) -> None:
    names = [weights_hash(shipped_model("icons", s)) for s in ("algorithm-1", "algorithm-2")]
    assert len({*names, weights_hash(shipped_model("icons", "algorithm-1"))}) == 2


@pytest.mark.numerical
def test_the_network_keeps_what_does_not_move(icons: ImageStore) -> None:
    model = shipped_model("icons", "algorithm-2")
    pictures = torch.from_numpy(icons.indices(Part.NOVEL_TEST)[::40].copy())
    whole = directions(embed_all(model, icons.pictures[pictures.numpy()]))
    for moves in ("last-block", "all"):
        network = Network(model, icons.pictures, moves)
        with torch.no_grad():
            torch.testing.assert_close(network.features(pictures), whole, rtol=1e-4, atol=1e-5)
            same = network.features(pictures, network.start)
        torch.testing.assert_close(same, whole, rtol=1e-4, atol=1e-5)
    mirrored = Network(model, icons.pictures).trunk_activations(pictures, View(mirrored=True))
    turned = model.prepare(torch.from_numpy(icons.pictures[pictures.numpy()]).flip(2))
    with torch.no_grad():
        torch.testing.assert_close(
            mirrored, divided(model.backbone, "last-block")[0](turned), rtol=1e-4, atol=1e-4
        )


def test_a_random_view_does_not_depend_on_who_asks_first(icons: ImageStore) -> None:
    model = shipped_model("icons", "algorithm-2")
    pictures = torch.from_numpy(icons.indices(Part.NOVEL_TEST)[:3].copy())
    later = torch.from_numpy(icons.indices(Part.BASE_TEST)[-3:].copy())
    one, two = Network(model, icons.pictures), Network(model, icons.pictures)
    view = one.weak_view(1)
    two.trunk_activations(later, view)
    first = one.trunk_activations(pictures, view)
    assert torch.equal(first, two.trunk_activations(pictures, view))
    assert not torch.equal(first, one.trunk_activations(pictures, one.weak_view(2)))


# --- rows ---


@pytest.mark.numerical
def test_rows_are_what_evaluation_says(bench: Bench, icons: ImageStore, tmp_path: Path) -> None:
    ((row, computed),) = run([a_job()], Results(tmp_path), bench)
    assert computed
    model = shipped_model("icons", "algorithm-1")
    settings = EpisodeSettings.paper("s2i", 1)
    episodes, labels = sample_episodes(Pools.of(icons), settings, FEW)
    pictures = torch.cat([episodes.support, episodes.query, episodes.unlabelled], 1).flatten()
    features = torch.zeros(len(icons), model.card.width)
    features[pictures] = embed_all(model, icons.pictures[pictures.numpy()])
    weights, gamma = model.weight.detach(), model.gamma.item()
    expected = scores_by_hand(features, weights, gamma, episodes, labels, Refinement(steps=5))
    scores = Results(tmp_path).scores(row)
    for name in ("acc", "b_all", "n_all", "b_b", "n_n"):
        torch.testing.assert_close(
            getattr(scores, name), getattr(expected, name), rtol=0, atol=1 / 150 + 1e-9
        )
    assert row.interval("acc").mean == pytest.approx(scores.acc.mean().item())
    assert row.metrics["delta"][0] == pytest.approx(scores.delta.mean().item())
    assert row.hyper["steps"] == 5
    assert (row.n_base, row.ways, row.stage) == (108, 5, "algorithm-1")
    assert {"torch", "numpy", "fewgraft", "python"} <= set(row.versions)


def test_nothing_is_computed_twice(bench: Bench, tmp_path: Path) -> None:
    results = Results(tmp_path)
    wanted = [a_job("+pr"), a_job("nearest-prototype", "incremental")]
    assert [computed for _, computed in run(wanted, results, bench)] == [True, True]
    assert [computed for _, computed in run(wanted, results, bench)] == [False, False]
    other = dataclasses.replace(wanted[0], hyper={"steps": 1})
    assert [computed for _, computed in run([other], results, bench)] == [True]
    assert len(results.rows()) == 3


def test_a_torn_line_is_not_a_row_and_harms_none(bench: Bench, tmp_path: Path) -> None:
    results = Results(tmp_path)
    list(run([a_job()], results, bench))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"id": "half a ro')
    assert len(results.rows()) == 1
    list(run([a_job("meta-inc-baseline", "incremental")], results, bench))
    assert [row.method for row in results.rows()] == ["+pr", "meta-inc-baseline"]
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    (tmp_path / "results.jsonl").write_text("\n".join([lines[0], "{}", lines[1], ""]))
    with pytest.raises(FewgraftError, match="line 2 is damaged"):
        results.rows()


def test_a_row_can_be_computed_from_its_record(bench: Bench, tmp_path: Path) -> None:
    results = Results(tmp_path)
    ((row, _),) = run([a_job("+graph")], results, bench)
    scores, different = rerun(results.row(row.id[:5]), bench)
    assert not different
    assert torch.equal(scores.acc, results.scores(row).acc)
    changed = row.model_copy(update={"weights": "0" * 16})
    assert rerun(changed, bench)[1] == [f"weights: {'0' * 16} then, {row.weights} now"]
    with pytest.raises(FewgraftError, match="there is no row 'zzz'"):
        results.row("zzz")


@pytest.mark.numerical
def test_settings_without_base_classes(bench: Bench, tmp_path: Path) -> None:
    wanted = [a_job("soft-k-means", "semi-fsl"), a_job("nearest-prototype", "fsl", 5)]
    rows = [row for row, _ in run(wanted, Results(tmp_path), bench)]
    assert all(row.n_base == 0 for row in rows)
    assert all(row.interval("acc").mean > 0.5 for row in rows)
    assert rows[0].metrics["delta"] == (None, None)


def test_which_method_belongs_where() -> None:
    assert not makes_sense(method_spec("+pr"), "incremental"), "no pile to refine with"
    assert not makes_sense(method_spec("soft-k-means"), "s2i"), "knows no base classes"
    assert not makes_sense(method_spec("+pr+bias"), "semi-fsl"), "a bias changes nothing there"
    for setting in SETTINGS:
        assert any(makes_sense(spec, setting) for spec in methods().values())
    recipe = load_recipe("icons")
    wanted = jobs(recipe, models_folder("icons"), list(methods()), list(SETTINGS), [1, 5], 10)
    moving = [job.configured.moves_network for job in wanted]
    assert moving == sorted(moving), "slow methods come last"
    with pytest.raises(FewgraftError, match="Did you mean 's2i'"):
        jobs(recipe, models_folder("icons"), ["+pr"], ["s2"], [1], 10)


def test_a_recipes_choices_reach_the_method() -> None:
    recipe = load_recipe("icons", {"evaluation": '[{method="+pr", hyper={steps=2, alpha=0.5}}]'})
    assert recipe.hyper("+pr", 1) == {"steps": 2, "alpha": 0.5}
    changed = {
        "evaluation": '[{method="+pr", shots=5, hyper={steps=3}},{method="+pr", hyper={steps=2}}]'
    }
    recipe = load_recipe("icons", changed)
    assert [recipe.hyper("+pr", k)["steps"] for k in (1, 5)] == [2, 3]
    assert recipe.hash == load_recipe("icons").hash, "training is the same"
    tuned = tuned_method(recipe, "+pr", 5)
    assert tuned == method_spec("+pr").method.changed(steps=3)
    assert tuned_method(recipe, "bd-cspn", 1) == method_spec("bd-cspn").method


def test_a_method_begins_with_what_was_chosen_for_the_one_it_builds_on() -> None:
    entries = """[{method="soft-k-means", shots=1, hyper={steps=2}},
        {method="proposed-without-adaptation", hyper={steps=3, alpha=0.5}},
        {method="+pr", hyper={steps=7}}, {method="+pr+bias", hyper={bias=-1.0}}]"""
    recipe = load_recipe("icons", {"evaluation": entries})
    assert recipe.hyper("+soft-k-means", 1) == {"inner": {"steps": 2}}
    assert recipe.hyper("+soft-k-means", 5) == {}
    assert recipe.hyper("+pr+bias", 1) == {"steps": 7, "bias": -1.0}
    assert recipe.hyper("proposed", 1) == {"refinement_steps": 3, "alpha": 0.5}
    beside = tuned_method(recipe, "+soft-k-means", 1)
    assert isinstance(beside, BesideBase)
    assert beside.inner == tuned_method(recipe, "soft-k-means", 1) == SoftKMeans(steps=2)
    own = "{method='+soft-k-means', hyper={inner={steps=4}}}"
    recipe = load_recipe("icons", {"evaluation": f"{entries[:-1]}, {own}]"})
    assert recipe.hyper("+soft-k-means", 1) == {"inner": {"steps": 4}}


def test_tuned_methods_of_a_recipe_are_those_that_tables_run() -> None:
    recipe, folder = load_recipe("icons"), models_folder("icons")
    for job in jobs(recipe, folder, list(methods()), ["s2i", "semi-fsl"], [1, 5], 10):
        shots = job.episode_settings.shots
        assert tuned_method("icons", job.method, shots) == job.configured
    assert tuned_method("icons", "+pr", 1) != tuned_method("icons", "+pr", 5)


def test_a_recipe_may_ask_for_the_papers_letter(bench: Bench, icons: ImageStore) -> None:
    """Features of their own lengths, in the method and in a row of its own."""
    recipe, folder = load_recipe("icons", {"normalise": "false"}), models_folder("icons")
    assert recipe.hash == load_recipe("icons").hash, "training is the same"
    assert "normalise" not in recipe.hyper("bd-cspn", 1)
    [job] = jobs(recipe, folder, ["+pr"], ["s2i"], [5], 3)
    [usual] = jobs(load_recipe("icons"), folder, ["+pr"], ["s2i"], [5], 3)
    assert bench.identity(job)["hyper"] == {**bench.identity(usual)["hyper"], "normalise": False}
    features, (episodes, _) = bench.split_features(job), bench.episodes(job)
    task = features.task(episodes, slice(0, 3), job.configured)
    whole = embed_all(features.model, icons.pictures[episodes.support.flatten().numpy()])
    support, _ = task.with_lengths()
    torch.testing.assert_close(support.flatten(0, 1), whole, rtol=1e-4, atol=1e-5)
    solution = job.configured.fit(task)
    assert isinstance(solution, NovelWeights)
    assert (solution.novel.norm(dim=-1) - 1).abs().min() > 0.1, "not directions"
    with pytest.raises(FewgraftError, match="lengths"):
        job.configured.fit(features.task(episodes, slice(0, 3)))


# --- tuning ---


def test_tuning_takes_the_best_on_validation_episodes(bench: Bench) -> None:
    recipe, folder = load_recipe("icons"), models_folder("icons")
    (found,) = tune(recipe, folder, ["soft-k-means"], [1], FEW, bench)
    settings = EpisodeSettings.paper("semi-fsl", 1, split="val", seed=3)
    accuracies = {}
    for hyper in combinations(method_spec("soft-k-means").method):
        job = Job("icons", "icons", "soft-k-means", hyper, settings, FEW, folder)
        accuracies[json.dumps(hyper)] = bench.chunk(job, range(FEW)).acc.mean().item()
    assert accuracies[json.dumps(found.best.hyper)] == max(accuracies.values())
    assert len(found.candidates) == len(accuracies) == 15
    entry = entry_of(found.chosen)
    assert entry.startswith('[[evaluation]]\nmethod = "soft-k-means"\nshots = 1\nhyper = {')
    with pytest.raises(FewgraftError, match="nothing to search"):
        list(tune(recipe, folder, ["nearest-prototype"], [1], FEW, bench))


def test_methods_are_tuned_where_they_are_evaluated() -> None:
    found = {name: own_setting(spec) for name, spec in methods().items()}
    assert all(makes_sense(method_spec(name), setting) for name, setting in found.items())
    assert (found["+pr"], found["teen"], found["soft-k-means"]) == (
        "s2i",
        "incremental",
        "semi-fsl",
    )


class Hills(Method):
    """Two numbers to be found."""

    search: ClassVar[Search] = {"a": (1, 2, 3), "b": (10, 20)}
    a, b = 2, 10

    def fit(self, task: Task) -> NovelWeights:
        raise NotImplementedError


def test_a_search_by_coordinates_goes_through_them_one_by_one() -> None:
    tried: list[dict[str, int]] = []

    def attempt(tries: Iterable[dict[str, int]]) -> list[Candidate]:
        new = list(tries)
        tried.extend(new)
        accuracies = [0.5 - 0.1 * abs(t["a"] - 3) + 0.01 * t["b"] for t in new]
        return [Candidate(t, flat_scores(acc)) for t, acc in zip(new, accuracies, strict=True)]

    best = over_coordinates(Hills(), attempt)
    assert best.hyper == {"a": 3, "b": 20}
    assert tried == [{"a": a, "b": 10} for a in (1, 2, 3)] + [{"a": 3, "b": b} for b in (10, 20)]


def flat_scores(acc: float) -> Scores:
    return Scores(**{f.name: torch.full((2,), acc) for f in dataclasses.fields(Scores)})


def test_no_choice_is_tried_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SoftKMeans, "search_by", "coordinates")
    recipe = load_recipe("icons")
    (found,) = tune(recipe, models_folder("icons"), ["soft-k-means"], [1], FEW, bench)
    tried = [json.dumps(candidate.hyper) for candidate in found.candidates]
    assert len(tried) == len(set(tried)) == 7, "five numbers of steps, then two scales more"
    assert found.best.accuracy == max(candidate.accuracy for candidate in found.candidates)


# --- the command ---


def command(*words: str, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fewgraft", "bench", *words],
        env={**os.environ, "FEWGRAFT_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_in_the_midst_of_a_slow_row_it_goes_on(tmp_path: Path) -> None:
    """kill -9 after the first chunk; the same command uses that chunk and ends as if unbroken."""
    words = ["run", "icons", "--methods", "proposed", "--settings", "s2i", "--shots", "1"]
    words += ["--episodes", "10"]
    out = tmp_path / "my results"
    first = command(*words, "--out", str(out), home=tmp_path / "home")
    parts = out / "scores"
    deadline = time.monotonic() + 120
    while not list(parts.glob("*.parts/*.npz")):
        assert first.poll() is None, first.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not (out / "results.jsonl").exists()
    (kept,) = parts.glob("*.parts/0.npz")
    before = kept.stat().st_mtime_ns, kept.read_bytes()
    second = command(*words, "--out", str(out), home=tmp_path / "home")
    while second.poll() is None and kept.exists():
        assert kept.stat().st_mtime_ns == before[0], "the finished chunk was computed again"
        time.sleep(0.02)
    output, errors = second.communicate()
    assert second.returncode == 0, errors
    assert "1 rows computed" in output
    third = command(*words, "--out", str(tmp_path / "other"), home=tmp_path / "home")
    assert "1 rows computed" in third.communicate()[0]
    rows = [Results(folder).rows()[0] for folder in (out, tmp_path / "other")]
    assert rows[0].metrics == rows[1].metrics
    assert not list(parts.glob("*.parts"))


def test_two_runs_on_one_folder_share_the_rows(tmp_path: Path) -> None:
    """Each row is there once, computed by one of them, and both end well."""
    words = ["run", "icons", "--methods", "+pr,+graph,+bd-cspn", "--settings", "s2i"]
    words += ["--episodes", "60", "--out", str(tmp_path / "results")]
    both = [command(*words, home=tmp_path / "home") for _ in range(2)]
    said = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    rows = (tmp_path / "results" / "results.jsonl").read_text().splitlines()
    names = [json.loads(row)["id"] for row in rows]
    assert len(names) == len(set(names)) > 3
    computed = [int(output.splitlines()[-1].split()[0]) for output, _ in said]
    assert sum(computed) == len(names), "a row was computed twice"
    left = [p.name for p in (tmp_path / "results").rglob("*") if p.suffix != ".npz"]
    assert sorted(left) == ["results.jsonl", "scores"]


def test_rows_that_several_processes_append_are_there_once(bench: Bench, tmp_path: Path) -> None:
    (row, _), *_ = run([a_job()], Results(tmp_path / "one"), bench)
    scores = Results(tmp_path / "one").scores(row)
    (tmp_path / "many").mkdir()
    results = Results(tmp_path / "many")
    named = [row.model_copy(update={"id": f"{number:010}"}) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: results.append(one, scores), named * 3))
    lines = (tmp_path / "many" / "results.jsonl").read_text().splitlines()
    assert len(lines) == len(results.rows()) == 40


def test_a_finished_row_is_rid_of_its_parts(bench: Bench, tmp_path: Path) -> None:
    """As a kill between the row and the clearing leaves them."""
    results = Results(tmp_path)
    (row, _), *_ = run([a_job()], results, bench)
    results.write_scores(results.chunk_path(row.id, 0), results.scores(row))
    (tmp_path / "scores" / f"{row.id}.lock").write_text("1")
    assert [computed for _, computed in run([a_job()], results, bench)] == [False]
    assert [path.name for path in (tmp_path / "scores").iterdir()] == [f"{row.id}.npz"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "icons", "--methods", "prposed"], "Did you mean 'proposed'"),
        (["run", "icons", "--settings", "s2j"], "Did you mean 's2i'"),
        (["run", "icons", "--shots", "one"], "whole numbers"),
        (["run", "icons", "--engine", "spark"], "no engine 'spark'"),
        (["run", "icons", "--methods", "+pr", "--settings", "fsl"], "fits any of these settings"),
        (["run", "mini-imagenet"], "no trained models for 'mini-imagenet'"),
        (["run", "nothing"], "no recipe 'nothing'"),
        (["rerun", "abc", "--in", "nowhere"], "no row 'abc'"),
    ],
)
def test_what_the_user_can_mend_is_said(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(result.exception, FewgraftError)
    assert message in str(result.exception)


@pytest.mark.usefixtures("_shared_home")
def test_seeds_and_sizes_of_episodes_are_options(tmp_path: Path) -> None:
    words = ["run", "icons", "--methods", "+pr,meta-inc-baseline", "--shots", "1"]
    words += ["--settings", "s2i,semi-fsl,incremental", "--episodes", "2", "--seeds", "0,7"]
    words += ["--ways", "3", "--queries", "4", "--base-queries", "6", "--unlabelled", "20"]
    result = CliRunner().invoke(app, ["bench", *words, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    rows = Results(tmp_path).rows()
    assert len(rows) == 6
    for row in rows:
        settings, joint = EpisodeSettings(**row.episode_settings), row.setting != "semi-fsl"
        assert (settings.ways, settings.queries) == (3, 4)
        assert settings.base_queries == (6 if joint else 0)
        assert settings.unlabelled == (0 if row.setting == "incremental" else 20)
    assert {row.episode_settings["seed"] for row in rows} == {0, 7}
    for seeds in ("", "-1", "x"):
        result = CliRunner().invoke(app, ["bench", "run", "icons", "--seeds", seeds])
        assert isinstance(result.exception, FewgraftError)


def test_features_of_a_foreign_model_are_refused(icons: ImageStore) -> None:
    model = shipped_model("icons", "pre-trained")
    model.card = model.card.model_copy(update={"classes": ("a", "b")})
    with pytest.raises(FewgraftError, match="other base classes"):
        SplitFeatures(model, icons)


@pytest.mark.numerical
def test_features_are_directions_from_the_door_on(icons: ImageStore) -> None:
    features = SplitFeatures(shipped_model("icons", "pre-trained"), icons)
    settings = EpisodeSettings.paper("s2i", 1)
    episodes, _ = sample_episodes(Pools.of(icons), settings, 2)
    task = features.task(episodes, slice(0, 2), method_spec("proposed").method)
    queries = features.queries(episodes, slice(0, 2))
    assert task.pictures is not None
    with torch.no_grad():
        moving = task.pictures.network.features(task.pictures.support)
    for given in (task.support, task.unlabelled, queries.features, moving):
        torch.testing.assert_close(given.norm(dim=-1), torch.ones(given.shape[:-1]))
    torch.testing.assert_close(moving, task.support, rtol=1e-4, atol=1e-5)


@pytest.mark.numerical
def test_a_bank_takes_features_of_any_length() -> None:
    features, pictures = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([4, 1])
    bank = FeatureBank.of(features, pictures, 6)
    assert bank[pictures].tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]
    assert bank.row.tolist() == [-1, 1, -1, -1, 0, -1]


@pytest.mark.parametrize("setting", ["transductive-fsl", "s2i-transductive", "s2i"])
def test_queries_that_are_the_unlabelled_set_are_gathered_once(
    icons: ImageStore, setting: str
) -> None:
    features = SplitFeatures(shipped_model("icons", "pre-trained"), icons)
    episodes, _ = sample_episodes(Pools.of(icons), EpisodeSettings.paper(setting, 1), 4)
    rows = slice(1, 3)
    task = features.task(episodes, rows)
    alone, beside = features.queries(episodes, rows), features.queries(episodes, rows, task)
    for one, other in zip(vars(alone).values(), vars(beside).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert (beside.features is task.unlabelled) == (setting != "s2i")


def test_methods_are_listed() -> None:
    result = CliRunner().invoke(app, ["bench", "methods"])
    assert result.exit_code == 0
    for name in methods():
        assert name in result.output
    assert np.all([spec.title in result.output for spec in methods().values()])
