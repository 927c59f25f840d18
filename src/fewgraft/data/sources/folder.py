"""Any tree with one folder per class.

Without a split file the classes are divided by a seeded draw. A split file says it exactly:
TOML lists of classes, or a CSV with the header `class,part` or `picture,part`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fewgraft.data.build import Item, Source
from fewgraft.data.parts import PARTS, Part
from fewgraft.data.sources import SourceKind, SourceOptions
from fewgraft.data.splits import draw_base_parts, draw_class_parts
from fewgraft.errors import FewgraftError, nearest, reading
from fewgraft.files import readable
from fewgraft.parsing import read_csv, read_toml

DEFAULT_SIZE = 84
BASE = "base"  # in a split file: a base class whose pictures are to be divided by a draw
NOT_PICTURES = {"thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Split:
    """What a split file says: a home for each class, or for single pictures."""

    classes: Mapping[str, str]
    pictures: Mapping[str, Part]


def list_classes(path: Path, at_least: int = 3) -> dict[str, list[Path]]:
    """{class name: files, sorted} of a tree; hidden files and folders are skipped."""
    if not path.is_dir():
        raise FewgraftError(f"{path} is not a folder")
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    classes = {readable(Path(folder.name)): list_files(folder) for folder in folders}
    classes = {name: files for name, files in classes.items() if files}
    if len(classes) < at_least:
        raise FewgraftError(
            f"{path} holds {len(classes)} class folders with files in them; at least {at_least} "
            f"{'is' if at_least == 1 else 'are'} needed",
            f"Expected: {KIND.layout}",
        )
    return classes


def list_files(folder: Path) -> list[Path]:
    """Files below a folder, sorted; hidden ones and what systems leave behind are skipped."""
    return sorted(
        p
        for p in folder.rglob("*")
        if p.is_file()
        and not any(step.startswith(".") for step in p.relative_to(folder).parts)
        and p.name.lower() not in NOT_PICTURES
    )


def _open(path: Path, options: SourceOptions) -> Source:
    files = list_classes(path)
    notes: tuple[str, ...] = ()
    if options.split is None:
        homes = draw_class_parts(list(files), options.seed)
        drawn = {name: _home_name(part) for part, names in homes.items() for name in names}
        split = Split(drawn, {})
        notes = (f"classes divided by a draw with seed {options.seed}",)
    else:
        split = _read_split(options.split, path, files)
    homes_of_files = _assign(path, files, split, options.seed)
    left_out = len(files) - len({name for name, _, _ in homes_of_files})
    if left_out:
        notes = (*notes, f"{left_out} classes are not named in the split and were left out")
    classes = _base_first(homes_of_files)
    return Source(
        kind=KIND.name,
        where=path,
        classes=classes,
        items=_items(homes_of_files, classes, path),
        total=len(homes_of_files),
        size=options.size or DEFAULT_SIZE,
        channels=1 if options.grey else 3,
        notes=notes,
    )


def _home_name(part: Part) -> str:
    return BASE if part.is_base else str(part)


def _assign(
    root: Path, files: dict[str, list[Path]], split: Split, seed: int
) -> list[tuple[str, Path, Part]]:
    """(class, file, part) of every picture that the split gives a home."""
    assigned: list[tuple[str, Path, Part]] = []
    for label, (name, own) in enumerate(files.items()):
        if split.pictures:
            named = ((file, split.pictures.get(_origin(file, root))) for file in own)
            assigned += [(name, file, part) for file, part in named if part]
        elif split.classes.get(name) == BASE:
            parts = draw_base_parts(len(own), val=0.15, test=0.25, seed=seed, label=label)
            assigned += [(name, file, part) for file, part in zip(own, parts, strict=True)]
        elif name in split.classes:
            assigned += [(name, file, Part(split.classes[name])) for file in own]
    return assigned


def _base_first(assigned: list[tuple[str, Path, Part]]) -> list[str]:
    """Class names, base classes first, each group by the alphabet."""
    homes = {name: 0 if part.is_base else part.code for name, _, part in assigned}
    return sorted(homes, key=lambda name: (homes[name], name))


def _items(
    assigned: list[tuple[str, Path, Part]], classes: list[str], root: Path
) -> Iterator[Item]:
    labels = {name: label for label, name in enumerate(classes)}
    for name, file, part in assigned:
        yield Item(file, labels[name], part, _origin(file, root))


def _origin(file: Path, root: Path) -> str:
    """What a picture is called: its path below the root."""
    return readable(file.relative_to(root))


# --- split files ---


def _read_split(file: Path, root: Path, files: dict[str, list[Path]]) -> Split:
    with reading(file, "readable split file", _SPLIT_HELP):
        split = _read_csv(file) if file.suffix.lower() == ".csv" else _read_toml(file)
    known_pictures = {_origin(file, root) for own in files.values() for file in own}
    _check_names(file, split.classes, files, "class folder")
    _check_names(file, split.pictures, dict.fromkeys(known_pictures), "picture")
    return split


def _check_names(
    file: Path, named: Mapping[str, object], known: Mapping[str, object], what: str
) -> None:
    for name in named:
        if name not in known:
            raise FewgraftError(
                f"{file} names '{name}', but there is no such {what}", nearest(name, known)
            )


def _read_toml(file: Path) -> Split:
    lists = read_toml(file)
    classes: dict[str, str] = {}
    for home, names in lists.items():
        _check_home(file, home)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FewgraftError(f"{file}: '{home}' must be a list of class names", _SPLIT_HELP)
        for name in names:
            _set_once(file, classes, name, home)
    return Split(classes, {})


def _read_csv(file: Path) -> Split:
    names, rows = read_csv(file)
    header = set(names)
    if header == {"class", "part"}:
        classes: dict[str, str] = {}
        for row in rows:
            _check_home(file, row["part"])
            _set_once(file, classes, row["class"], row["part"])
        return Split(classes, {})
    if header == {"picture", "part"}:
        pictures: dict[str, str] = {}
        for row in rows:
            if row["part"] == BASE:
                raise FewgraftError(f"{file}: a picture needs a whole part, such as base/train")
            _check_home(file, row["part"])
            _set_once(file, pictures, row["picture"], row["part"])
        return Split({}, {name: Part(part) for name, part in pictures.items()})
    raise FewgraftError(f"{file} has the header {', '.join(sorted(header))}", _SPLIT_HELP)


def _check_home(file: Path, home: str) -> None:
    homes = [BASE, *map(str, PARTS)]
    if home not in homes:
        raise FewgraftError(f"{file}: '{home}' is not a part", nearest(home, homes))


def _set_once(file: Path, homes: dict[str, str], name: str, home: str) -> None:
    if name in homes:
        raise FewgraftError(f"{file} names '{name}' twice: in {homes[name]} and in {home}")
    homes[name] = home


_SPLIT_HELP = (
    'A split is TOML (base = ["cat", ...], "novel/val" = [...], "novel/test" = [...]) or a CSV '
    "with the header class,part or picture,part."
)

KIND = SourceKind(
    name="folder",
    summary="your own pictures: any tree with one folder per class",
    layout="a folder with one sub-folder per class and the pictures of it inside (at any depth).",
    open=_open,
)
