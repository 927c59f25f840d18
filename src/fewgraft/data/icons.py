"""Icons: the picture set inside the package, so that everything runs with no download.

32×32 grey drawings of everyday concepts ("bell", "camera", "bus") by many designers;
docs/icons.md is its data card and tools/build_icons.py makes it.
"""

import csv
import io
import json
import lzma
from importlib.resources.abc import Traversable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewgraft.data.parts import Part
from fewgraft.data.pictures import Pixels
from fewgraft.data.splits import EMBEDDED
from fewgraft.data.store import ImageStore, Manifest, count_parts

ICONS = "icons"


class IconArrays(NamedTuple):
    """The content of the set, as `hash_arrays` takes it."""

    pictures: Pixels  # [n, 32, 32, 1]
    labels: NDArray[np.int32]
    parts: NDArray[np.uint8]
    classes: tuple[str, ...]


def read_icons(folder: Traversable = EMBEDDED) -> IconArrays:
    """Unpack the files of the set; rows are sorted by part, so that base classes come first."""
    packed = lzma.decompress((folder / "icons.npy.xz").read_bytes())
    table = lzma.decompress((folder / "icons.csv.xz").read_bytes()).decode()
    rows = [(row["class"], Part(row["part"])) for row in csv.DictReader(io.StringIO(table))]
    classes = tuple(dict.fromkeys(name for name, _ in rows))
    numbers = {name: label for label, name in enumerate(classes)}
    return IconArrays(
        pictures=np.load(io.BytesIO(packed))[..., None],
        labels=np.array([numbers[name] for name, _ in rows], np.int32),
        parts=np.array([part.code for _, part in rows], np.uint8),
        classes=classes,
    )


def load_icons() -> ImageStore:
    """The embedded set, unpacked into memory (about 30 MB)."""
    about = json.loads((EMBEDDED / "icons.json").read_text())
    arrays = read_icons()
    manifest = Manifest(
        name=ICONS,
        kind=ICONS,
        source=f"{about['package']} {about['version']}",
        size=arrays.pictures.shape[1],
        channels=1,
        pictures=len(arrays.labels),
        classes=arrays.classes,
        counts=count_parts(arrays.parts),
        content=about["content"],
    )
    return ImageStore(arrays.pictures, arrays.labels, arrays.parts, manifest)
