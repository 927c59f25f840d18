"""Results in the layouts of the paper's tables, as plain data that four formats print.

Rows of one table are answers to the same queries (`chosen_rows`), so that two are compared episode
by episode. What is bold, and what has an arrow, is decided by these paired differences and not by
intervals side by side.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fewgraft.bench.chosen_rows import (
    Choice,
    ChosenRows,
    Entry,
    choose_rows,
    mixed_models,
    no_rows,
)
from fewgraft.bench.results import Results, Row
from fewgraft.episodes import SETTINGS
from fewgraft.errors import FewgraftError, nearest
from fewgraft.methods import methods
from fewgraft.metrics import NAMES, Interval, interval, paired

MISSING = "–"
DAGGER, BALANCED = "†", "‡"
BASELINE = ("meta-inc-baseline", "incremental")
MAIN = {
    "incremental": "Incremental FSL (inductive)",
    "s2i-transductive": "S²I-FSL (transductive)",
    "s2i": "S²I-FSL (semi-supervised)",
}
REGULAR = {
    "fsl": "FSL (inductive)",
    "transductive-fsl": "Transductive FSL",
    "semi-fsl": "Semi-supervised FSL",
}
# Each row has one component more than the row before; ours has another form of the last one.
ABLATION = (BASELINE, *((m, "s2i") for m in ("+pr", "proposed-without-adaptation", "proposed")))
OURS = ("distilled-adaptation", "s2i")
COMPONENTS = ("Proto refine", "Fake unlabelled", "Model adapt")


@dataclass(frozen=True)
class Column:
    """A column; neighbours of the same group share a line above their names."""

    name: str
    group: str = ""
    numeric: bool = True
    aside: bool = False  # said under the table; a column in CSV only


@dataclass(frozen=True)
class Cell:
    """What stands in a place of a table."""

    text: str
    bold: bool = False
    mark: str = ""  # an arrow behind the text
    value: Interval | None = None  # the number itself, as a share


@dataclass(frozen=True)
class Section:
    """Rows that compete with each other."""

    title: str
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Table:
    """A table before it is printed."""

    title: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    note: str


def _clear_best(entries: Iterable[Entry | None], metric: str) -> Entry | None:
    """The best entry, if it is better than every other one beyond its paired interval."""
    there = [entry for entry in entries if entry]
    if len(there) < 2:  # nothing to be better than
        return None
    best = max(there, key=lambda entry: entry.merit(metric).mean().item())
    others = [entry for entry in there if entry is not best]
    clear = all(
        paired(best.merit(metric), other.merit(metric)).difference.excludes_zero for other in others
    )
    return best if clear else None


def _arrow(entry: Entry, baseline: Entry | None, metric: str) -> str:
    """Whether a metric is better or worse than the baseline's, where that is clear."""
    if not baseline:
        return ""
    difference = paired(entry.merit(metric), baseline.merit(metric)).difference
    if not difference.excludes_zero:
        return ""
    return ("↑" if difference.mean > 0 else "↓") * (2 if abs(difference.mean) > 0.01 else 1)


def number_text(value: Interval, *, half: bool) -> str:
    """In percent; the interval is printed where the paper does."""
    if math.isnan(value.mean):
        return MISSING
    return str(value) if half else f"{100 * value.mean:z.2f}"


def _cell(entry: Entry | None, metric: str, *, bold: bool, mark: str) -> Cell:
    if not entry:
        return Cell(MISSING)
    value, acc = entry.row.interval(metric), metric == "acc"
    text = number_text(value, half=acc)
    if acc and entry.runs > 1:
        text += f" ({100 * interval(entry.scores.acc).half:.2f})"
    return Cell(text, bold, mark, value)


def _column(
    entries: Sequence[Entry | None], metric: str, baseline: Entry | None = None
) -> list[Cell]:
    """A metric of the entries of one section."""
    best = _clear_best(entries, metric)
    return [
        _cell(
            entry,
            metric,
            bold=entry is not None and entry is best,
            mark=_arrow(entry, baseline, metric) if entry else "",
        )
        for entry in entries
    ]


@dataclass(frozen=True)
class _Line:
    """A line of a table before its numbers are cells."""

    labels: tuple[str, ...]
    entries: Mapping[int, Entry]  # by shots


