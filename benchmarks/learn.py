"""What `base`, `learn` and `predict` cost beside one bare pass of the network, in one run.

    .venv/bin/python benchmarks/learn.py                        # pictures cut from Icons
    .venv/bin/python benchmarks/learn.py --photos DIR           # class folders of photos
    .venv/bin/python benchmarks/learn.py --photos DIR --side 3000   # as large as a camera's

The bare pass is the fastest known way: onnxruntime on pictures that are decoded already, a batch
per core at a time. Beside it stands PyTorch's pass in batches of 32, which needs no other library.
Everything is repeated in turn; the medians per photo are compared, in seconds of the clock and of
the processor. The commands read files, decode and compute; features are not kept.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from fewgraft.app.features.embedding import Embedder
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

Photos = dict[str, list[Path]]


@dataclass(frozen=True)
class Work:
    """What is timed, and over how many photos."""

    name: str
    photos: int
    do: Callable[[], object]


def cut(data: str, folder: Path) -> tuple[Photos, Photos, list[Path]]:
    """Small pictures of a data set: old classes, new ones, and unlabelled ones of both."""
    command = [sys.executable, str(EXAMPLES / "make_photos.py"), data, str(folder), "--old", "5"]
    subprocess.run(command, check=True)
    old, new = (listed(folder / name) for name in ("old", "new"))
    return old, new, list(list_files(folder / "pile"))


def listed(photos: Path) -> Photos:
    return {name: list(files) for name, files in list_classes(photos, at_least=1).items()}


def enlarged(photos: Path, side: int, folder: Path) -> Path:
    """The same photos with a shorter side of so many pixels, as JPEG."""
    for file in list_files(photos):
        image = Image.open(file).convert("RGB")
        scale = side / min(image.size)
        larger = image.resize((round(image.width * scale), round(image.height * scale)))
        target = folder / file.relative_to(photos).with_suffix(".jpg")
        target.parent.mkdir(parents=True, exist_ok=True)
        larger.save(target, quality=90)
    return folder


def split(photos: Path) -> tuple[Photos, Photos, list[Path]]:
    """Old classes, a few photos of new classes, and the others of these as unlabelled ones."""
    classes = listed(photos)
    names = list(classes)
    old = {name: classes[name] for name in names[:-NEW]}
    new = {name: classes[name][:SHOTS] for name in names[-NEW:]}
    return old, new, [file for name in names[-NEW:] for file in classes[name][SHOTS:]]


def bare(runtime: Runtime, pixels: Pixels) -> None:
    """A batch per core at a time."""
    parts = [pixels[s : s + runtime.batch] for s in range(0, len(pixels), runtime.batch)]
    with ThreadPoolExecutor(runtime.streams) as pool:
        list(pool.map(runtime, parts))


@torch.inference_mode()
def by_pytorch(model: CosineModel, pixels: Pixels) -> None:
    for start in range(0, len(pixels), PYTORCH_BATCH):
        model.raw(model.prepare(torch.from_numpy(pixels[start : start + PYTORCH_BATCH])))


def works(backbone: str, old: Photos, new: Photos, unlabelled: list[Path]) -> list[Work]:
    """All that is timed; the first two are what the others are compared with."""
    start = model_of_backbone(backbone)
    card = start.card
    files = [file for own in [*old.values(), *new.values()] for file in own] + unlabelled
    pixels = np.stack([read_picture(f, card.size, card.channels, card.crop) for f in files])
    runtime = Runtime(start)
    runtime.expect(10**6)
    model, _ = build_base(start, old, keep=False)
    taught = sum(map(len, new.values())) + len(unlabelled)

    def lesson() -> None:
        learn(model, new, unlabelled, embedder=Embedder(model, keep=False))

    return [
        Work("bare pass", len(files), lambda: bare(runtime, pixels)),
        Work("PyTorch's pass", len(files), lambda: by_pytorch(start, pixels)),
        Work("base", sum(map(len, old.values())), lambda: build_base(start, old, keep=False)),
        Work("learn", taught, lesson),
        Work("predict", len(files), lambda: list(predict(Embedder(model, keep=False), files))),
    ]


def timed(work: Work) -> tuple[float, float]:
    """Milliseconds per photo, of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    work.do()
    seconds = time.perf_counter() - clock, time.process_time() - processor
    return 1000 * seconds[0] / work.photos, 1000 * seconds[1] / work.photos


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--data", default="icons", help="what small pictures are cut from")
    parser.add_argument("--photos", type=Path, help="class folders, instead of small pictures")
    parser.add_argument("--side", type=int, help="shorter side that --photos are brought to")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.photos is None:
            parts = cut(arguments.data, folder)
        elif arguments.side:
            parts = split(enlarged(arguments.photos, arguments.side, folder))
        else:
            parts = split(arguments.photos)
        all_works = works(arguments.backbone, *parts)
        rounds = [[timed(work) for work in all_works] for _ in range(arguments.repeat)]
    medians = [
        tuple(median(times) for times in zip(*each, strict=True))
        for each in zip(*rounds, strict=True)
    ]
    (clock, processor), (torch_clock, torch_processor) = medians[:2]
    print(f"{arguments.backbone}, {torch.get_num_threads()} threads, {arguments.repeat} rounds")
    print("                      ms per photo      × bare pass      PyTorch's pass ÷")
    print("                      clock   CPU       clock   CPU      clock   CPU")
    for work, (a, b) in zip(all_works, medians, strict=True):
        print(
            f"{work.name:<15} {work.photos:>4} {a:7.1f} {b:5.1f}     {a / clock:7.2f} "
            f"{b / processor:5.2f}    {torch_clock / a:7.2f} {torch_processor / b:5.2f}"
        )


if __name__ == "__main__":
    main()
