"""What attacks on the tool work with: small photos of real icons, a small recipe, a small store."""

from pathlib import Path

import numpy as np
from PIL import Image

from fewgraft.data.catalogue import add_data
from fewgraft.data.icons import load_icons
from fewgraft.data.parts import Part
from fewgraft.data.sources import SourceOptions
from fewgraft.data.store import ImageStore

RECIPE = """
name = "small"
data = "colours"
backbone = "conv4"
size = 16
checkpoint_every = 3

[pretraining]
steps = 24
batch = 16
validate_every = 8
optimisation = { lr = 0.05, warm_up = 0.1 }
augmentation = { crop = 1, mirror = true }
small_size = 16
small_share = 0.3

[metatraining]
steps = 8
episodes = 2
shots = [1, 2]
ways = 2
queries = 3
base_queries = 6
unlabelled = 8
optimisation = { lr = 0.01 }
augmentation = { mirror = true }
validate_every = 4

[validation]
episodes = 4
shots = [1, 2]
ways = 3
queries = 3
base_queries = 6
unlabelled = 18
"""

SPLIT = """
base = ["0", "1", "2", "3", "4", "5"]
"novel/val" = ["6", "7", "8", "9", "10"]
"novel/test" = ["11", "12"]
"""


def make_colours(folder: Path, root: Path, split: str = SPLIT) -> ImageStore:
    """Classes of noisy colours: easy to learn, quick to read."""
    rng = np.random.default_rng(0)
    for c in range(13):
        (folder / str(c)).mkdir(parents=True)
        colour = rng.integers(40, 216, 3)
        for p in range(30 if c < 6 else 12):
            pixels = np.clip(colour + rng.integers(-40, 41, (16, 16, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / str(c) / f"{p}.png")
    (folder.parent / "split.toml").write_text(split)
    options = SourceOptions(size=16, split=folder.parent / "split.toml")
    return add_data("colours", folder, options=options, root=root)


def make_photos(root: Path) -> None:
    """Folders new/CLASS, old/CLASS, pile and inbox, with a few photos each."""
    icons = load_icons()

    def write(folder: Path, part: Part, name: str, places: slice) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in icons.by_class(part)[icons.classes.index(name)][places]:
            Image.fromarray(icons.pictures[picture][:, :, 0]).save(folder / f"{picture}.png")

    novel = [icons.classes[label] for label in icons.by_class(Part.NOVEL_TEST)]
    for name in novel[:2]:
        write(root / "new" / name, Part.NOVEL_TEST, name, slice(3))
        write(root / "pile", Part.NOVEL_TEST, name, slice(3, 10))
        write(root / "inbox", Part.NOVEL_TEST, name, slice(10, 14))
    for name in icons.base_classes[:5]:
        write(root / "old" / name, Part.BASE_TRAIN, name, slice(6))


def contents(folder: Path) -> dict[str, bytes]:
    """All files below, by path; or a file itself."""
    if folder.is_file():
        return {"": folder.read_bytes()}
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def leftovers(folder: Path) -> list[str]:
    """Names of temporaries below."""
    return [path.name for path in folder.rglob(".*") if "in-work-" in path.name]