def title_of(method: str, rows: Iterable[Row] = ()) -> str:
    """How tables name a method; one that is not in the registry, as its `rows` say."""
    spec = methods().get(method)
    return spec.title if spec else next((row.title for row in rows), method)


def _marked_title(method: str, rows: Iterable[Row]) -> str:
    """The same, with a dagger where a footnote has a remark, and two where balance is assumed."""
    marks = [DAGGER] if _remark_of(method) else []
    marks += [BALANCED] if _assumes_balance(method) else []
    return " ".join([title_of(method, rows), *marks])


def _assumes_balance(method: str) -> bool:
    spec = methods().get(method)
    return spec is not None and spec.balanced


def _remark_of(method: str) -> str:
    spec = methods().get(method)
    return spec.remark if spec else ""


def _remarks(rows: Sequence[Row]) -> str:
    """What must be known of methods with daggers."""
    known = dict.fromkeys(row.method for row in rows)
    remarks = [
        f"{DAGGER} {title_of(method)} {_remark_of(method)}"
        for method in known
        if _remark_of(method)
    ]
    if any(map(_assumes_balance, known)):
        remarks.append(f"{BALANCED} assumes equally many unlabelled pictures of each class")
    return "; ".join(remarks)


def _named_lines(chosen: ChosenRows, setting: str) -> list[_Line]:
    """One line per method, with its backbone."""
    lines = []
    for method in chosen.methods(setting):
        entries = chosen.by_shots(method, setting)
        backbones = dict.fromkeys(entry.row.backbone for entry in entries.values())
        title = _marked_title(method, (entry.row for entry in entries.values()))
        lines.append(_Line((title, ", ".join(backbones) or MISSING), entries))
    return lines


def hyper_text(entry: Entry | None) -> str:
    """All hyper-parameters of a row, by name."""
    if not entry:
        return MISSING
    return ", ".join(f"{name} = {value}" for name, value in entry.row.hyper.items()) or "none"


def _section(
    title: str,
    lines: Sequence[_Line],
    chosen: ChosenRows,
    metrics: Sequence[str],
    baseline: Mapping[int, Entry],
) -> Section:
    columns = [
        _column([line.entries.get(k) for line in lines], metric, baseline.get(k))
        for k in chosen.shots
        for metric in metrics
    ]
    if chosen.hyper:
        columns += [[Cell(hyper_text(line.entries.get(k))) for line in lines] for k in chosen.shots]
    numbers = zip(*columns, strict=True)
    return Section(
        title,
        tuple(
            (*map(Cell, line.labels), *cells) for line, cells in zip(lines, numbers, strict=True)
        ),
    )


def _assemble(
    title: str,
    labels: Sequence[str],
    sections: Mapping[str, Sequence[_Line]],
    chosen: ChosenRows,
    metrics: Sequence[str],
    remark: str = "",
    baseline: Mapping[int, Entry] | None = None,
) -> Table:
    """Sections without lines are left out."""
    head = {row.shots: _episode_name(row) for row in chosen.rows}
    return Table(
        f"{title} on {chosen.rows[0].data}, %",
        (
            *(Column(label, numeric=False) for label in labels),
            *(Column(NAMES[metric], head[k]) for k in chosen.shots for metric in metrics),
            *(_hyper_column(head[k]) for k in chosen.shots if chosen.hyper),
        ),
        tuple(
            _section(name, lines, chosen, metrics, baseline or {})
            for name, lines in sections.items()
            if lines
        ),
        _note(chosen, remark),
    )


def _hyper_column(group: str) -> Column:
    return Column("hyper-parameters", group, numeric=False, aside=True)


def _episode_name(row: Row) -> str:
    """Such as 64+5-way 1-shot."""
    return f"{f'{row.n_base}+' if row.n_base else ''}{row.ways}-way {row.shots}-shot"


def _note(chosen: ChosenRows, remark: str) -> str:
    rows = chosen.rows
    first = rows[0]
    seed = f", seed {first.episode_settings['seed']}"
    parts = [
        f"{first.data}, {f'{chosen.runs} of ' if chosen.runs else ''}{first.episodes} "
        f"{first.split} episodes{'' if chosen.runs else seed}",
        "± standard deviation over runs, in brackets half the 95 % interval over all episodes"
        if chosen.runs
        else "± 95 % interval over episodes",
        "bold: the paired interval against every other row of its section excludes 0",
        remark,
        _remarks(rows),
        f"tuned hyper-parameters: recipe {', '.join(dict.fromkeys(row.recipe for row in rows))}",
        "" if chosen.runs else mixed_models(rows),
    ]
    return "; ".join(part for part in parts if part) + "."


