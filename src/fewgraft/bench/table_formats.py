"""Tables as text: for a terminal, Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from itertools import chain, groupby
from typing import TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from fewgraft.bench.tables import MISSING, Cell, Column, Table

T = TypeVar("T")
LINE = 100  # characters in a line of Markdown


def footnoted(shown: Table) -> tuple[Table, list[str]]:
    """Columns that stand aside become lines under the table, what rows share said once."""
    names = {place: column.group for place, column in enumerate(shown.columns) if column.aside}
    said: dict[tuple[str, str], dict[str, list[str]]] = {}  # (row, group) → text → sections
    for section in shown.sections:
        for row in section.rows:
            for place, group in names.items():
                if row[place].text != MISSING:
                    texts = said.setdefault((row[0].text, group), {})
                    texts.setdefault(row[place].text, []).append(section.title)
    lines = []
    for (name, group), texts in said.items():
        for text, sections in texts.items():
            where = f" ({', '.join(sections)})" if len(texts) > 1 else ""
            lines.append(f"{name}, {group}{where}: {text}.")
    return _without(shown, names), lines


def without_constants(shown: Table) -> tuple[Table, list[str]]:
    """Columns of labels that are the same in every row are said once: screens are narrow.

    A row that was not computed has no label and makes no difference.
    """
    rows = [row for section in shown.sections for row in section.rows]
    labels = {
        place: {row[place].text for row in rows} - {MISSING}
        for place, column in enumerate(shown.columns)
        if place and not column.numeric
    }
    constant = {place: texts.pop() for place, texts in labels.items() if len(texts) == 1}
    said = [f"{shown.columns[place].name}: {text}." for place, text in constant.items()]
    return _without(shown, constant), said


def _without(shown: Table, places: Container[int]) -> Table:
    """A table that lacks some columns."""

    def kept(row: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(value for place, value in enumerate(row) if place not in places)

    sections = tuple(replace(s, rows=tuple(map(kept, s.rows))) for s in shown.sections)
    return replace(shown, columns=kept(shown.columns), sections=sections)


def terminal(table: Table) -> RenderableType:
    """For a terminal; a star beside bold, for where bold cannot be seen."""
    table, footnotes = footnoted(table)
    table, said = without_constants(table)
    shown = RichTable(box=box.SIMPLE, padding=(0, 1, 0, 0))
    rows = [row for section in table.sections for row in section.rows]
    digits = [
        max(map(len, [column.name, *(row[place].text for row in rows)]))
        for place, column in enumerate(table.columns)
    ]
    for place, (column, heading) in enumerate(zip(table.columns, _headings(table), strict=True)):
        name = column.name.rjust(digits[place]) if column.numeric else column.name
        behind = 1 + max((len(row[place].mark) for row in rows), default=0)
        shown.add_column(
            Text(f"{heading}\n{name}" if _grouped(table) else name),
            # In a narrow terminal names break, and numbers do not.
            width=max(len(heading), digits[place] + behind) if column.numeric else None,
            overflow="fold",
        )
    for section in table.sections:
        if section.title:
            shown.add_row(Text(section.title, style="italic"))
        for row in section.rows:
            shown.add_row(*map(_shown, row, table.columns, digits))
        shown.add_section()
    starred = any(cell.bold for row in rows for cell in row)
    note = " ".join([table.note + (" (*: bold)" if starred else ""), *said])
    notes = [Text(line, style="dim") for line in (note, *footnotes)]
    return Group(Text(table.title, style="italic"), shown, *notes, "")


def _shown(cell: Cell, column: Column, digits: int) -> Text:
    """Stars and arrows stand behind the digits, so that these stay in line."""
    if not column.numeric:
        return Text(cell.text)
    behind = ("*" if cell.bold else " ") + cell.mark
    return Text.assemble((cell.text.rjust(digits), "bold" if cell.bold else ""), behind)


def _headings(table: Table) -> list[str]:
    """What stands above each column: the name of a group above its first one."""
    groups = [column.group for column in table.columns]
    pairs = zip(["", *groups], groups, strict=False)
    return ["" if group == before else group for before, group in pairs]


def _grouped(table: Table) -> bool:
    return any(column.group for column in table.columns)


def markdown(table: Table) -> str:
    """For GitHub and the like; the note is broken into lines as the pages in docs/ are."""
    table, footnotes = footnoted(table)
    table, said = without_constants(table)

    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    pairs = zip(_headings(table), table.columns, strict=True)
    names = [f"{heading}: {column.name}" if heading else column.name for heading, column in pairs]
    lines = [
        f"### {_in_markdown(table.title)}",
        "",
        line(map(_in_markdown, names)),
        line("--:" if column.numeric else ":--" for column in table.columns),
    ]
    for section in table.sections:
        if section.title:
            blank = [""] * (len(table.columns) - 1)
            lines.append(line([f"*{_in_markdown(section.title)}*", *blank]))
        lines += [line(map(_markdown_cell, row)) for row in section.rows]
    note = textwrap.fill(_in_markdown(" ".join([table.note, *said])), LINE)
    listed = [
        textwrap.fill(f"- {_in_markdown(footnote)}", LINE, subsequent_indent="  ")
        for footnote in footnotes
    ]
    return "\n".join([*lines, "", note, *([""] if listed else []), *listed, ""])


def _markdown_cell(cell: Cell) -> str:
    text = _in_markdown(cell.text)
    return " ".join(filter(None, (f"**{text}**" if cell.bold else text, cell.mark)))


def _in_markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "[": "{[}",  # after the \\ of the line before it would be an option
    "↑↑": r"$\upuparrows$",
    "↓↓": r"$\downdownarrows$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "α": r"$\alpha$",
    "σ": r"$\sigma$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "²": r"$^2$",
    "✓": r"$\checkmark$",
    "–": "--",
    "−": "$-$",
}
_LATEX_PATTERN = re.compile("|".join(map(re.escape, _LATEX)))


def _in_latex(text: str) -> str:
    """Escaped; a hyphen before a number is a minus sign."""
    signed = re.sub(r"(?<![\w-])-(?=\d)", "−", text)
    return _LATEX_PATTERN.sub(lambda found: _LATEX[found[0]], signed)


def latex(table: Table) -> str:
    """For a paper, with booktabs; a wide one is scaled down to the width of the text."""
    table, footnotes = footnoted(table)
    table, said = without_constants(table)
    lines = [
        r"% \usepackage{adjustbox, amssymb, booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_in_latex(table.title)}}}",
        rf"\label{{tab:{_slug(table.title)}}}",
        r"\begin{adjustbox}{max width=\textwidth}",
        rf"\begin{{tabular}}{{{_latex_alignment(table)}}}",
        r"\toprule",
        *_latex_groups(table),
        _latex_line(_in_latex(column.name) for column in table.columns),
    ]
    for section in table.sections:
        lines.append(r"\midrule")
        if section.title:
            wide = f"{{{len(table.columns)}}}{{l}}"
            lines.append(rf"\multicolumn{wide}{{\emph{{{_in_latex(section.title)}}}}} \\")
        lines += [_latex_line(map(_latex_cell, row)) for row in section.rows]
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
        *(
            rf"\par\smallskip{{\footnotesize {_in_latex(line)}\par}}"
            for line in (" ".join([table.note, *said]), *footnotes)
        ),
        r"\end{table}",
    ]
    return "\n".join([*lines, ""])


def _slug(title: str) -> str:
    """What \\ref calls a table: its title in letters, digits and hyphens."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return "-".join(re.findall(r"[a-z0-9]+", plain))


