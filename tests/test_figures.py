"""Figures: what varies in U, what δ is, and what t-SNE is shown."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from by_hand import scores_by_hand
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from torch.nn.functional import normalize
from typer.testing import CliRunner

from fewgraft.bench.ratio import (
    METHODS,
    Curve,
    Sweep,
    Swept,
    draw_sweeps,
    features_methods,
    run_sweep,
    sweep_table,
)
from fewgraft.bench.report import RATIO, SCATTER, TSNE, read_figures, write_figure
from fewgraft.bench.results import Results
from fewgraft.bench.runner import Bench, Job, jobs
from fewgraft.bench.scatter import Scatter, draw_scatter
from fewgraft.bench.tsne import (
    PICTURES,
    FeatureSpace,
    Shown,
    choose,
    describe,
    draw_spaces,
    feature_space,
    nearest_base,
)
from fewgraft.cli import bench as bench_commands
from fewgraft.cli import bench_figures
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.metrics import Interval, interval
from fewgraft.prototypes import Refinement
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import models_folder

FEW = 8
PROPOSED = "proposed-without-adaptation"


pytestmark = pytest.mark.usefixtures("_shared_home")


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.fixture
def results(tmp_path: Path) -> Results:
    (tmp_path / "ratio").mkdir()
    return Results(tmp_path / "ratio")


def a_job(method: str = "+pr", setting: str = "s2i", shots: int = 1) -> Job:
    (job,) = jobs(
        load_recipe("icons"), models_folder("icons"), [method], [setting], [shots], episodes=FEW
    )
    return job


def swept(sweep: Sweep, results: Results, bench: Bench, shots: int = 1) -> Swept:
    return run_sweep(
        sweep,
        load_recipe("icons"),
        models_folder("icons"),
        results,
        bench,
        methods=("+pr", PROPOSED),
        shots=shots,
        episodes=FEW,
    )


# --- what is in U ---


def test_a_sweep_is_what_a_plain_evaluation_gives(
    icons: ImageStore, results: Results, bench: Bench
) -> None:
    found = swept(Sweep.of_shares((0.9, 0.1, 0.5)), results, bench)
    assert found.values == (0.1, 0.5, 0.9), "from few to many"
    opened = bench.split_features(a_job(PROPOSED))
    features = torch.zeros(len(icons), opened.bank.features.shape[1])
    there = opened.bank.row >= 0
    features[there] = opened.bank.features[opened.bank.row[there]]
    chosen = Refinement(**load_recipe("icons").hyper(PROPOSED, 1))
    by_hand = []
    for share in found.values:
        settings = EpisodeSettings.paper("s2i", 1, novel_share=share)
        assert settings.unlabelled == 300
        episodes, answers = sample_episodes(Pools.of(icons), settings, FEW)
        novel = (answers.unlabelled_labels >= episodes.n_base).double().mean().item()
        assert novel == pytest.approx(share)
        by_hand.append(
            scores_by_hand(features, opened.weights, opened.gamma, episodes, answers, chosen).acc
        )
    curve = found.curves[1]
    assert curve.title == "Proposed, no adaptation"
    assert [p.mean for p in curve.acc] == pytest.approx([acc.mean().item() for acc in by_hand])
    best, worst = (f(by_hand, key=lambda acc: acc.mean().item()) for f in (max, min))
    differences = (best - worst).numpy()
    assert curve.drop.mean == pytest.approx(differences.mean())
    assert curve.drop.half == pytest.approx(1.96 * differences.std(ddof=1) / np.sqrt(FEW))


def test_rows_are_kept_and_the_paper_s_own_unlabelled_set_is_computed_once(
    results: Results, bench: Bench
) -> None:
    shares, distractors = Sweep.of_shares((0.3, 0.5)), Sweep.of_distractors((0, 2))
    first = swept(shares, results, bench)
    second = swept(distractors, results, bench)
    lines = (results.folder / "results.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 3, "a share of 0.5 is no distractors"
    assert [c.acc[1] for c in first.curves] == [c.acc[0] for c in second.curves]
    assert {r.episode_settings["distractors"] for r in results.rows()} == {0, 2}
    assert swept(shares, results, bench) == first
    assert (results.folder / "results.jsonl").read_text().splitlines() == lines


def test_what_the_pictures_do_not_suffice_for_is_left_out(results: Results, bench: Bench) -> None:
    found = swept(Sweep.of_shares((0.5, 0.9)), results, bench, shots=5)
    assert found.values == (0.5,)
    assert "110 are needed" in found.left_out[0.9]
    assert found.curves[0].drop == Interval(0, 0)
    with pytest.raises(FewgraftError, match="no share of novel"):
        swept(Sweep.of_shares((0.9,)), results, bench, shots=5)


@pytest.mark.parametrize(
    ("methods", "problem"),
    [
        (("meta-inc-baseline",), "nothing to vary"),
        (("soft-k-means",), "nothing to vary"),
        (("+pt",), "no method"),
        ((), "one or more"),
        (("+pr", "+pr"), "each once"),
    ],
)
def test_methods_without_an_unlabelled_set_are_refused(
    methods: tuple[str, ...], problem: str, results: Results, bench: Bench
) -> None:
    with pytest.raises(FewgraftError, match=problem):
        run_sweep(
            Sweep.of_shares(),
            load_recipe("icons"),
            models_folder("icons"),
            results,
            bench,
            methods=methods,
        )


def made_up(title: str = "share") -> Swept:
    points = (Interval(0.6, 0.01), Interval(0.7, 0.02))
    curves = (Curve("A", points, Interval(0.1, 0.005)), Curve("B", points, Interval(0.1, 0.005)))
    return Swept(Sweep("novel_share", (0.1, 0.9), title), 1, 40, (0.1, 0.9), {}, curves)


def test_curves_have_their_intervals_as_bands() -> None:
    figure = draw_sweeps([made_up("share"), made_up("distractors")])
    assert [axes.get_xlabel() for axes in figure.axes] == ["share", "distractors"]
    for axes in figure.axes:
        np.testing.assert_allclose(np.asarray(axes.lines[0].get_ydata()), [60, 70])
        bands = [c for c in axes.collections if isinstance(c, PolyCollection)]
        assert len(bands) == 2
        box = bands[0].get_paths()[0].get_extents()
        assert (box.y0, box.y1) == pytest.approx((59, 72))
        texts = [text.get_text() for text in axes.get_legend().get_texts()]  # type: ignore[union-attr]
        assert texts == ["A, δ 10.0", "B, δ 10.0"]


@pytest.mark.parametrize("methods", [1, 4, 14])
def test_names_of_methods_leave_room_for_curves(methods: int) -> None:
    swept = made_up()
    curves = tuple(
        dataclasses.replace(swept.curves[0], title=f"method {n}") for n in range(methods)
    )
    figure = draw_sweeps([dataclasses.replace(swept, curves=curves)])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.bbox.height > figure.bbox.height / 2
    legend = axes.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    assert not box.overlaps(axes.xaxis.label.get_window_extent())
    assert not box.overlaps(axes.bbox)
    assert figure.bbox.y0 <= box.y0
    assert box.x1 <= figure.bbox.x1


def test_a_figure_is_never_parted_from_its_words(tmp_path: Path) -> None:
    text = str(made_up())
    assert "A 10.00 ± 0.50" in text
    write_figure(draw_sweeps([made_up()]), text, tmp_path / RATIO)
    (found,) = read_figures(tmp_path)
    assert found.text == text
    assert found.png.startswith(b"\x89PNG")
    with pytest.raises(FewgraftError, match="cannot write"):
        write_figure(Figure(), "", tmp_path / RATIO / "below a file.png")


def test_figures_for_papers_carry_their_fonts_and_no_date(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_figure(draw_sweeps([made_up()]), "words & more", tmp_path / name / RATIO)
        made.append({p.suffix: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert sorted(made[0]) == [".pdf", ".png", ".svg"]
    assert made[0] == made[1]
    assert b"/FontFile2" in made[0][".pdf"], "TrueType, as printers want it"
    assert b"<text" not in made[0][".svg"]
    assert b"words &amp; more" in made[0][".svg"]


# --- feature space ---


def test_the_shown_pictures_are_of_their_classes_and_not_in_the_support(
    icons: ImageStore, bench: Bench
) -> None:
    job = a_job()
    episodes, _ = bench.episodes(job)
    shown = choose(bench, job, 3)
    assert shown.names[5:] == tuple(icons.classes[c] for c in episodes.classes[3].tolist())
    assert shown.names[:5] == tuple(icons.classes[c] for c in shown.base)
    for picture, place in zip(shown.pictures.tolist(), shown.places.tolist(), strict=True):
        assert icons.classes[icons.labels[picture]] == shown.names[place]
    assert len(set(shown.pictures.tolist())) == len(shown.pictures)
    for number, support in enumerate(episodes.support.tolist()):  # one alone might miss by chance
        assert not set(choose(bench, job, number).pictures.tolist()) & set(support)
    counts = torch.bincount(shown.places)
    assert (counts[5:] == PICTURES).all()
    assert (counts[:5] > 10).all()
    parts = {Part(list(Part)[icons.parts[p]]) for p in shown.pictures.tolist()}
    assert parts == {Part.BASE_TEST, Part.NOVEL_TEST}


def test_base_classes_are_the_nearest_or_random_ones(icons: ImageStore, bench: Bench) -> None:
    job = a_job()
    opened = bench.split_features(job)
    novel = bench.episodes(job)[0].classes[0].tolist()
    taken: list[int] = []
    for label in novel:  # one class and one weight at a time
        pictures = icons.by_class(Part.NOVEL_TEST)[label]
        mean = sum(f / f.norm() for f in opened.bank[torch.from_numpy(pictures)])
        alike = [float(torch.cosine_similarity(mean, w, dim=0)) for w in opened.weights]
        taken.append(max(set(range(len(alike))) - set(taken), key=alike.__getitem__))
    assert nearest_base(opened, novel) == taken
    assert choose(bench, job, 0).base == tuple(taken)
    random = choose(bench, job, 0, "random")
    assert random.base == choose(bench, job, 0, "random").base != tuple(taken)
    assert random.base != choose(bench, job, 0, "random", seed=1).base
    with pytest.raises(FewgraftError, match="cannot be chosen") as error:
        choose(bench, job, 0, "nearst")
    assert "nearest" in error.value.hint


def test_a_view_holds_what_the_method_answers_with(bench: Bench) -> None:
    job = a_job(PROPOSED)
    shown = choose(bench, job, 2)
    seen = feature_space(bench, job, 2, shown)
    opened, (episodes, _) = bench.split_features(job), bench.episodes(job)
    solution = job.configured.fit(opened.task(episodes, slice(0, FEW)))
    expected = normalize(solution.novel[2], dim=-1)  # type: ignore[attr-defined]
    torch.testing.assert_close(seen.weights[5:], expected)
    torch.testing.assert_close(
        seen.weights[:5], normalize(opened.weights[list(shown.base)], dim=-1)
    )
    right = 0
    for feature, place in zip(seen.features, shown.places.tolist(), strict=True):
        distances = [float((feature - weight).norm()) for weight in seen.weights]
        right += distances.index(min(distances)) == place
    assert seen.nearest_right(shown.places) == pytest.approx(right / len(shown.places))
    assert f"{100 * right / len(shown.places):.1f} %" in describe(shown, [seen], 2)
    with pytest.raises(FewgraftError, match="without prototypes"):
        feature_space(bench, a_job("+graph"), 2, shown)


def test_a_network_that_did_not_move_sees_the_same(bench: Bench) -> None:
    """Adaptation of no steps is refinement: features through the network, not from the bank."""
    (job,) = jobs(load_recipe("icons"), models_folder("icons"), ["proposed"], ["s2i"], [1], FEW)
    chosen = load_recipe("icons").hyper(PROPOSED, 1)
    still_steps = {"steps": 0, "refinement_steps": chosen.pop("steps")}
    job = dataclasses.replace(job, hyper=chosen | still_steps)
    shown = choose(bench, job, 1)
    moved, still = (feature_space(bench, j, 1, shown) for j in (job, a_job(PROPOSED)))
    torch.testing.assert_close(moved.features, still.features, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(moved.weights, still.weights, rtol=1e-3, atol=1e-4)


def clusters() -> tuple[Shown, FeatureSpace]:
    """Three classes that lie apart, with names that mean something to matplotlib."""
    rng = torch.Generator().manual_seed(0)
    centres, places = torch.eye(16)[:3], torch.arange(3).repeat_interleave(12)
    features = centres[places] + 0.1 * torch.randn(36, 16, generator=rng)
    shown = Shown(("$x_1$", "_hidden", "plain"), (0,), "nearest", torch.arange(36), places)
    return shown, FeatureSpace("made up", normalize(features, dim=-1), centres)


def test_what_lies_together_is_drawn_together() -> None:
    shown, seen = clusters()
    points, triangles = seen.embedded()
    assert points.shape == (36, 2)
    for point, place in zip(points, shown.places.tolist(), strict=True):
        assert np.linalg.norm(triangles - point, axis=1).argmin() == place
    again, _ = seen.embedded()
    np.testing.assert_array_equal(points, again)


def test_names_are_drawn_as_they_are() -> None:
    shown, seen = clusters()
    figure = draw_spaces(shown, [seen, seen])
    figure.canvas.draw()
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    assert [text.get_text() for text in texts] == ["$x_1$", "_hidden", "plain"]
    assert not any(text.get_parse_math() for text in texts)
    colours = [
        [np.asarray(drawn.get_edgecolor())[0].tolist() for drawn in axes.collections]
        for axes in figure.axes
    ]
    assert colours[0] == colours[1]
    assert all(colours[0].count(colour) == 1 for colour in colours[0][:3])


# --- commands ---


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    for command in (bench_figures.ratio, bench_figures.tsne):
        made.command()(command)
    return made


def test_the_commands_write_figures_and_leave_other_results_alone(
    app: typer.Typer, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path)]
    few = ["--methods", f"+pr,{PROPOSED}", "--shares", "0.5,0.9", "--distractors", "0,2"]
    done = CliRunner().invoke(app, ["ratio", "icons", *few, "--episodes", "4", *out])
    assert done.exit_code == 0, done.output
    assert "δ" in done.output
    assert "Proposed" in done.output
    assert not (tmp_path / "results.jsonl").exists(), "a table must not be made of these"
    assert len(Results(tmp_path / "ratio").rows()) == 2 * 3
    done = CliRunner().invoke(app, ["tsne", "icons", *out])
    assert done.exit_code == 0, done.output
    names = {figure.title: figure.text for figure in read_figures(tmp_path)}
    assert len(names) == 2
    assert (tmp_path / TSNE).is_file()
    assert "nearest to the prototype" in done.output.lower()


def test_points_are_gains_over_the_baseline(tmp_path: Path) -> None:
    methods = ["--methods", "meta-inc-baseline,+pr,+soft-k-means", "--shots", "1"]
    words = ["run", "icons", *methods, "--settings", "incremental,s2i", "--episodes", "4"]
    done = CliRunner().invoke(bench_commands.app, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(bench_commands.app, ["scatter", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "of 2 methods are ahead of Meta-Inc-Baseline in n/n" in done.output
    assert (tmp_path / SCATTER).is_file()
    rows = {row.method: row for row in Results(tmp_path).rows()}
    scatter = Scatter.of(Results(tmp_path), "s2i", 1)
    figure = draw_scatter(scatter)
    points = figure.axes[0].lines[2:]  # after the axes
    drawn = sorted((*line.get_xdata(), *line.get_ydata()) for line in points)  # type: ignore[misc]
    found = {
        name: np.array([100 * row.interval(metric).mean for metric in ("n_n", "acc")])
        for name, row in rows.items()
    }
    base = found.pop("meta-inc-baseline")
    np.testing.assert_allclose(drawn, sorted(tuple(own - base) for own in found.values()))
    acc = {name: Results(tmp_path).scores(row).acc for name, row in rows.items()}
    for gain in scatter.gains:
        apart = acc[gain.row.method] - acc["meta-inc-baseline"]
        assert gain.joint == interval(apart), "paired"
        assert str(gain.joint) in done.output
    done = CliRunner().invoke(bench_commands.app, ["scatter", str(tmp_path), "--shots", "5"])
    assert "lack rows of s2i" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["ratio", "icons", "--shares", "half"], "list of numbers"),
        (["ratio", "icons", "--shares", "1.5"], "from 0 to 1"),
        (["ratio", "icons", "--shares", "", "--distractors", ""], "nothing to vary"),
        (["tsne", "icons", "--methods", "+pr,soft-k-means"], "soft-k-means"),
        (["tsne", "icons", "--methods", ""], "one or more"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    app: typer.Typer, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert isinstance(done.exception, FewgraftError)
    assert problem in str(done.exception)


def test_the_table_has_a_column_a_method() -> None:
    table = sweep_table(made_up())
    assert [str(column.header) for column in table.columns] == ["", "A", "B"]
    assert list(table.columns[1].cells) == ["60.00 ± 1.00", "70.00 ± 2.00", "10.00 ± 0.50"]
    assert len(METHODS) == 4


def test_many_methods_have_a_line_each() -> None:
    few = made_up()
    many = dataclasses.replace(few, curves=few.curves * 3)
    table = sweep_table(many)
    assert [str(column.header) for column in table.columns][-1] == "δ"
    assert list(table.columns[0].cells) == ["A", "B"] * 3
    assert "bands" in str(few)
    assert "bands" not in str(many)


def test_unequal_shares_go_from_the_most_unequal_to_equal() -> None:
    sweep = Sweep.of_imbalance([0, 5, 1])
    assert [sweep.label(value) for value in sweep.values] == ["1", "5", "equal"]
    assert list(sweep.places(sweep.values)) == [0, 1, 2]
    assert "soft-k-means" in features_methods("semi-fsl")
    assert not {"proposed", "lwof", "+soft-k-means"} & set(features_methods("semi-fsl"))
