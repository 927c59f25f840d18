"""Sessions in the layout of the field's tables, published rows beside them, and as a figure."""

import json
from collections.abc import Sequence
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewgraft.bench.ratio import COLOURS, MARKERS
from fewgraft.bench.session_runner import SessionResults, SessionRow
from fewgraft.bench.tables import MISSING, Cell, Column, Section, Table
from fewgraft.data.splits import EMBEDDED
from fewgraft.methods import methods
from fewgraft.metrics import Interval, paired
from fewgraft.session_features import BASES
from fewgraft.sessions import SessionSettings

PUBLISHED = "Published: other networks, one draw, epochs chosen on test pictures"
NAMES = {
    "acc": "accuracy over all classes seen",
    "base": "accuracy of base classes among all seen",
    "novel": "accuracy of novel classes among all seen",
    "newest": "accuracy of the session's own classes among all seen",
    "harmonic": "harmonic mean of base and novel accuracy",
}
MOST_BANDS = 6  # more hide each other


@cache
def published_sessions(data: str) -> dict[str, list[float]]:
    """{method: A_0 … A_T in percent} as papers and their code have it; empty for other data."""
    path = EMBEDDED / "published-sessions.json"
    return dict(json.loads(path.read_text()).get(data, {}))


def title_of(row: SessionRow) -> str:
    """As tables print it, with all that is not as usual.

    That is what base classes begin with where it is not W_b, a method that uses unlabelled sets and
    has none, and whether such sets refine classes of earlier sessions.
    """
    has_u = row.session_settings["unlabelled"] > 0
    spec = methods().get(row.method)  # None: of a file
    wants_u = spec is None or spec.method.uses_unlabelled
    earlier = row.hyper.get("earlier", 0)
    remarks = (
        (row.base != BASES[0], "base class means"),
        (wants_u and not has_u, "no U"),
        (has_u and bool(earlier), f"earlier refined ({earlier})"),
    )
    return ", ".join([row.title, *(text for holds, text in remarks if holds)])


def session_table(
    results: SessionResults, rows: Sequence[SessionRow], metric: str = "acc"
) -> Table:
    """Rows on the same draws: a metric after each session and, for accuracy, the usual sums.

    What is bold has the best average; others that differ from it by less than their paired interval
    are bold, too.
    """
    first = rows[0]
    settings, last = SessionSettings(**first.session_settings), len(first.sessions["acc"])
    columns = [Column("", numeric=False), *(Column(str(t)) for t in range(last))]
    sums = metric == "acc"
    if sums:
        columns += [Column("average"), Column("drop"), Column(f"− {title_of(first)}")]
    best = max(rows, key=lambda row: row.over("average").mean)
    lines = []
    for row in rows:
        cells = [Cell(title_of(row)), *(_cell(one) for one in row.after(metric))]
        if sums:
            level = _as_good(results, row, best)
            cells.append(Cell(str(row.over("average")), bold=level, value=row.over("average")))
            cells.append(Cell(str(row.over("drop")), value=row.over("drop")))
            cells.append(_difference(results, row, first))
        lines.append(tuple(cells))
    sections = [Section("", tuple(lines))]
    published = published_sessions(first.data) if sums and _is_published(settings) else {}
    if published:
        sections.append(Section(PUBLISHED, tuple(_published(published))))
    note = (
        f"%, {first.draws} draws: {settings}. Intervals are over draws, not over trainings; drop "
        "is the first accuracy minus the last; the last column is a paired difference of averages."
    )
    title = f"{first.data}, {NAMES[metric]} after each session"
    return Table(title, tuple(columns), tuple(sections), note)


def _cell(value: Interval) -> Cell:
    text = MISSING if value.mean != value.mean else f"{100 * value.mean:.2f}"
    return Cell(text, value=value)


def _as_good(results: SessionResults, row: SessionRow, best: SessionRow) -> bool:
    a, b = (results.scores(one).average for one in (row, best))
    return row.id == best.id or not paired(a, b).difference.excludes_zero


def _difference(results: SessionResults, row: SessionRow, first: SessionRow) -> Cell:
    if row.id == first.id:
        return Cell(MISSING)
    found = paired(results.scores(row).average, results.scores(first).average).difference
    return Cell(str(found), value=found)


def _is_published(settings: SessionSettings) -> bool:
    shape = (settings.sessions, settings.ways, settings.shots, settings.split, settings.order)
    return shape == (8, 5, 5, "test", "fixed")


def _published(rows: dict[str, list[float]]) -> list[tuple[Cell, ...]]:
    lines = []
    for name, values in rows.items():
        sums = (sum(values) / len(values), values[0] - values[-1])
        cells = [Cell(f"{value:.2f}") for value in (*values, *sums)]
        lines.append((Cell(name), *cells, Cell(MISSING)))
    return lines


def draw_sessions_figure(rows: Sequence[SessionRow]) -> Figure:
    """Accuracy over all classes, and of base and novel ones, after each session; 95 % bands."""
    figure = Figure(figsize=(10.8, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, row in enumerate(rows):
        bands = len(rows) <= MOST_BANDS
        _line(left, row, "acc", number, "-", title_of(row), bands=bands)
        _line(right, row, "base", number, "-", "", bands=bands)
        _line(right, row, "novel", number, "--", "", bands=bands)
    left.set_ylabel("accuracy, %")
    for axes, title in ((left, "all classes seen"), (right, "base (—) and novel (- -) classes")):
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("session")
        axes.set_xticks(range(len(rows[0].sessions["acc"])))
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(3, len(rows)), frameon=False)
    return figure


def _line(
    axes: Axes, row: SessionRow, metric: str, number: int, style: str, label: str, *, bands: bool
) -> None:
    points = [(t, one) for t, one in enumerate(row.after(metric)) if one.mean == one.mean]
    places, colour = [t for t, _ in points], COLOURS[number % len(COLOURS)]
    means = [100 * one.mean for _, one in points]
    halves = [100 * one.half for _, one in points]
    marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
    axes.plot(
        places,
        means,
        color=colour,
        marker=marker,
        markersize=4,
        linestyle=style,
        label=label or "_",
    )
    if bands and row.draws > 1:
        low = [m - h for m, h in zip(means, halves, strict=True)]
        high = [m + h for m, h in zip(means, halves, strict=True)]
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def described(rows: Sequence[SessionRow]) -> str:
    """The figure in a sentence."""
    settings = SessionSettings(**rows[0].session_settings)
    ends = ", ".join(
        f"{title_of(row)} {row.after('acc')[0]} to {row.after('acc')[-1]}" for row in rows
    )
    return (
        f"Accuracy over all classes seen so far, after each session, on {rows[0].data}; "
        f"{rows[0].draws} draws: {settings}; bands are 95 % intervals over draws. From session 0 "
        f"to the last: {ends}."
    )