def _latex_alignment(table: Table) -> str:
    """Numbers to the right, but to the left where arrows stand behind them."""
    rows = [row for section in table.sections for row in section.rows]
    marked = [any(row[place].mark for row in rows) for place in range(len(table.columns))]
    pairs = zip(table.columns, marked, strict=True)
    return "".join("r" if column.numeric and not arrows else "l" for column, arrows in pairs)


def _latex_line(texts: Iterable[str]) -> str:
    return rf"{' & '.join(texts)} \\"


def _latex_groups(table: Table) -> list[str]:
    """The line above the names, and rules under its groups."""
    if not _grouped(table):
        return []
    texts, rules, first = [], [], 1
    for group, columns in groupby(table.columns, lambda column: column.group):
        width = len(list(columns))
        texts.append(rf"\multicolumn{{{width}}}{{c}}{{{_in_latex(group)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}" if group else "")
        first += width
    return [_latex_line(texts), " ".join(filter(None, rules))]


def _latex_cell(cell: Cell) -> str:
    text = _in_latex(cell.text)
    return " ".join(
        filter(None, (rf"\textbf{{{text}}}" if cell.bold else text, _in_latex(cell.mark)))
    )


def comma_separated(table: Table) -> str:
    """For a program: one header row, plain numbers in percent, an interval beside each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["Section", *(name for c in table.columns for name in _csv_names(c))])
    for section in table.sections:
        for row in section.rows:
            values = map(_csv_values, row, table.columns)
            writer.writerow([section.title or table.title, *chain.from_iterable(values)])
    return text.getvalue()


def _csv_names(column: Column) -> list[str]:
    name = f"{column.group} {column.name}".strip()
    return [name, f"{name} ±"] if column.numeric else [name]


def _csv_values(cell: Cell, column: Column) -> list[str]:
    if not column.numeric:
        return [cell.text]
    if not cell.value or math.isnan(cell.value.mean):
        return ["", ""]
    return [f"{100 * number:z.4f}" for number in (cell.value.mean, cell.value.half)]


# Besides `terminal`, whose result is no text.
FORMATS: Mapping[str, Callable[[Table], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
