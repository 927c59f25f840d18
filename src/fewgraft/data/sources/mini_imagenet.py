"""mini-ImageNet: 64 base, 16 novel-val and 20 novel-test classes of ImageNet at 84 px.

Vinyals et al., "Matching networks for one shot learning", NeurIPS 2016; the classes of Ravi and
Larochelle, ICLR 2017; the extra base pictures of Gidaris and Komodakis, CVPR 2018.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from fewgraft.data.arrays import as_array, check_pictures, whole_numbers
from fewgraft.data.build import Item, Source
from fewgraft.data.parts import Part
from fewgraft.data.safe_pickle import load_plain_pickle
from fewgraft.data.sources import SourceKind, SourceOptions, layout_error, refuse_split
from fewgraft.data.splits import draw_base_parts, published_classes, published_home
from fewgraft.errors import FewgraftError, nearest, reading
from fewgraft.parsing import read_csv

NATIVE_SIZE = 84
PICKLES = {
    Part.BASE_TRAIN: "miniImageNet_category_split_train_phase_train.pickle",
    Part.BASE_VAL: "miniImageNet_category_split_train_phase_val.pickle",
    Part.BASE_TEST: "miniImageNet_category_split_train_phase_test.pickle",
    Part.NOVEL_VAL: "miniImageNet_category_split_val.pickle",
    Part.NOVEL_TEST: "miniImageNet_category_split_test.pickle",
}
TABLES = {
    Part.BASE_TRAIN: "train.csv",
    Part.BASE_VAL: "train_phase_val.csv",
    Part.BASE_TEST: "train_phase_test.csv",
    Part.NOVEL_VAL: "val.csv",
    Part.NOVEL_TEST: "test.csv",
}


@dataclass(frozen=True)
class _Row:
    file: Path
    name: str
    part: Part


def _open(path: Path, options: SourceOptions) -> Source:
    refuse_split(KIND, options)
    if any((path / file).is_file() for file in PICKLES.values()):
        return _from_pickles(path, options)
    if (path / TABLES[Part.BASE_TRAIN]).is_file():
        return _from_tables(path, options)
    raise layout_error(KIND, path)


def _source(
    path: Path, options: SourceOptions, items: Iterable[Item], total: int, notes: tuple[str, ...]
) -> Source:
    return Source(
        kind=KIND.name,
        where=path,
        classes=[name for names in published_classes("mini-imagenet").values() for name in names],
        items=items,
        total=total,
        size=options.size or NATIVE_SIZE,
        channels=1 if options.grey else 3,
        notes=notes,
    )


def _label(name: str, part: Part, file: Path) -> int:
    """Position of a class in the published list, provided that it belongs to this part."""
    home = published_home("mini-imagenet")
    if name not in home:
        raise FewgraftError(f"{file}: '{name}' is no class of mini-ImageNet", nearest(name, home))
    if home[name] is not (Part.BASE_TRAIN if part.is_base else part):
        raise FewgraftError(f"{file}: class {name} belongs to {home[name]}, not to {part}")
    return list(home).index(name)


# --- the five pickles ---


def _from_pickles(path: Path, options: SourceOptions) -> Source:
    missing = [file for file in PICKLES.values() if not (path / file).is_file()]
    if missing:
        raise FewgraftError(f"{path} lacks {', '.join(missing)}", f"Expected: {KIND.layout}")
    total = sum(_count_in_pickle(path / file) for file in PICKLES.values())
    return _source(path, options, _pickled_items(path), total, ())


def _count_in_pickle(file: Path) -> int:
    """How many pictures a pickle holds, from its size: loading it only to count takes too long."""
    return file.stat().st_size // (NATIVE_SIZE * NATIVE_SIZE * 3)


def _pickled_items(path: Path) -> Iterator[Item]:
    for part, file_name in PICKLES.items():
        pictures, labels, names = _read_pickle(path / file_name)
        numbers = {value: _label(name, part, path / file_name) for name, value in names.items()}
        for number, (picture, label) in enumerate(zip(pictures, labels.tolist(), strict=True)):
            if label not in numbers:
                raise FewgraftError(f"{path / file_name}: label {label} is not in catname2label")
            yield Item(picture, numbers[label], part, f"{file_name}, picture {number}")


def _read_pickle(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], dict[str, int]]:
    """Pictures [n, 84, 84, 3], labels [n] and {class name: label} of one file."""
    content = load_plain_pickle(file)
    if not isinstance(content, dict) or not {"data", "labels", "catname2label"} <= content.keys():
        raise FewgraftError(f"{file} lacks the keys data, labels and catname2label")
    with reading(file, "file of mini-ImageNet"):
        pictures, labels = as_array(content["data"]), whole_numbers(content["labels"])
        check_pictures(pictures.dtype, pictures.shape)
        if len(pictures) != len(labels):
            raise ValueError(f"it has {len(pictures)} pictures and {len(labels)} labels")
        if not isinstance(content["catname2label"], dict):
            raise ValueError("catname2label gives no label for each name")
        numbers = whole_numbers(list(content["catname2label"].values())).tolist()
        names = dict(zip(map(_text, content["catname2label"]), numbers, strict=True))
    return pictures, labels, names


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


# --- tables beside a folder of pictures ---


def _from_tables(path: Path, options: SourceOptions) -> Source:
    pictures = next((path / name for name in ("images", "data") if (path / name).is_dir()), path)
    rows = [row for part in TABLES for row in _read_table(path / TABLES[part], pictures, part)]
    notes: tuple[str, ...] = ()
    if not any(row.part in (Part.BASE_VAL, Part.BASE_TEST) for row in rows):
        rows = _draw_base_rows(rows, options.seed)
        notes = (
            f"base val and test: a tenth each of train.csv, drawn with seed {options.seed}; the "
            "published protocol has extra pictures, so base figures are not comparable with it",
        )
    items = (_row_item(row, path) for row in rows)
    return _source(path, options, items, len(rows), notes)


def _row_item(row: _Row, path: Path) -> Item:
    return Item(row.file, _label(row.name, row.part, path), row.part, row.file.name)


def _read_table(table: Path, pictures: Path, part: Part) -> list[_Row]:
    if not table.is_file():
        return []
    with reading(table, "readable table"):
        header, rows = read_csv(table)
        if not {"filename", "label"} <= set(header):
            raise FewgraftError(f"{table} needs the header filename,label")
        return [_Row(pictures / _inside(row["filename"]), row["label"], part) for row in rows]


def _inside(name: str) -> str:
    """A file name that leads nowhere but below the folder of pictures."""
    path = PurePath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"'{name}' is no file name")
    return name


def _draw_base_rows(rows: list[_Row], seed: int) -> list[_Row]:
    """Without tables of extra base pictures, a seeded tenth of each class validates and tests."""
    by_class: dict[str, list[_Row]] = {}
    for row in rows:
        by_class.setdefault(row.name, []).append(row)
    drawn = []
    for label, group in enumerate(by_class.values()):
        parts = [row.part for row in group]
        if group[0].part is Part.BASE_TRAIN:
            parts = draw_base_parts(len(group), val=0.1, test=0.1, seed=seed, label=label)
        drawn += [_Row(row.file, row.name, part) for row, part in zip(group, parts, strict=True)]
    return drawn


KIND = SourceKind(
    name="mini-imagenet",
    summary="mini-ImageNet in 64 base, 16 + 20 novel classes, 84 px",
    layout="a folder with the five pickles miniImageNet_category_split_{train_phase_train,"
    "train_phase_val,train_phase_test,val,test}.pickle, or with train.csv, val.csv and test.csv "
    "(filename,label) beside a folder images.",
    open=_open,
)
