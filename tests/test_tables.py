"""Tables: what is bold, what has an arrow, and four formats; on made-up scores and a real run."""

import csv
import io
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from fewgraft.bench.chosen_rows import Choice, NoRowsError
from fewgraft.bench.comparison import compare, comparison_table
from fewgraft.bench.results import Results, Row, row_id
from fewgraft.bench.rows import run
from fewgraft.bench.runner import Bench, jobs
from fewgraft.bench.table_formats import (
    FORMATS,
    footnoted,
    latex,
    markdown,
    terminal,
    without_constants,
)
from fewgraft.bench.tables import (
    LAYOUTS,
    Cell,
    Column,
    Section,
    Table,
    build,
)
from fewgraft.cli import app, bench_tables
from fewgraft.episodes import SETTINGS, EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.methods import methods
from fewgraft.metrics import METRICS, NAMES, Scores, summarise
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import models_folder

Add = Callable[..., Row]
EPISODES = 40


@pytest.fixture
def results(tmp_path: Path) -> Results:
    folder = tmp_path / "results"
    folder.mkdir()
    return Results(folder)


@pytest.fixture
def add(results: Results) -> Add:
    """Append a row whose scores are given."""

    def append(
        method: str,
        scores: Scores,
        setting: str = "s2i",
        shots: int = 1,
        *,
        seed: int = 0,
        split: str = "test",
        weights: str = "w",
        models: str = "zoo",
        data: str = "icons",
        content: str = "c",
        hyper: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Row:
        settings = EpisodeSettings.paper(setting, shots, seed=seed, split=split, **changes)
        spec = methods().get(method)
        episodes = len(scores.acc)
        identity = [method, settings.hash, episodes, weights, content, hyper]
        row = Row(
            id=row_id({"identity": identity}),
            recipe="icons",
            method=method,
            title=spec.title if spec else method,
            setting=setting,
            shots=shots,
            episodes=episodes,
            split=split,
            hyper=hyper or {},
            stage=spec.stage if spec else "algorithm-1",
            models=models,
            weights=weights + (spec.stage if spec else ""),
            backbone="resnet12-tiny",
            data=data,
            content=content,
            episode_settings=settings.record(),
            episode_hash=settings.hash,
            n_base=108 if SETTINGS[setting].incremental else 0,
            ways=settings.ways,
            metrics={
                name: (None, None) if math.isnan(found.mean) else (found.mean, found.half)
                for name, found in summarise(scores).items()
            },
            seconds=1.0,
            versions={},
            machine="",
        )
        results.append(row, scores)
        return row

    return append


def constant(b_all: float, n_all: float, b_b: float, n_n: float, episodes: int = 4) -> Scores:
    """The same percentages in every episode."""
    means = ((b_all + n_all) / 2, b_all, n_all, b_b, n_n)
    return Scores(*(torch.full((episodes,), mean / 100, dtype=torch.float64) for mean in means))


def flat(acc: float, episodes: int = 4) -> Scores:
    return constant(acc, acc, 100, 100, episodes)


def noisy(seed: int, acc: float, spread: float) -> Scores:
    """Accuracies around `acc` that share each episode's difficulty."""
    rng = np.random.default_rng(seed)
    hard = np.random.default_rng(0).normal(0, 0.1, EPISODES)
    values = torch.from_numpy(acc + hard + rng.normal(0, spread, EPISODES))
    one = torch.ones(EPISODES, dtype=torch.float64)
    return Scores(values, values, values, one, one)


def lines(table: Table, section: int = 0) -> dict[str, tuple[Cell, ...]]:
    return {row[0].text: row for row in table.sections[section].rows}


def column(table: Table, name: str, group: str = "1-shot", section: int = 0) -> list[Cell]:
    found = [
        place
        for place, column in enumerate(table.columns)
        if column.name == name and group in column.group
    ]
    assert len(found) == 1
    return [row[found[0]] for row in table.sections[section].rows]


# ------------------------------------------------------------------------------- bold and arrows


def expected_bold(values: Sequence[np.ndarray[Any, Any]]) -> list[bool]:
    """The rule once more, in plain NumPy."""
    best = int(np.argmax([v.mean() for v in values]))
    for other in range(len(values)):
        difference = values[best] - values[other]
        half = 1.96 * difference.std(ddof=1) / math.sqrt(len(difference))
        if other != best and not difference.mean() > half:
            return [False] * len(values)
    return [place == best for place in range(len(values))]


def test_bold_is_what_beats_every_other_row_episode_by_episode(add: Add, results: Results) -> None:
    names = ("+graph", "+pr", "proposed-without-adaptation")
    seen = set()
    for seed in range(12):
        made = [noisy(3 * seed + n, 0.7 + 0.004 * n, 0.01) for n in range(3)]
        shutil.rmtree(results.folder)  # a row that is there stays as it is
        for name, scores in zip(names, made, strict=True):
            add(name, scores)
        cells = column(build(results), "Acc")
        assert [cell.bold for cell in cells] == expected_bold([s.acc.numpy() for s in made])
        wide = [cell.value for cell in cells if cell.value]
        assert all(a.half > abs(a.mean - b.mean) for a in wide for b in wide), "intervals overlap"
        seen.add(any(cell.bold for cell in cells))
    assert seen == {True, False}, "the seeds must show both cases"


def test_one_equal_rival_is_enough_for_no_bold(add: Add, results: Results) -> None:
    for name, acc in (("+graph", 60), ("+pr", 70), ("proposed-without-adaptation", 70)):
        add(name, flat(acc))
    assert not any(cell.bold for cell in column(build(results), "Acc"))
    add("proposed-without-adaptation", flat(70.5), weights="newer")
    assert [cell.bold for cell in column(build(results), "Acc")] == [False, False, True]


def test_a_row_alone_is_not_bold_and_sections_do_not_compete(add: Add, results: Results) -> None:
    add("meta-inc-baseline", flat(90), "incremental")
    add("+pr", flat(70))
    add("+graph", flat(60))
    table = build(results)
    assert [s.title for s in table.sections] == [
        "Incremental FSL (inductive)",
        "S²I-FSL (semi-supervised)",
    ]
    assert [cell.bold for cell in column(table, "Acc")] == [False]
    assert [cell.bold for cell in column(table, "Acc", section=1)] == [False, True]


def test_delta_is_better_nearer_zero(add: Add, results: Results) -> None:
    add("+graph", constant(80, 80, 90, 90))
    add("+pr", constant(70, 70, 75, 75))
    cells = column(build(results), "Δ")
    assert [(cell.text, cell.bold) for cell in cells] == [("-10.00", False), ("-5.00", True)]
    assert [cell.bold for cell in column(build(results), "Acc")] == [True, False]


TABLE_3 = {  # the paper's: b/all, n/all, b/b, n/n
    "meta-inc-baseline": (65.91, 80.05, 73.36, 83.39),
    "+graph": (70.65, 61.07, 71.28, 85.70),
    "+fixmatch": (64.13, 82.30, 73.10, 84.47),
    "+pr": (60.32, 85.04, 73.36, 85.86),
    "proposed": (67.58, 84.90, 73.08, 87.82),
}


def test_the_papers_table_3(add: Add, results: Results) -> None:
    """Scores without spread: every difference is clear, and equal means are not different."""
    for name, numbers in reversed(TABLE_3.items()):  # tables have their own order
        setting = "incremental" if name == "meta-inc-baseline" else "s2i"
        add(name, constant(*numbers), setting, shots=5)
    table = build(results, "detail")
    assert [c.name for c in table.columns] == ["Method", *NAMES.values()]
    assert {c.group for c in table.columns[1:]} == {"108+5-way 5-shot"}
    shown = [[f"{c.text} {c.mark}".strip() for c in row] for row in table.sections[0].rows]
    assert [row[0] for row in shown] == [methods()[name].title for name in TABLE_3]
    graph, fixmatch, pr, proposed = (row[1:7] for row in shown[1:])
    assert graph == [
        "65.86 ± 0.00 ↓↓", "-12.63 ↓↓", "70.65 ↑↑", "61.07 ↓↓", "71.28 ↓↓", "85.70 ↑↑",
    ]  # fmt: skip
    assert [text.split()[-1] for text in fixmatch] == ["↑", "↓", "↓↓", "↑↑", "↓", "↑↑"]
    assert pr[4] == "73.36", "as the baseline: no arrow"
    assert proposed[1] == "-4.21 ↑↑"
    assert not any(cell.mark for cell in table.sections[0].rows[0])
    bold = [[c.text for c in row if c.bold] for row in table.sections[0].rows]
    assert bold[1] == ["70.65"]
    assert bold[3] == ["85.04"]
    assert bold[4] == ["76.24 ± 0.00", "-4.21", "87.82", "75.26"]
    assert "Meta-Inc-Baseline (inductive)" in table.note


def test_arrows_need_an_interval_and_a_point(add: Add, results: Results) -> None:
    add("meta-inc-baseline", noisy(0, 0.7, 0), "incremental", shots=5)
    cases = {
        "+graph": (noisy(1, 0.702, 0.02), ""),  # lost in the spread
        "+fixmatch": (noisy(2, 0.691, 0.001), "↓"),
        "+pr": (noisy(3, 0.709, 0.001), "↑"),
        "proposed": (noisy(4, 0.712, 0.001), "↑↑"),
    }
    for name, (scores, _) in cases.items():
        add(name, scores, shots=5)
    marks = [cell.mark for cell in column(build(results, "detail"), "Acc", "5-shot")]
    assert marks == ["", *(mark for _, mark in cases.values())]


# --------------------------------------------------------------------------------------- layouts


def test_rows_come_in_the_order_of_the_registry_with_dashes_for_what_is_missing(
    add: Add, results: Results
) -> None:
    add("proposed", flat(80), shots=5)
    add("retired", flat(50), shots=1)
    add("+pr", flat(70), shots=1)
    add("+graph", flat(60), "s2i-transductive", shots=1)
    table = build(results)
    titles = [section.title for section in table.sections]
    assert titles == ["S²I-FSL (transductive)", "S²I-FSL (semi-supervised)"]
    registered = [methods()[name].title for name in ("+graph", "+pr", "proposed")]
    assert list(lines(table, 0)) == registered
    assert list(lines(table, 1)) == [*registered, "retired"]
    semi = lines(table, 1)
    assert [c.text for c in semi[registered[0]][1:]] == ["–"] * 5, "run in another section only"
    assert [c.text for c in semi[registered[1]][2:]] == ["70.00 ± 0.00", "-30.00", "–", "–"]
    assert [c.text for c in semi[registered[2]][2:]] == ["–", "–", "80.00 ± 0.00", "-20.00"]


def test_regular_table_has_no_base_classes(add: Add, results: Results) -> None:
    nan, acc = torch.full((4,), math.nan).double(), torch.full((4,), 0.8).double()
    for setting in ("fsl", "semi-fsl"):
        add("meta-inc-baseline" if setting == "fsl" else "+pr", Scores(acc, nan, acc, nan, acc),
            setting)  # fmt: skip
    table = build(results, "regular")
    assert [section.title for section in table.sections] == [
        "FSL (inductive)",
        "Semi-supervised FSL",
    ]
    assert table.columns[2:] == (Column("Acc", "5-way 1-shot"),)
    assert table.sections[1].rows[0][2].text == "80.00 ± 0.00"


def test_ablation_adds_one_component_a_row(add: Add, results: Results) -> None:
    add("meta-inc-baseline", flat(70), "incremental")
    add("+pr", flat(72))
    add("proposed", flat(76))
    add("+graph", flat(99))
    table = build(results, "ablation")
    assert [[c.text for c in row[1:4]] for row in table.sections[0].rows] == [
        ["", "", ""], ["✓", "", ""], ["✓", "✓", ""], ["✓", "✓", "✓"],
    ]  # fmt: skip
    cells = column(table, "Acc")
    assert [cell.text for cell in cells] == ["70.00 ± 0.00", "72.00 ± 0.00", "–", "76.00 ± 0.00"]
    assert [cell.bold for cell in cells] == [False, False, False, True]
    assert [c.name for c in table.columns[4:]] == ["Acc", "Δ", "n/n"]
    add("distilled-adaptation", flat(77))
    *_, papers, ours = build(results, "ablation").sections[0].rows
    assert ours[0].text == "Proposed, distilled adaptation (ours)"
    assert [cell.text for cell in ours[1:4]] == [cell.text for cell in papers[1:4]]


def test_details_of_a_setting(add: Add, results: Results) -> None:
    add("+pr", flat(72), "s2i-transductive")
    wanted = Choice(setting="s2i-transductive", shots=1)
    without = build(results, "detail", wanted)
    assert [row[1].text for row in without.sections[0].rows] == ["–", "72.00 ± 0.00"]
    assert not any(cell.mark for cell in without.sections[0].rows[1])
    add("meta-inc-baseline", flat(70), "incremental")
    assert column(build(results, "detail", wanted), "Acc")[1].mark == "↑↑"
    with pytest.raises(NoRowsError) as error:  # the baseline alone is no table
        build(results, "detail", Choice(shots=1))
    assert "--settings incremental,s2i --shots 1" in error.value.hint
    add("nearest-prototype", flat(60), "incremental")
    inductive = build(results, "detail", Choice(setting="incremental", shots=1))
    assert [c.mark for c in column(inductive, "Acc")] == ["↓↓", ""], "the baseline once"
    with pytest.raises(FewgraftError, match="no base classes"):
        build(results, "detail", Choice(setting="fsl"))
    with pytest.raises(FewgraftError, match="is no setting"):
        build(results, "detail", Choice(setting="s3i"))


def test_notes_say_what_the_numbers_are(add: Add, results: Results) -> None:
    add("+pr", flat(70, episodes=7), split="val", seed=3)
    note = build(results).note
    assert note.startswith("icons, 7 val episodes, seed 3; ± 95 % interval over episodes; bold: ")
    assert "caution" not in note
    assert note.endswith("; tuned hyper-parameters: recipe icons.")
    add("+graph", flat(70, episodes=7), split="val", seed=3, weights="other")
    assert "caution: 2 different models are called algorithm-1" in build(results).note


# ---------------------------------------------------------------------------------- choosing rows


def test_the_last_of_equal_rows_counts(add: Add, results: Results) -> None:
    add("+pr", flat(70), weights="old")
    add("+pr", flat(71), weights="new")
    assert column(build(results), "Acc")[0].text == "71.00 ± 0.00"


@pytest.mark.parametrize(
    ("other", "choice", "says", "hint"),
    [
        ({}, Choice(episodes=4), "numbers of episodes: 4, 6", "--episodes"),
        ({"split": "val"}, Choice(split="test"), "splits: test, val", "--split"),
        ({"seed": 1}, Choice(seed=0), "seeds: 0, 1", "--seed"),
        ({"content": "d"}, None, r"data sets: icons \(c\), icons \(d\)", "--out"),
        ({"queries": 10}, None, "numbers of queries: 10, 15", "--out"),
        ({"novel_share": 0.2}, None, "different unlabelled sets", "--out"),
    ],
)
def test_rows_that_cannot_be_paired_are_not_mixed(
    add: Add,
    results: Results,
    other: dict[str, Any],
    choice: Choice | None,
    says: str,
    hint: str,
) -> None:
    add("+pr", flat(70))
    add("+graph", flat(60))
    add("+graph", flat(60, 4 if other else 6), **other)
    with pytest.raises(FewgraftError, match=says) as error:
        build(results)
    assert hint in error.value.hint
    if choice:
        assert [cell.text[:2] for cell in column(build(results, "main", choice), "Acc")] == [
            "60",
            "70",
        ]


def test_no_seed_and_no_training_run_is_chosen_unseen(add: Add, results: Results) -> None:
    for seed in (0, 1):
        add("+pr", flat(70 + seed), seed=seed)
    with pytest.raises(FewgraftError, match="different seeds: 0, 1") as error:
        build(results)
    assert "--pool" in error.value.hint
    assert column(build(results, "main", Choice(seed=1)), "Acc")[0].text == "71.00 ± 0.00"
    with pytest.raises(FewgraftError, match="different seeds: 0, 1") as error:
        compare(results, "+pr:s2i:1", "+pr:s2i:1")
    assert "by its id" in error.value.hint
    assert "seed 1" in comparison_table(compare(results, "+pr:s2i:1", "+pr:s2i:1", 1)).title

    for name in ("runs/a", "runs/b"):
        add("+graph", flat(60), models=name, weights=name, seed=2)
    with pytest.raises(FewgraftError, match="training runs: runs/a, runs/b") as error:
        build(results, "main", Choice(seed=2))
    assert "--models" in error.value.hint
    note = build(results, "main", Choice(seed=2, models="runs/b")).note
    assert note.startswith("icons, 4 test episodes, seed 2;")


def test_the_same_models_in_two_places_are_one_run(add: Add, results: Results) -> None:
    add("+pr", flat(70), models="here/zoo")
    add("+graph", flat(70), models="there/zoo")
    assert len(column(build(results), "Acc")) == 2


def test_runs_are_pooled_to_means_and_deviations(add: Add, results: Results) -> None:
    made = {
        (name, seed, models): noisy(10 * seed + len(models + name), acc, 0.05)
        for name, acc in (("+pr", 0.7), ("+graph", 0.6))
        for seed in (0, 1, 2)
        for models in ("runs/a", "runs/bb")
    }
    for (name, seed, models), scores in made.items():
        add(name, scores, seed=seed, models=models, weights=models)
    table = build(results, "main", Choice(pool=True))
    cells = column(table, "Acc")  # in the order of the registry
    for name, cell in zip(("+graph", "+pr"), cells, strict=True):
        own = [scores.acc for (method, _, _), scores in made.items() if method == name]
        means, every = np.array([one.mean() for one in own]), np.concatenate(own)
        half = 1.96 * every.std(ddof=1) / math.sqrt(len(every))
        assert cell.text == (
            f"{100 * means.mean():.2f} ± {100 * means.std(ddof=1):.2f} ({100 * half:.2f})"
        )
    assert [cell.bold for cell in cells] == [False, True]
    episodes = len(every) // 6
    assert table.note.startswith(
        f"icons, 6 runs (seeds 0, 1, 2, models runs/a, runs/bb) of {episodes} test episodes; "
        "± standard deviation over runs"
    )
    one_seed = build(results, "main", Choice(pool=True, seed=1))
    assert "2 runs (seeds 1, models runs/a, runs/bb)" in one_seed.note


def test_only_equal_runs_are_pooled(add: Add, results: Results) -> None:
    add("+pr", flat(70))
    with pytest.raises(FewgraftError, match="one run, and nothing to pool"):
        build(results, "main", Choice(pool=True))
    add("+pr", flat(70), seed=1)
    add("+graph", flat(60), seed=1)
    with pytest.raises(FewgraftError, match=r"\+graph, s2i, 1-shot, has no row of seed 0 and zoo"):
        build(results, "main", Choice(pool=True))


def test_a_table_without_rows_names_the_command(add: Add, results: Results) -> None:
    with pytest.raises(NoRowsError) as error:
        build(results, "regular")
    assert error.value.hint == (
        "Make them: fewgraft bench run RECIPE --settings fsl,transductive-fsl,semi-fsl "
        f"--out {results.folder}"
    )
    add("+graph", flat(60))
    with pytest.raises(NoRowsError) as error:
        build(results, "ablation", Choice(episodes=600, split="val", seed=2, shots=1))
    command = (
        "fewgraft bench run icons --methods "
        "meta-inc-baseline,+pr,proposed-without-adaptation,proposed --settings incremental,s2i "
        "--shots 1 --episodes 600 --split val --seed 2 --out"
    )
    assert command in error.value.hint
    with pytest.raises(FewgraftError, match="there is no layout 'mian'"):
        build(results, "mian")


# --------------------------------------------------------------------------------------- formats

NASTY = Table(
    title=r"50 % of {a_b} & $c$ #1 ~ ^ \x | *y* [red]",
    columns=(Column("Method", numeric=False), Column("Acc", "5-way 1-shot"), Column("Δ", "x_y")),
    sections=(
        Section("S²I_1", ((Cell("a-1 | b_c"), Cell("70.00 ± 1.00", True, "↑↑"), Cell("-5.39")),)),
        Section("", ((Cell("[bold]b[/bold]"), Cell("–"), Cell("-0.10", False, "↓")),)),
    ),
    note="95 %",
)


def test_latex_is_escaped() -> None:
    text = latex(NASTY)
    assert (
        r"\caption{50 \% of \{a\_b\} \& \$c\$ \#1 \textasciitilde{} \textasciicircum{} "
        r"\textbackslash{}x | *y* {[}red]}" in text
    )
    assert r"a-1 | b\_c & \textbf{70.00 $\pm$ 1.00} $\upuparrows$ & $-$5.39 \\" in text
    assert r"{[}bold]b{[}/bold] & -- & $-$0.10 $\downarrow$ \\" in text
    assert r"\multicolumn{3}{l}{\emph{S$^2$I\_1}} \\" in text
    assert r"\cmidrule(lr){2-2} \cmidrule(lr){3-3}" in text
    assert r"\begin{tabular}{lll}" in text, "numbers with arrows begin in line"
    text.encode("ascii")


def test_markdown_is_escaped() -> None:
    text = markdown(NASTY)
    assert r"### 50 % of {a\_b} & $c$ #1 ~ ^ \\x \| \*y\* \[red\]" in text
    assert r"| a-1 \| b\_c | **70.00 ± 1.00** ↑↑ | -5.39 |" in text
    assert "| Method | 5-way 1-shot: Acc | x\\_y: Δ |" in text


def printed(table: Table, width: int = 160) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(terminal(table))
    return text.getvalue()


def test_a_terminal_shows_bold_as_a_star_and_keeps_digits_in_line() -> None:
    text = printed(NASTY)
    assert "[bold]b[/bold]" in text, "names are no markup"
    assert "(*: bold)" in text
    rows = [line for line in text.splitlines() if "-5.39" in line or "-0.10" in line]
    assert "70.00 ± 1.00*↑↑" in rows[0]
    assert rows[0].index("-5.39") == rows[1].index("-0.10")
    styled = Console(file=io.StringIO(), force_terminal=True, width=160, color_system="standard")
    styled.print(terminal(NASTY))
    assert "\x1b[1m70.00 ± 1.00\x1b[0m" in styled.file.getvalue()  # type: ignore[attr-defined]


# ----------------------------------------------------------------------------- hyper-parameters


@pytest.fixture
def tuned(add: Add, results: Results) -> Results:
    """One method with other hyper-parameters in one setting than in another, one without any."""
    add("+pr", flat(70), hyper={"steps": 3, "alpha": 0.5})
    add("+pr", flat(71), shots=5, hyper={"steps": 1, "alpha": 1.0})
    add("+pr", flat(72), "s2i-transductive", hyper={"steps": 4, "alpha": 0.5})
    add("+pr", flat(73), "s2i-transductive", shots=5, hyper={"steps": 1, "alpha": 1.0})
    add("+fixmatch", flat(60), hyper={"kind": "a_b", "lr": 3e-05})
    add("meta-inc-baseline", flat(50), "incremental")
    return results


HYPER = (
    "Meta-Inc-Baseline, 108+5-way 1-shot: none.",
    "Meta-Inc-Baseline + PR, 108+5-way 1-shot (S²I-FSL (transductive)): steps = 4, alpha = 0.5.",
    "Meta-Inc-Baseline + PR, 108+5-way 5-shot: steps = 1, alpha = 1.0.",
    "Meta-Inc-Baseline + FixMatch, 108+5-way 1-shot: kind = a_b, lr = 3e-05.",
    "Meta-Inc-Baseline + PR, 108+5-way 1-shot (S²I-FSL (semi-supervised)): steps = 3, alpha = 0.5.",
)


def test_hyper_parameters_stand_under_a_table(tuned: Results) -> None:
    silent, table = build(tuned), build(tuned, choice=Choice(hyper=True))
    narrow, said = footnoted(table)
    assert narrow == silent
    assert sorted(said) == sorted(HYPER)
    assert footnoted(silent) == (silent, [])
    assert all(line in printed(table) for line in HYPER)
    assert not any(line in printed(silent) for line in HYPER)


def test_hyper_parameters_in_every_format(tuned: Results) -> None:
    table = build(tuned, choice=Choice(hyper=True))
    listed = markdown(table).replace("\n  ", " ").splitlines()
    assert r"- Meta-Inc-Baseline + FixMatch, 108+5-way 1-shot: kind = a\_b, lr = 3e-05." in listed
    assert max(map(len, markdown(table).split("\n\n")[-1].splitlines())) <= 100
    assert r"108+5-way 1-shot: kind = a\_b, lr = 3e-05.\par}" in latex(table)
    header, *rows = csv.reader(io.StringIO(FORMATS["csv"](table)))
    place = header.index("108+5-way 1-shot hyper-parameters")
    found = {(row[0], row[1]): row[place] for row in rows}
    assert found["S²I-FSL (semi-supervised)", "Meta-Inc-Baseline + PR"] == "steps = 3, alpha = 0.5"
    assert found["S²I-FSL (transductive)", "Meta-Inc-Baseline + PR"] == "steps = 4, alpha = 0.5"
    assert found["S²I-FSL (transductive)", "Meta-Inc-Baseline + FixMatch"] == "–"


@pytest.mark.parametrize("layout", ["main", "detail", "ablation"])
def test_the_command_prints_hyper_parameters(tuned: Results, layout: str) -> None:
    words = ["bench", "table", str(tuned.folder), "--layout", layout, "--format", "markdown"]
    said = "Meta-Inc-Baseline + PR, 108+5-way 5-shot: steps = 1, alpha = 1.0."
    for extra, there in ((["--hyper"], True), ([], False)):
        found = CliRunner().invoke(app, [*words, *extra])
        assert found.exit_code == 0, found.output
        assert (said in found.output.replace("\n  ", " ")) is there


# ------------------------------------------------------------------------------------ a real run

RUN = ("meta-inc-baseline", "+graph", "+pr", "proposed-without-adaptation")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A few episodes of Icons in all settings but one."""
    folder = tmp_path_factory.mktemp("tables")
    results = Results(folder / "icons")
    results.folder.mkdir()
    settings = [name for name in SETTINGS if name != "transductive-fsl"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWGRAFT_HOME", str(folder / "home"))
        wanted = jobs(load_recipe("icons"), models_folder("icons"), RUN, settings, (1, 5), 12)
        list(run(wanted, results, Bench()))
    return results


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_of_a_run_hold_its_numbers(real: Results, layout: str) -> None:
    table = build(real, layout)
    record = {(row.title, row.setting, row.shots): row for row in real.rows()}
    keys = {"Acc": "acc", "Δ": "delta", "H": "harmonic"}
    checked = 0
    for section in table.sections:
        setting = {
            "Incremental FSL (inductive)": "incremental",
            "S²I-FSL (transductive)": "s2i-transductive",
            "FSL (inductive)": "fsl",
            "Semi-supervised FSL": "semi-fsl",
        }.get(section.title, "s2i")
        for cells in section.rows:
            for head, cell in zip(table.columns, cells, strict=True):
                if not head.numeric or cell.text == "–":
                    continue
                title, shots = cells[0].text, int(head.group[-6])
                own = "incremental" if title == "Meta-Inc-Baseline" and setting == "s2i" else ""
                row = record[title, own or setting, shots]
                value = row.interval(keys.get(head.name, head.name.replace("/", "_")))
                assert cell.text.split(" ±")[0] == f"{100 * value.mean:.2f}"
                checked += 1
    assert checked >= 8
    wide = 108 if layout != "regular" else 0
    assert all(c.group.startswith(f"{wide}+5-way" if wide else "5-way") for c in table.columns[4:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_csv_reads_back_as_plain_numbers(real: Results, layout: str) -> None:
    table = build(real, layout)
    header, *rows = csv.reader(io.StringIO(FORMATS["csv"](table)))
    assert len(set(header)) == len(header), "every column has a name of its own"
    assert len(rows) == sum(len(section.rows) for section in table.sections)
    cells = [row for section in table.sections for row in section.rows]
    for texts, made in zip(rows, cells, strict=True):
        read = dict(zip(header, texts, strict=True))
        assert read["Method"] == made[0].text
        for head, cell in zip(table.columns, made, strict=True):
            if head.numeric and cell.value:
                name = f"{head.group} {head.name}"
                assert float(read[name]) == pytest.approx(100 * cell.value.mean, abs=1e-4)
                assert float(read[f"{name} ±"]) == pytest.approx(100 * cell.value.half, abs=1e-4)
            elif head.numeric:
                assert read[f"{head.group} {head.name}"] == ""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_format_has_every_number_in_a_sound_frame(real: Results, layout: str) -> None:
    table = build(real, layout)
    texts = [cell.text for section in table.sections for row in section.rows for cell in row[1:]]
    numbers = [text.split()[0] for text in texts if re.match(r"-?\d", text)]
    tex, md = latex(table), markdown(table)
    narrow, said = without_constants(table)  # a column that says one thing is said in the note
    assert all(number in printed(table) and number in md for number in numbers)
    assert all(number.replace("-", "$-$") in tex for number in numbers)
    width = len(narrow.columns)
    body = [line for line in tex.splitlines() if line.endswith(r"\\") and "multicol" not in line]
    assert len(body) == 1 + sum(len(section.rows) for section in table.sections)
    assert all(len(re.findall(r"(?<!\\)&", line)) == width - 1 for line in body)
    assert tex.count("{") == tex.count("}")
    assert tex.count("$") % 2 == 0
    grid = [line for line in md.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in grid} == {len(narrow.columns) + 1}
    assert all(words in md.replace("\n", " ") for words in said)
    assert max(len(line) for line in md.splitlines() if line not in grid) <= 100


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="there is no TeX")
def test_tables_compile_and_fit_the_page(real: Results, tmp_path: Path) -> None:
    text = "".join(latex(build(real, layout, Choice(hyper=True))) for layout in LAYOUTS)
    text += latex(replace(NASTY, title="α and σ", note="† ‡ ±"))
    packages = r"\usepackage[utf8]{inputenc}\usepackage{adjustbox, amssymb, booktabs}"
    (tmp_path / "paper.tex").write_text(
        rf"\documentclass{{article}}{packages}\begin{{document}}{text}\end{{document}}"
    )
    words = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "multiply defined" not in done.stdout
    wide = re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide", done.stdout)
    assert [float(points) for points in wide if float(points) > 10] == []


def test_a_row_that_was_not_computed_widens_no_table() -> None:
    columns = (Column("Method", numeric=False), Column("Backbone", numeric=False), Column("Acc"))
    texts = [("a", "conv4", "50.0"), ("b", "–", "–")]
    rows = tuple(tuple(map(Cell, row)) for row in texts)
    narrow, said = without_constants(Table("t", columns, (Section("", rows),), ""))
    assert [column.name for column in narrow.columns] == ["Method", "Acc"]
    assert said == ["Backbone: conv4."]
    other = (*rows, tuple(map(Cell, ("c", "resnet12", "60.0"))))
    kept, _ = without_constants(Table("t", columns, (Section("", other),), ""))
    assert len(kept.columns) == 3


# --------------------------------------------------------------------------------------- compare


def test_compare_is_the_difference_episode_by_episode(real: Results) -> None:
    found = compare(real, "+pr:s2i:1", "meta-inc-baseline:incremental:1")
    a, b = (real.scores(entry.row) for entry in (found.a, found.b))
    for metric in ("acc", "delta", "b_all", "n_all"):
        plain = (getattr(a, metric) - getattr(b, metric)).numpy()
        difference = found.differences[metric].difference
        assert difference.mean == pytest.approx(plain.mean())
        assert difference.half == pytest.approx(1.96 * plain.std(ddof=1) / math.sqrt(12))
    pairs = list(zip(a.acc.tolist(), b.acc.tolist(), strict=True))
    wins, losses = sum(x > y for x, y in pairs), sum(x < y for x, y in pairs)
    counts = found.differences["acc"]
    assert (counts.wins, counts.ties, counts.losses) == (wins, 12 - wins - losses, losses)
    table = comparison_table(found)
    assert [row[0].text for row in table.sections[0].rows] == ["Acc", "Δ", "b/all", "n/all"]
    assert f"A wins {wins}, ties {12 - wins - losses} and loses {losses} episodes" in table.note
    by_id = compare(real, found.a.row.id, found.b.row.id[:8])
    assert by_id.differences == found.differences


def test_a_comparison_marks_what_is_clear(add: Add, results: Results) -> None:
    add("+pr", constant(60, 85, 73, 85))
    add("meta-inc-baseline", constant(65, 80, 73, 83), "incremental")
    rows = comparison_table(
        compare(results, "+pr:s2i:1", "meta-inc-baseline:incremental:1")
    ).sections[0].rows  # fmt: skip
    assert [(row[3].text, row[3].bold) for row in rows] == [
        ("0.00 ± 0.00", False),
        ("-1.00 ± 0.00", True),
        ("-5.00 ± 0.00", True),
        ("5.00 ± 0.00", True),
    ]


def test_rows_of_different_queries_are_not_compared(add: Add, results: Results) -> None:
    first = add("+pr", flat(70))
    others = {
        "seeds 0 and 1": add("+graph", flat(60), seed=1),
        "splits test and val": add("+graph", flat(60), split="val"),
        "numbers of episodes 4 and 5": add("+graph", flat(60, 5)),
        "numbers of classes 5 and 4": add("+graph", flat(60), ways=4),
        "numbers of queries 15 and 14": add("+graph", flat(60), queries=14),
        "numbers of base queries 75 and 0": add("meta-inc-baseline", flat(60), "fsl"),
        "shots 1 and 5": add("+graph", flat(60), shots=5),
        r"data sets icons \(c\) and other \(d\)": add(
            "+graph", flat(60), data="other", content="d"
        ),
    }
    for reason, row in others.items():
        with pytest.raises(FewgraftError, match=f"different {reason}\n"):
            compare(results, first.id, row.id)
    unlabelled_sets = add("+graph", flat(60), novel_share=0.2)
    assert compare(results, first.id, unlabelled_sets.id).differences["acc"].wins == 4, (
        "the same queries"
    )
    with pytest.raises(FewgraftError) as error:
        compare(results, "+pr:s2i:2", first.id)
    assert error.value.hint == "Did you mean '+pr:s2i:1'?"


# ------------------------------------------------------------------------------------ the command


@pytest.fixture
def command() -> Callable[..., str]:
    """What the two commands print; their errors are raised."""
    app = typer.Typer()
    app.command()(bench_tables.table)
    app.command()(bench_tables.compare)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if isinstance(result.exception, FewgraftError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_the_command_prints_and_writes(
    real: Results, command: Callable[..., str], tmp_path: Path
) -> None:
    folder = str(real.folder)
    assert "108+5-way 5-shot" in command("table", folder)
    assert "5-shot" not in command("table", folder, "--shots", "1")
    out = tmp_path / "detail.tex"
    options = ("--layout", "detail", "--setting", "s2i-transductive", "--shots", "1")
    assert f"wrote {out}" in command(
        "table", folder, *options, "--format", "latex", "--out", str(out)
    )
    choice = Choice(setting="s2i-transductive", shots=1)
    assert out.read_text() == latex(build(real, "detail", choice))
    everything = command("table", folder, "--layout", "all", "--format", "markdown")
    assert everything.count("###") == len(LAYOUTS)
    plain = tmp_path / "main.txt"
    command("table", folder, "--out", str(plain))
    assert "Acc" in plain.read_text()
    assert "\x1b" not in plain.read_text()
    assert "A − B" in command(
        "compare", "+pr:s2i:1", "meta-inc-baseline:incremental:1", "--in", folder
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("columns", [30, 80])
def test_a_narrow_terminal_breaks_names_not_numbers(
    real: Results,
    command: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = build(real, layout)
    texts = [cell.text for section in table.sections for row in section.rows for cell in row]
    shown = command("table", str(real.folder), "--layout", layout)
    assert "\x1b[" in shown, "a terminal"
    assert all(text in shown for text in texts if re.match(r"-?\d", text))


def test_all_leaves_out_what_has_no_rows(
    add: Add, results: Results, command: Callable[..., str]
) -> None:
    folder = str(results.folder)
    with pytest.raises(NoRowsError, match="has no rows"):
        command("table", folder, "--layout", "all")
    add("+pr", flat(70))
    shown = command("table", folder, "--layout", "all")
    assert "left out: regular has no rows yet. Make them: fewgraft bench run icons" in shown
    assert "left out: detail" in shown, "there are no rows of 5 shots"
    assert "Model adapt" in shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--format", "html"), "no format 'html'"),
        (("--format", "csv", "--layout", "all"), "one table"),
        (("--layout", "mian"), "no layout 'mian'"),
        (("--setting", "s2i"), "not for layout 'main'"),
        (("--out", "/dev/null/table.txt"), "cannot write"),
    ],
)
def test_what_cannot_be_done_is_told(
    real: Results, command: Callable[..., str], options: tuple[str, ...], says: str
) -> None:
    with pytest.raises(FewgraftError, match=says):
        command("table", str(real.folder), *options)


def test_made_rows_are_as_the_runner_makes_them(real: Results, add: Add) -> None:
    """The hand-made rows above are worth something only if they look like real ones."""
    made = add("+pr", flat(70))
    there = next(row for row in real.rows() if (row.method, row.setting) == ("+pr", "s2i"))
    assert made.episode_settings == there.episode_settings
    assert set(made.metrics) == set(there.metrics) == set(METRICS)


def test_a_remark_on_a_method_is_a_footnote(add: Add, results: Results) -> None:
    add("nearest-prototype", flat(50), "incremental")
    assert "†" not in build(results).note
    add("lcwof", flat(51), "incremental")
    table = build(results)
    assert set(lines(table)) == {"Imprint", "LCwoF (heads) †"}
    assert "; † LCwoF (heads) sees one stored picture per base class" in table.note


def test_methods_that_assume_balance_are_marked(add: Add, results: Results) -> None:
    add("soft-k-means", flat(50), "semi-fsl")
    assert "‡" not in build(results, "regular").note
    add("pt-map", flat(51), "semi-fsl")
    table = build(results, "regular")
    assert set(lines(table)) == {"Soft k-means", "PT-MAP ‡"}
    assert "; ‡ assumes equally many unlabelled pictures of each class" in table.note
