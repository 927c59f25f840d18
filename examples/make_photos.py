"""Folders of real pictures to try the tool on, cut from a data set.

    python examples/make_photos.py icons photos/
    python examples/make_photos.py cifar-fs photos/   # once added: fewgraft data add

Writes old/ (class folders to build a base classifier from), new/ (5 classes, 5 photos each), pile/
(unlabelled: old and new classes mixed), old_val/ (to check the old classes with), inbox/ (photos to
predict) and inbox.csv (what is on them).
"""

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from fewgraft.data.catalogue import open_data
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import KeyStream


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--new-classes", type=int, default=5)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--pile", type=int, default=500, help="half of them of new classes")
    parser.add_argument("--old", type=int, default=20, help="photos of each old class")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cutter = Cutter(open_data(arguments.data), arguments.out, arguments.seed)
    cutter.old("old", Part.BASE_TRAIN, arguments.old)
    cutter.old("old_val", Part.BASE_VAL, 5)
    drawn = cutter.draw(Part.NOVEL_TEST, arguments.new_classes)
    half = arguments.pile // 2
    share = half // len(drawn)
    pile, inbox = [], []
    for name, pictures in drawn.items():
        cutter.write(f"new/{name}", pictures[: arguments.shots])
        pile += pictures[arguments.shots :][:share]
        inbox += pictures[arguments.shots + share :][:20]
    tested = cutter.shuffled(cutter.store.indices(Part.BASE_TEST))
    cutter.write("pile", cutter.shuffled([*pile, *tested[:half]]))
    cutter.labelled("inbox", cutter.shuffled([*inbox, *tested[half:][: len(inbox)]]))


class Cutter:
    """Writes pictures of a store as files."""

    def __init__(self, store: ImageStore, out: Path, seed: int) -> None:
        self.store = store
        self._out = out
        self._seed = seed
        self._draws = 0

    def shuffled(self, pictures: Iterable[int]) -> list[int]:
        chosen = np.array(list(pictures))
        self._draws += 1
        order = KeyStream(self._seed, self._draws).permutation(len(chosen))
        return [int(picture) for picture in chosen[order]]

    def draw(self, part: Part, classes: int) -> dict[str, list[int]]:
        pictures = self.store.indices(part)
        labels = self.store.labels[pictures]
        chosen = self.shuffled(np.unique(labels))[:classes]
        return {
            self.store.manifest.classes[label]: self.shuffled(pictures[labels == label])
            for label in chosen
        }

    def old(self, folder: str, part: Part, photos: int) -> None:
        for name, pictures in self.draw(part, len(self.store.base_classes)).items():
            self.write(f"{folder}/{name}", pictures[:photos])

    def write(self, folder: str, pictures: Iterable[int]) -> None:
        (self._out / folder).mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(pictures):
            pixels = self.store.pictures[picture]
            image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
            image.save(self._out / folder / f"{number:04}.png")

    def labelled(self, folder: str, pictures: list[int]) -> None:
        self.write(folder, pictures)
        with (self._out / f"{folder}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("photo", "label"))
            for number, picture in enumerate(pictures):
                name = self.store.manifest.classes[self.store.labels[picture]]
                writer.writerow((f"{number:04}.png", name))


if __name__ == "__main__":
    main()
