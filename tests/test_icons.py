"""The embedded set keeps the promises of its data card."""

import csv
import io
import json
import lzma
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from fewgraft.data.parts import BASE_PARTS, PARTS, Part
from fewgraft.data.splits import EMBEDDED
from fewgraft.data.store import ImageStore, verify_store

pytestmark = pytest.mark.numerical

LICENCES = {
    "MIT",
    "Apache-2.0",
    "ISC",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "Unlicense",
    "OFL-1.1",
    "CC-BY-3.0",
    "CC-BY-4.0",
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    packed = (EMBEDDED / "icons.csv.xz").read_bytes()
    return list(csv.DictReader(io.StringIO(lzma.decompress(packed).decode())))


def test_the_content_is_what_was_built(icons: ImageStore) -> None:
    verify_store(icons)


def test_there_is_enough_of_everything(icons: ImageStore) -> None:
    least = {"base/train": 100, "novel/train": 40, "novel/val": 16, "novel/test": 30}
    for part, classes in least.items():
        assert len(icons.by_class(Part(part))) >= classes
    sizes: Counter[int] = Counter(icons.labels.tolist())
    assert min(sizes.values()) >= 75
    assert icons.pictures.shape[1:] == (32, 32, 1)
    assert not icons.rehearses_on_base
    base = {frozenset(icons.by_class(part)) for part in BASE_PARTS}
    assert len(base) == 1, "every base class needs train, val and test pictures"


def test_it_is_small() -> None:
    files = [file for file in EMBEDDED.iterdir() if file.name.startswith("icons")]
    assert sum(len(file.read_bytes()) for file in files) < 8_000_000


def test_related_classes_stand_on_both_sides(icons: ImageStore) -> None:
    """What makes the problem real: classes with one first word, some base and some novel."""
    sides: dict[str, set[bool]] = defaultdict(set)
    for label, name in enumerate(icons.classes):
        sides[name.split("-")[0]].add(label < len(icons.base_classes))
    assert sum(len(found) == 2 for found in sides.values()) >= 10


def test_every_picture_has_an_author_and_a_licence(rows: list[dict[str, str]]) -> None:
    table = (EMBEDDED / "icons-attribution.csv").read_text()
    sets = {row["set"]: row for row in csv.DictReader(io.StringIO(table))}
    used = Counter(row["set"] for row in rows)
    assert set(used) == set(sets)
    for name, row in sets.items():
        assert row["spdx"] in LICENCES, name
        assert row["name"]
        assert row["author"]
        assert int(row["pictures"]) == used[name]


def test_a_designer_draws_for_one_part_of_a_base_class_only(rows: list[dict[str, str]]) -> None:
    parts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        parts[row["class"], row["set"]].add(row["part"])
    assert all(len(found) == 1 for found in parts.values())


def test_no_two_pictures_are_the_same(icons: ImageStore) -> None:
    assert len(np.unique(icons.pictures.reshape(len(icons), -1), axis=0)) == len(icons)


def edges(pixels: np.ndarray) -> np.ndarray:
    """What is left of a picture when place and scale are removed: cropped to its ink, fitted into
    a square, the difference of two blurs.
    """
    image = Image.fromarray(pixels)
    image = image.crop(image.point(lambda v: 255 * (v > 40)).getbbox() or (0, 0, 1, 1))
    image = image.resize((28, 28), Image.Resampling.BILINEAR)
    square = Image.new("L", (32, 32))
    square.paste(image, (2, 2))
    fine, coarse = (
        np.asarray(square.filter(ImageFilter.GaussianBlur(r)), np.float32) for r in (0.8, 2.5)
    )
    found = (fine - coarse).ravel()
    return found / max(float(np.linalg.norm(found)), 1e-6)


def test_test_pictures_have_no_twin_in_training(icons: ImageStore) -> None:
    """A second measure of likeness than the one that built the set, on the 32-pixel pictures."""
    test, training = (
        np.stack([edges(icons.pictures[i, :, :, 0]) for i in icons.indices(part)])
        for part in (Part.BASE_TEST, Part.BASE_TRAIN)
    )
    likeness = (test @ training.T).max(axis=1)
    assert (likeness > 0.98).mean() < 0.005
    assert np.median(likeness) < 0.93


def test_the_card_and_the_files_agree(icons: ImageStore) -> None:
    about = json.loads((EMBEDDED / "icons.json").read_text())
    assert about["pictures"] == len(icons)
    for part in PARTS:
        assert about["pictures_by_part"][part] == len(icons.indices(part))
        assert about["classes"][part] == len(icons.by_class(part))


def test_the_card_names_only_what_exists(icons: ImageStore) -> None:
    card = (Path(__file__).resolve().parents[1] / "docs" / "icons.md").read_text()
    text, classes = card.split("## Classes")
    listed = re.findall(r"`([^`]+)`", classes)
    assert sorted(listed) == sorted(icons.classes)
    # Words in the names of icons, which the curation unites or removes.
    words = {"add", "plus", "mail", "email", "gear", "settings", "bell-24", "bell-outline"}
    named = set(re.findall(r"`([a-z]+(?:-[a-z0-9]+)*)`", text))
    assert named - set(listed) == words
    counted = re.findall(r"\| `(\w+/\w+)` \| (\d+) \| ([\d,]+) \|", text)
    assert [part for part, *_ in counted] == list(PARTS)
    for part, count, pictures in counted:
        own = icons.parts == PARTS.index(Part(part))
        assert len(set(icons.labels[own])) == int(count), part
        assert own.sum() == int(pictures.replace(",", "")), part
    for name in re.findall(r"`(icons[\w.-]*\.\w+)`", text):
        assert (EMBEDDED / name).exists(), name
