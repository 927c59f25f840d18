"""Photos as people name them: a photo, a folder, class folders, or a table of paths and labels.

A table is CSV as any program writes it: columns `path` and `label` in any order, or two columns
without a header; commas, semicolons or tabs; paths that are absolute or begin at the table's
folder. Whatever is wrong in it is told with its line.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fewgraft.data.sources.folder import list_classes, list_files
from fewgraft.errors import FewgraftError, reading
from fewgraft.parsing import read_whole

TABLES = (".csv", ".tsv", ".txt")
DELIMITERS = (",", ";", "\t")
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # C:/ is none
HELP = "A table has the columns path and label, or two columns without a header: a.jpg,cat"
DOWNLOAD = "Download it yourself, and give its path on this disk."
IN_UTF8 = "Save it as CSV in UTF-8."


@dataclass(frozen=True)
class ListedPhoto:
    """A photo of a table."""

    line: int
    path: Path
    label: str


def labelled_photos(path: Path, at_least: int = 1) -> dict[str, list[Path]]:
    """{class name: photos} of class folders or of a table."""
    refuse_addresses(path)
    if not _is_table(path):
        return list_classes(path, at_least)
    classes: dict[str, list[Path]] = defaultdict(list)
    for row in _rows(path, labelled=True):
        classes[row.label].append(row.path)
    if len(classes) < at_least:
        raise FewgraftError(
            f"{path} names photos of {len(classes)} classes; at least {at_least} "
            f"{'is' if at_least == 1 else 'are'} needed",
            HELP,
        )
    return dict(sorted(classes.items()))


def unlabelled_photos(path: Path) -> list[Path]:
    """A photo itself, all files of a folder, or those that a table or a list names."""
    refuse_addresses(path)
    if _is_table(path):
        files = [row.path for row in _rows(path, labelled=False)]
    elif path.is_file():
        return [path]
    elif path.is_dir():
        files = list_files(path)
    else:
        raise FewgraftError(f"{path} is neither a photo nor a folder")
    if not files:
        raise FewgraftError(f"{path} holds no photos")
    return files


def refuse_addresses(*paths: Path | str | None) -> None:
    """Nothing is ever downloaded: an address where a path should be is an error."""
    for path in paths:
        if path is not None and (why := _address(str(path))) and not Path(path).exists():
            raise FewgraftError(why, DOWNLOAD)


def _address(text: str) -> str:
    """Why a text is no path; a path has lost the second slash of an address by now."""
    if not (found := ADDRESS.match(text)):
        return ""
    return f"{found[1]}://{found[2]} is an address, not a path: nothing is ever downloaded"


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES and path.is_file()


# ------------------------------------------------------------------------------------------ tables


def _rows(table: Path, *, labelled: bool) -> list[ListedPhoto]:
    """Photos of a table, each once; all of them are there."""
    with reading(table, "readable table of photos", HELP):
        rows = list(_parsed(table, _text(table), labelled))
        _refuse_missing(table, rows)
        return _once(table, rows)


def _text(table: Path) -> str:
    content = read_whole(table)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise FewgraftError(f"{table}, line {line}: this is not UTF-8", IN_UTF8) from None


def _parsed(table: Path, text: str, labelled: bool) -> Iterator[ListedPhoto]:
    rows = [(line, [c.strip() for c in cells]) for line, cells in _cells(table, text, labelled)]
    rows = [(line, cells) for line, cells in rows if any(cells)]
    line, first = rows[0] if rows else (1, [])
    path, label, wanted = 0, 1, max(len(first), 1) if not labelled else 2
    names = [cell.casefold() for cell in first]
    if {"path", "label"} & set(names):
        path, label = _columns(table, line, names, labelled)
        del rows[0]
        wanted = len(first)
    for line, cells in rows:
        if len(cells) != wanted:
            raise _wrong(table, line, f"{len(cells)} columns where {wanted} are needed", HELP)
        yield _listed(table, line, cells[path], cells[label] if labelled else None)


def _cells(table: Path, text: str, labelled: bool) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row."""
    stream = io.StringIO(text, newline="")
    if not labelled and table.suffix.lower() == ".txt":  # a path per line, whatever is in it
        yield from ((number, [line]) for number, line in enumerate(stream, 1))
        return
    lines = csv.reader(stream, delimiter=_delimiter(table, text), strict=True)
    try:
        for cells in lines:
            yield lines.line_num, cells
    except csv.Error as error:
        raise _wrong(table, lines.line_num, str(error), HELP) from None


def _delimiter(table: Path, text: str) -> str:
    """The one that divides the first row into a header, or cuts a path of a file out of it."""
    start = next(filter(str.strip, io.StringIO(text, newline=None)), "")
    fits = []
    for delimiter in DELIMITERS:
        cells = [cell.strip() for cell in next(csv.reader([start], delimiter=delimiter), [""])]
        if {"path", "label"} & {cell.casefold() for cell in cells}:
            return delimiter
        if len(cells) > 1:
            fits.append((not (table.parent / cells[0]).is_file(), delimiter))
    return min(fits)[1] if fits else ","


def _columns(table: Path, line: int, names: list[str], labelled: bool) -> tuple[int, int]:
    """Where path and label are."""
    for name in ("path", "label") if labelled else ("path",):
        if names.count(name) != 1:
            raise _wrong(table, line, f"the header needs one column '{name}'", HELP)
    return names.index("path"), names.index("label") if labelled else 0


def _listed(table: Path, line: int, path: str, label: str | None) -> ListedPhoto:
    if not path:
        raise _wrong(table, line, "there is no path", HELP)
    if label == "":
        raise _wrong(table, line, f"{path} has no label", HELP)
    if why := _address(path):
        raise _wrong(table, line, why, DOWNLOAD)
    return ListedPhoto(line, table.parent / path, label or "")


def _refuse_missing(table: Path, rows: list[ListedPhoto]) -> None:
    missing = [row for row in rows if not row.path.is_file()]
    if missing:
        first, more = missing[0], len(missing) - 1
        what = "is a folder" if first.path.is_dir() else "does not exist"
        others = f", and {more} more {'is' if more == 1 else 'are'} not there" if more else ""
        raise _wrong(
            table,
            first.line,
            f"{first.path} {what}{others}",
            "Paths are absolute, or begin at the folder of the table.",
        )


def _once(table: Path, rows: list[ListedPhoto]) -> list[ListedPhoto]:
    """Each photo once; one with two labels is an error."""
    seen: dict[Path, ListedPhoto] = {}
    for row in rows:
        first = seen.setdefault(row.path, row)
        if first.label != row.label:
            problem = f"{row.path} is '{row.label}' here and '{first.label}' in line {first.line}"
            raise _wrong(table, row.line, problem, "Take one of the two lines away.")
    return list(seen.values())


def _wrong(table: Path, line: int, problem: str, hint: str) -> FewgraftError:
    return FewgraftError(f"{table}, line {line}: {problem}", hint)