def _by_setting(
    results: Results,
    choice: Choice,
    title: str,
    sections: Mapping[str, str],
    metrics: Sequence[str],
) -> Table:
    command = f"--settings {','.join(sections)}"
    chosen = choose_rows(results, choice, lambda row: row.setting in sections, command)
    lines = {name: _named_lines(chosen, setting) for setting, name in sections.items()}
    return _assemble(title, ("Method", "Backbone"), lines, chosen, metrics)


def main_table(results: Results, choice: Choice) -> Table:
    """The paper's Tables 1 and 2: joint accuracy and Δ."""
    title = "Incremental FSL and S²I-FSL"
    return _by_setting(results, choice, title, MAIN, ("acc", "delta"))


def regular_table(results: Results, choice: Choice) -> Table:
    """The paper's Table 4: accuracy where there are no base classes."""
    title = "Regular, transductive and semi-supervised FSL"
    return _by_setting(results, choice, title, REGULAR, ("acc",))


def detailed_table(results: Results, choice: Choice) -> Table:
    """The paper's Table 3: all metrics of one setting, with arrows against the baseline."""
    choice = replace(choice, shots=choice.shots or 5)
    setting = choice.setting
    if setting not in MAIN:
        problem = "has no base classes" if setting in SETTINGS else "is no setting"
        raise FewgraftError(f"'{setting}' {problem}", f"Known here: {', '.join(MAIN)}")
    command = f"--settings {','.join(dict.fromkeys((BASELINE[1], setting)))}"
    chosen = choose_rows(
        results,
        choice,
        lambda row: row.setting == setting or (row.method, row.setting) == BASELINE,
        command,
    )
    if not chosen.methods(setting):  # a baseline alone is no table
        raise no_rows(results, choice, command)
    baseline = chosen.by_shots(*BASELINE)
    lines = [_Line(line.labels[:1], line.entries) for line in _named_lines(chosen, setting)]
    if setting != BASELINE[1]:
        lines.insert(0, _Line((title_of(BASELINE[0]),), baseline))
    remark = (
        f"↑ ↓: better or worse than {title_of(BASELINE[0])} (inductive), the paired interval "
        "excludes 0; ↑↑ ↓↓: and by more than 1 point; H: harmonic mean of b/all and n/all"
    )
    title, metrics = f"{MAIN[setting]} in detail", tuple(NAMES)
    return _assemble(title, ("Method",), {"": lines}, chosen, metrics, remark, baseline)


def ablation_table(results: Results, choice: Choice) -> Table:
    """The paper's Table 5: one component after the other."""
    names = ",".join(method for method, _ in ABLATION)
    command = f"--methods {names} --settings incremental,s2i"
    wanted = (*ABLATION, OURS)
    chosen = choose_rows(results, choice, lambda row: (row.method, row.setting) in wanted, command)
    lines = [
        _Line(
            (title_of(method), *("✓" if place < parts else "" for place in range(len(COMPONENTS)))),
            chosen.by_shots(method, setting),
        )
        for parts, (method, setting) in enumerate(wanted)
        if (method, setting) != OURS or chosen.by_shots(*OURS)
    ]
    labels = ("Method", *COMPONENTS)
    title, metrics = f"{MAIN['s2i']}, one component after the other", ("acc", "delta", "n_n")
    return _assemble(title, labels, {"": lines}, chosen, metrics)


LAYOUTS: Mapping[str, Callable[[Results, Choice], Table]] = {
    "main": main_table,
    "detail": detailed_table,
    "regular": regular_table,
    "ablation": ablation_table,
}


def build(results: Results, layout: str = "main", choice: Choice | None = None) -> Table:
    """A table of a folder of results, in one of the layouts."""
    if layout not in LAYOUTS:
        raise FewgraftError(f"there is no layout '{layout}'", nearest(layout, LAYOUTS))
    return LAYOUTS[layout](results, choice or Choice())
