"""Two rows against each other, episode by episode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fewgraft.bench.chosen_rows import (
    FACTS,
    SHOTS,
    Entry,
    different_values,
    refuse_several_runs,
)
from fewgraft.bench.results import Results, Row
from fewgraft.bench.tables import Cell, Column, Section, Table, number_text, title_of
from fewgraft.errors import FewgraftError, nearest
from fewgraft.metrics import NAMES, Interval, Paired, interval, paired


@dataclass(frozen=True)
class Comparison:
    """Two rows on the same queries: A − B by metric."""

    a: Entry
    b: Entry
    differences: Mapping[str, Paired]


def row_name(row: Row) -> str:
    """How a person names a row, such as +pr:s2i:1, or +pr:s2i:1:3 with three views."""
    views = f":{row.views}" if row.views > 1 else ""
    return f"{row.method}:{row.setting}:{row.shots}{views}"


def find_row(results: Results, name: str, seed: int | None = None) -> Row:
    """A row by its id, or the last one of that method:setting:shots, of this seed if given.

    A fourth part is the number of views where it is above 1.
    """
    if ":" not in name:
        return results.row(name)
    rows: dict[str, list[Row]] = {}
    for row in results.rows():
        if seed is None or row.episode_settings["seed"] == seed:
            rows.setdefault(row_name(row), []).append(row)
    if name not in rows:
        raise FewgraftError(f"there is no row '{name}' in {results.folder}", nearest(name, rows))
    try:
        refuse_several_runs(rows[name])
    except FewgraftError as error:
        ids = ", ".join(row.id for row in rows[name])
        raise FewgraftError(
            f"'{name}': {error.problem}", f"Choose one with --seed, or by its id: {ids}"
        ) from None
    return rows[name][-1]


def compare(
    results: Results,
    a: str,
    b: str,
    seed: int | None = None,
    metrics: Sequence[str] = ("acc", "delta", "b_all", "n_all"),
) -> Comparison:
    """A − B episode by episode, for rows of the same queries; their settings may differ."""
    pair = [find_row(results, name, seed) for name in (a, b)]
    different = [
        f"{fact.name} {' and '.join(map(str, values))}"
        for fact in (*FACTS, SHOTS)
        if len(values := different_values(fact, pair)) > 1
    ]
    if different:
        raise FewgraftError(
            f"{a} and {b} cannot be compared episode by episode: different {', '.join(different)}",
            f"Run both with the same options, or name other rows by their ids in {results.folder}.",
        )
    one, other = (Entry(row, results.scores(row)) for row in pair)
    found = {m: paired(getattr(one.scores, m), getattr(other.scores, m)) for m in metrics}
    return Comparison(one, other, found)


def comparison_table(comparison: Comparison) -> Table:
    """A metric a line; without base classes only Acc has numbers."""
    first, counts = comparison.a.row, comparison.differences["acc"]
    sides = {"A": comparison.a, "B": comparison.b}
    names = [
        f"{side}: {row_name(entry.row)} ({entry.row.id}), {title_of(entry.row.method, [entry.row])}"
        for side, entry in sides.items()
    ]

    def line(metric: str, difference: Interval) -> tuple[Cell, ...]:
        values = [interval(getattr(entry.scores, metric)) for entry in sides.values()]
        return (
            Cell(NAMES[metric]),
            *(Cell(number_text(value, half=True), value=value) for value in values),
            Cell(number_text(difference, half=True), difference.excludes_zero, "", difference),
        )

    return Table(
        f"A − B on the same {first.episodes} {first.split} episodes of {first.data}, "
        f"seed {first.episode_settings['seed']}, %",
        (Column("", numeric=False), Column("A"), Column("B"), Column("A − B")),
        (
            Section(
                "", tuple(line(m, found.difference) for m, found in comparison.differences.items())
            ),
        ),
        "\n".join(names) + f"\nAcc: A wins {counts.wins}, ties {counts.ties} and loses "
        f"{counts.losses} episodes; ± 95 % interval over episodes; bold: the paired interval "
        "excludes 0.",
    )
