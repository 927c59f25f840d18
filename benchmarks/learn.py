"""What `base`, `learn` and `predict` cost beside one bare pass of the network, in one run.

    .venv/bin/python benchmarks/learn.py                        # pictures cut from Icons
    .venv/bin/python benchmarks/learn.py --photos DIR           # class folders of photos
    .venv/bin/python benchmarks/learn.py --photos DIR --side 3000   # as large as a camera's

There are two bare passes, both by onnxruntime, the fastest known way, a batch per core at a time:
over pictures that are decoded already, and from files, decoded as the tool does. Beside them stands
PyTorch's pass in batches of 32 over decoded pictures, which needs no other library. The commands
read files, decode and compute; features are not kept.

All is done with all photos and with every third one, in turn. From the two follows what each photo
costs and what a command costs once. Medians over rounds, in processor time, or in seconds of the
clock with --clock.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from fewgraft.app.features.embedding import Embedder, untracked
from fewgraft.app.learning.base import build_base, model_of_backbone
from fewgraft.app.learning.learn import learn
from fewgraft.app.learning.predicting import predict
from fewgraft.data.pictures import Pixels, read_picture
from fewgraft.data.sources.folder import list_classes, list_files
from fewgraft.model import CosineModel
from fewgraft.runtime import Runtime

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NEW, SHOTS = 5, 5  # classes, and photos of each
PYTORCH_BATCH = 32
SMALLER = 3  # every so-manyth photo

Photos = dict[str, list[Path]]


@dataclass(frozen=True)
class Parts:
    """Photos of a lesson: old classes, new ones, and unlabelled ones."""

    old: Photos
    new: Photos
    unlabelled: list[Path]

    @property
    def files(self) -> list[Path]:
        """All of them."""
        labelled = [*self.old.values(), *self.new.values()]
        return [file for own in labelled for file in own] + self.unlabelled

    def every(self, step: int) -> "Parts":
        """Every so-manyth photo of each class."""
        old, new = ({n: own[::step] for n, own in c.items()} for c in (self.old, self.new))
        return Parts(old, new, self.unlabelled[::step])


@dataclass(frozen=True)
class Work:
    """What is timed, and over how many photos."""

    name: str
    photos: int
    do: Callable[[], object]


def cut(data: str, folder: Path) -> Parts:
    """Small pictures of a data set."""
    command = [sys.executable, str(EXAMPLES / "make_photos.py"), data, str(folder), "--old", "5"]
    subprocess.run(command, check=True)
    return Parts(listed(folder / "old"), listed(folder / "new"), list(list_files(folder / "pile")))


def listed(photos: Path, each: int | None = None) -> Photos:
    return {name: list(files)[:each] for name, files in list_classes(photos, at_least=1).items()}


def enlarged(photos: Photos, side: int, folder: Path) -> Photos:
    """The same photos with a shorter side of so many pixels, as JPEG."""
    return {
        name: [_enlarged(file, side, folder / name) for file in files]
        for name, files in photos.items()
    }


def _enlarged(file: Path, side: int, folder: Path) -> Path:
    image = Image.open(file).convert("RGB")
    scale = side / min(image.size)
    folder.mkdir(exist_ok=True)
    target = folder / f"{file.stem}.jpg"
    image.resize((round(image.width * scale), round(image.height * scale))).save(target, quality=90)
    return target


def split(classes: Photos) -> Parts:
    """Old classes, a few photos of new classes, and the others of these as unlabelled ones."""
    names = list(classes)
    old = {name: classes[name] for name in names[:-NEW]}
    new = {name: classes[name][:SHOTS] for name in names[-NEW:]}
    return Parts(old, new, [file for name in names[-NEW:] for file in classes[name][SHOTS:]])


@dataclass(frozen=True)
class Bench:
    """Everything that is opened once."""

    start: CosineModel
    model: CosineModel  # of the old classes
    runtime: Runtime

    @classmethod
    def of(cls, backbone: str, parts: Parts) -> "Bench":
        """Opened for these photos."""
        start = model_of_backbone(backbone)
        runtime = Runtime(start)
        runtime.expect(10**6)
        return cls(
            start, build_base(start, parts.old, keep=False, tracker=untracked).model, runtime
        )

    def works(self, parts: Parts) -> Iterator[Work]:
        """All that is timed, over these photos."""
        files = parts.files
        pixels = self._decoded(files)
        taught = sum(map(len, parts.new.values())) + len(parts.unlabelled)
        old = sum(map(len, parts.old.values()))
        yield Work("bare pass", len(files), lambda: self._bare(pixels))
        yield Work("bare pass from files", len(files), lambda: self._from_files(files))
        yield Work("PyTorch's pass", len(files), lambda: self._by_pytorch(pixels))
        yield Work("base", old, lambda: self._base(parts))
        yield Work("learn", taught, lambda: self._learn(parts))
        yield Work("predict", len(files), lambda: list(predict(self._embedder(), files)))

    def _decoded(self, files: list[Path]) -> Pixels:
        card = self.start.card
        return np.stack([read_picture(f, card.size, card.channels, card.crop) for f in files])

    def _bare(self, pixels: Pixels) -> None:
        self._in_batches(self.runtime, pixels)

    def _from_files(self, files: list[Path]) -> None:
        self._in_batches(lambda some: self.runtime(self._decoded(some)), files)

    def _in_batches(self, compute: Callable[..., object], photos: Pixels | list[Path]) -> None:
        """A batch per core at a time."""
        batch = self.runtime.batch
        parts = [photos[start : start + batch] for start in range(0, len(photos), batch)]
        with ThreadPoolExecutor(self.runtime.streams) as pool:
            list(pool.map(compute, parts))

    @torch.inference_mode()
    def _by_pytorch(self, pixels: Pixels) -> None:
        for start in range(0, len(pixels), PYTORCH_BATCH):
            some = torch.from_numpy(pixels[start : start + PYTORCH_BATCH])
            self.start.raw(self.start.prepare(some))

    def _base(self, parts: Parts) -> None:
        build_base(self.start, parts.old, keep=False, tracker=untracked)

    def _learn(self, parts: Parts) -> None:
        learn(self.model, parts.new, parts.unlabelled, embedder=self._embedder())

    def _embedder(self) -> Embedder:
        return Embedder(self.model, keep=False, tracker=untracked)


def seconds(work: Work, timer: Callable[[], float]) -> float:
    began = timer()
    work.do()
    return timer() - began


def photos_of(asked: argparse.Namespace, folder: Path) -> Parts:
    if asked.photos is None:
        return cut(asked.data, folder)
    classes = listed(asked.photos, asked.each)
    return split(enlarged(classes, asked.side, folder) if asked.side else classes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--data", default="icons", help="what small pictures are cut from")
    parser.add_argument("--photos", type=Path, help="class folders, instead of small pictures")
    parser.add_argument("--each", type=int, help="photos of each class; all if not given")
    parser.add_argument("--side", type=int, help="shorter side that --photos are brought to")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--clock", action="store_true", help="time of the clock")
    asked = parser.parse_args()
    timer = time.perf_counter if asked.clock else time.process_time
    with tempfile.TemporaryDirectory() as name:
        parts = photos_of(asked, Path(name))
        bench = Bench.of(asked.backbone, parts)
        pairs = list(zip(bench.works(parts), bench.works(parts.every(SMALLER)), strict=True))
        rounds = [
            [tuple(seconds(work, timer) for work in pair) for pair in pairs]
            for _ in range(asked.repeat)
        ]
    print(f"{asked.backbone}, {torch.get_num_threads()} threads, {asked.repeat} rounds")
    print(
        "                            ms per photo   per photo and once, ms   × bare  × from files"
    )
    bare: list[float] = []
    for (large, small), times in zip(pairs, zip(*rounds, strict=True), strict=True):
        whole, part = (1000 * median(own) for own in zip(*times, strict=True))
        each = (whole - part) / (large.photos - small.photos)
        per_photo = whole / large.photos
        bare = [*bare, per_photo][:2]
        ratios = "  ".join(f"{per_photo / other:7.2f}" for other in bare)
        print(
            f"{large.name:<21} {large.photos:>5} {per_photo:9.1f} {each:14.1f} "
            f"{whole - each * large.photos:9.0f}   {ratios}"
        )


if __name__ == "__main__":
    main()
