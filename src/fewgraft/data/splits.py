"""Which class belongs to which part: the published lists, and draws of our own."""

import csv
import io
import json
import lzma
from collections.abc import Sequence
from functools import cache
from importlib import resources

from fewgraft.data.parts import Part
from fewgraft.draws import KeyStream

EMBEDDED = resources.files("fewgraft.data") / "embedded"


@cache
def published_classes(name: str) -> dict[Part, tuple[str, ...]]:
    """The published class lists of a data set; base classes stand under `BASE_TRAIN`."""
    lists = json.loads((EMBEDDED / f"{name}.json").read_text())
    names = {
        Part.BASE_TRAIN: "base",
        Part.NOVEL_TRAIN: "novel_train",
        Part.NOVEL_VAL: "val",
        Part.NOVEL_TEST: "test",
    }
    return {part: tuple(lists[key]) for part, key in names.items() if key in lists}


@cache
def published_home(name: str) -> dict[str, Part]:
    """The part that each class of a published list belongs to."""
    return {cls: part for part, classes in published_classes(name).items() for cls in classes}


@cache
def published_shots(name: str) -> dict[str, list[int]]:
    """The published shots of each novel class of a protocol of sessions, as official numbers."""
    lists: dict[str, list[int]] = json.loads((EMBEDDED / f"{name}.json").read_text())["listed"]
    return lists


@cache
def tiered_base_pictures() -> dict[str, Part]:
    """Which base pictures of tiered-ImageNet train, validate and test: {file name: part}."""
    packed = (EMBEDDED / "tiered-imagenet-base-images.csv.xz").read_bytes()
    rows = csv.DictReader(io.StringIO(lzma.decompress(packed).decode()))
    return {row["image"]: Part(f"base/{row['part']}") for row in rows}


def draw_base_parts(count: int, val: float, test: float, seed: int, label: int) -> list[Part]:
    """Parts for the `count` pictures of base class number `label`: a seeded draw of shares.

    Every part gets a picture as long as there are three.
    """
    n_val, n_test = (_share(count, share) for share in (val, test))
    parts = [Part.BASE_TRAIN] * count
    order = KeyStream(seed, label).permutation(count)
    for position, picture in enumerate(order.tolist()):
        if position < n_val:
            parts[picture] = Part.BASE_VAL
        elif position < n_val + n_test:
            parts[picture] = Part.BASE_TEST
    return parts


def _share(count: int, share: float) -> int:
    if share == 0 or count < 3:
        return 0
    return max(1, round(count * share))


def draw_class_parts(classes: Sequence[str], seed: int) -> dict[Part, list[str]]:
    """Divide classes by a seeded draw: about 60 % base, 16 % novel-val, 24 % novel-test.

    Novel training classes are not set apart: training rehearses on the base classes, which a small
    collection can spare better.
    """
    order = [classes[i] for i in KeyStream(seed, len(classes)).permutation(len(classes)).tolist()]
    n_val = max(1, round(0.16 * len(classes)))
    n_test = max(1, round(0.24 * len(classes)))
    return {
        Part.BASE_TRAIN: sorted(order[n_val + n_test :]),
        Part.NOVEL_VAL: sorted(order[:n_val]),
        Part.NOVEL_TEST: sorted(order[n_val : n_val + n_test]),
    }
