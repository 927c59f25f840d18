"""Icons: the picture set inside the package, so that everything runs with no download.

32×32 grey drawings of everyday concepts ("bell", "camera", "bus") by many designers;
docs/icons.md is its data card and tools/build_icons.py makes it.
"""

import csv
import io
import json
import lzma

import numpy as np

from fewgraft.data.parts import Part
from fewgraft.data.splits import EMBEDDED
from fewgraft.data.store import ImageStore, Manifest, count_parts

ICONS = "icons"


def load_icons() -> ImageStore:
    """The embedded set, unpacked into memory (about 30 MB)."""
    about = json.loads((EMBEDDED / "icons.json").read_text())
    packed = lzma.decompress((EMBEDDED / "icons.npy.xz").read_bytes())
    pictures = np.load(io.BytesIO(packed))[..., None]
    table = lzma.decompress((EMBEDDED / "icons.csv.xz").read_bytes()).decode()
    rows = [(row["class"], Part(row["part"])) for row in csv.DictReader(io.StringIO(table))]
    # Rows are sorted by part, so that base classes come first here too.
    classes = tuple(dict.fromkeys(name for name, _ in rows))
    numbers = {name: label for label, name in enumerate(classes)}
    parts = np.array([part.code for _, part in rows], np.uint8)
    return ImageStore(
        pictures=pictures,
        labels=np.array([numbers[name] for name, _ in rows], np.int32),
        parts=parts,
        manifest=Manifest(
            name=ICONS,
            kind=ICONS,
            source=f"{about['package']} {about['version']}",
            size=pictures.shape[1],
            channels=1,
            pictures=len(rows),
            classes=classes,
            counts=count_parts(parts),
            content=about["content"],
        ),
    )
