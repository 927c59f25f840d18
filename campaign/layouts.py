"""Small valid files of every layout that is read: what attacks damage, and tests start from."""

import csv
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fewgraft.data.parts import Part
from fewgraft.data.splits import published_classes

Pixels = NDArray[np.uint8]


def noise(seed: int, *shape: int) -> Pixels:
    """Bytes that look like nothing."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(pixels: Pixels) -> bytes:
    """A picture file."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def photo_tree(root: Path, classes: int = 4, pictures: int = 4) -> Path:
    """A folder for each class, with small distinct pictures."""
    for c in range(classes):
        folder = root / f"class {c:02d}"
        folder.mkdir(parents=True)
        for p in range(pictures):
            (folder / f"photo {p}.png").write_bytes(png(noise(1000 * c + p, 12, 10, 3)))
    return root


# --- CIFAR-100 ---


def cifar_pickles(folder: Path, a_class: int = 10) -> dict[str, Any]:
    """The files of cifar-100-python, train and test alike."""
    labels = [label for label in range(100) for _ in range(a_class)]
    content = {
        "data": noise(0, len(labels), 3072),
        "fine_labels": labels,
        "filenames": [f"{i:05d}.png" for i in range(len(labels))],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for half in ("train", "test"):
        (folder / half).write_bytes(pickle.dumps(content))
    return content


def cifar_parquet(folder: Path, classes: int = 20) -> None:
    """The same as parquet: a column of encoded pictures and one of labels."""
    import pyarrow
    import pyarrow.parquet as pq

    pictures = [{"bytes": png(noise(i, 8, 8, 3)), "path": f"{i}.png"} for i in range(classes)]
    table = pyarrow.table({"img": pictures, "fine_label": list(range(classes))})
    for half in ("train", "test"):
        pq.write_table(table, folder / f"{half}.parquet")


# --- mini-ImageNet ---

MINI_FILES = {
    "train_phase_train": Part.BASE_TRAIN,
    "train_phase_val": Part.BASE_VAL,
    "train_phase_test": Part.BASE_TEST,
    "val": Part.NOVEL_VAL,
    "test": Part.NOVEL_TEST,
}
MINI_TABLES = {"train": Part.BASE_TRAIN, "val": Part.NOVEL_VAL, "test": Part.NOVEL_TEST}


def mini_pickles(folder: Path, a_class: int = 2, side: int = 84) -> dict[str, dict[str, Any]]:
    """The five pickles, and what is in them."""
    lists = published_classes("mini-imagenet")
    contents = {}
    for stem, part in MINI_FILES.items():
        names = sorted(lists[Part.BASE_TRAIN if part.is_base else part])
        contents[stem] = {
            "data": noise(part.code, len(names) * a_class, side, side, 3),
            "labels": [label for label in range(len(names)) for _ in range(a_class)],
            "catname2label": {name: label for label, name in enumerate(names)},
        }
        write_mini(folder, stem, contents[stem])
    return contents


def write_mini(folder: Path, stem: str, content: Any) -> None:
    """One of the five."""
    path = folder / f"miniImageNet_category_split_{stem}.pickle"
    path.write_bytes(pickle.dumps(content, protocol=2))


def mini_tables(folder: Path, stems: dict[str, Part], a_class: int, side: int = 84) -> None:
    """Tables beside a folder of pictures."""
    (folder / "images").mkdir()
    for stem, part in stems.items():
        with (folder / f"{stem}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["filename", "label"])
            lists = published_classes("mini-imagenet")
            for name in lists[Part.BASE_TRAIN if part.is_base else part]:
                for number in range(a_class):
                    picture = f"{name}{stem}{number:05d}.jpg"
                    Image.fromarray(noise(number, side, side, 3)).save(folder / "images" / picture)
                    rows.writerow([picture, name])


# --- tiered-ImageNet ---

TIERED_FILES = {
    "train_a_train_a_phase_train": Part.BASE_TRAIN,
    "train_a_train_a_phase_val": Part.BASE_VAL,
    "train_a_train_a_phase_test": Part.BASE_TEST,
    "train_b": Part.NOVEL_TRAIN,
    "val": Part.NOVEL_VAL,
    "test": Part.NOVEL_TEST,
}


def tiered_pairs(folder: Path, form: str, side: int = 84) -> dict[Part, Pixels]:
    """One pair of files for each part, three classes in each."""
    lists = published_classes("tiered-imagenet")
    return {
        part: write_tiered(
            folder,
            stem,
            list(lists[Part.BASE_TRAIN if part.is_base else part][:3]),
            2,
            form,
            seed,
            side,
        )
        for seed, (stem, part) in enumerate(TIERED_FILES.items())
    }


def write_tiered(
    folder: Path, stem: str, names: list[str], a_class: int, form: str, seed: int, side: int = 84
) -> Pixels:
    """A pair of files; `form` is png or npz."""
    pictures = noise(seed, len(names) * a_class, side, side, 3)
    labels = {
        "label_specific": np.repeat(np.arange(len(names)), a_class).astype(np.int32),
        "label_specific_str": names,
        "label_general": np.zeros(len(names) * a_class, np.int32),
        "label_general_str": ["thing"],
    }
    (folder / f"{stem}_labels.pkl").write_bytes(pickle.dumps(labels, protocol=2))
    if form == "npz":  # arrays of this form are blue, green, red
        np.savez(folder / f"{stem}_images.npz", images=pictures[..., ::-1])
    else:
        encoded = [np.frombuffer(png(picture), np.uint8).copy() for picture in pictures]
        (folder / f"{stem}_images_png.pkl").write_bytes(pickle.dumps(encoded, protocol=2))
    return pictures
