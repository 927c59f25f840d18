"""Files of a published protocol of sessions: official halves, base classes first, listed shots."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fewgraft.data.build import Item, Source
from fewgraft.data.parts import Part, Role
from fewgraft.data.sources import SourceKind, SourceOptions
from fewgraft.data.splits import draw_base_parts
from fewgraft.errors import FewgraftError, reading
from fewgraft.parsing import read_whole

VAL_SHARE = 0.1  # of the training pictures of each base class, held back
LARGEST_LIST = 1 << 22  # bytes
LISTS = "session_*.txt"  # published shots, a path of a picture per line


@dataclass(frozen=True)
class SessionPicture:
    """A picture as the protocol has it."""

    file: Path
    label: int  # base classes first
    tests: bool  # whether it is of the official test half


def inside(name: str) -> str:
    """A file name that leads nowhere but below the folder of pictures."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"'{name}' is no file name")
    return name


def read_lines(path: Path, what: str) -> list[str]:
    """The lines of a small text file, without empty ones."""
    with reading(path, what):
        lines = read_whole(path, LARGEST_LIST).decode().splitlines()
    return [line.strip() for line in lines if line.strip()]


def session_source(
    kind: SourceKind,
    where: Path,
    classes: Sequence[str],
    n_base: int,
    rows: Sequence[SessionPicture],
    size: int,
    options: SourceOptions,
) -> Source:
    """A source of these pictures; its lists of shots are looked for beside them."""
    names = _listed_names(where)
    missing = names - {row.file.name for row in rows if not row.tests and row.label >= n_base}
    if missing:
        raise FewgraftError(
            f"the lists of shots name {min(missing)}, which is no training picture of a novel class"
        )
    shots = (
        f"published shots: {len(names)} files, fewgraft bench sessions --listed"
        if names
        else f"no published shots: there are no files {LISTS}"
    )
    drawn = f"base val: a tenth of the official training pictures, drawn with seed {options.seed}"
    return Source(
        kind=kind.name,
        where=where,
        classes=classes,
        items=_items(rows, n_base, names, options.seed),
        total=len(rows),
        size=options.size or size,
        channels=1 if options.grey else 3,
        notes=(drawn, shots),
    )


def _listed_names(where: Path) -> set[str]:
    """File names in the lists of shots; session_1.txt has the base classes."""
    lists = sorted(path for path in where.rglob(LISTS) if path.stem != "session_1")
    lines = [line for path in lists for line in read_lines(path, "readable list of shots")]
    return {PurePosixPath(line).name for line in lines}


def _items(
    rows: Iterable[SessionPicture], n_base: int, listed: set[str], seed: int
) -> Iterator[Item]:
    """Class by class in the order of the protocol, training pictures first."""
    groups: dict[tuple[bool, int], list[SessionPicture]] = {}
    for row in rows:
        groups.setdefault((row.tests, row.label), []).append(row)
    for (tests, label), group in sorted(groups.items(), key=lambda pair: pair[0]):
        parts, roles = [Part.NOVEL_TEST] * len(group), [Role.ANY] * len(group)
        if label < n_base:
            parts = [Part.BASE_TEST] * len(group)
            if not tests:
                parts = draw_base_parts(len(group), VAL_SHARE, 0, seed, label)
        elif tests:
            roles = [Role.QUERY] * len(group)
        else:
            roles = [Role.LISTED if row.file.name in listed else Role.ANY for row in group]
        for row, part, role in zip(group, parts, roles, strict=True):
            yield Item(row.file, label, part, row.file.name, role)
