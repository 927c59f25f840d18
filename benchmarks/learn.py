"""What `learn` costs beyond one pass of the backbone over the pictures, in one run.

    .venv/bin/python benchmarks/learn.py [--backbone efficientnet-lite0] [--data icons]

Five new classes, five photos each, 500 unlabelled photos, real files. Prints the time of one bare
forward pass over the same pictures, decoded beforehand; of `learn` and its parts; and of a second
`learn` with one more photo. Target: at most 20 % beyond the bare pass.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fewgraft.app.features.embedding import Embedded, Embedder, Photo
from fewgraft.app.learning.base import build_base, model_of_backbone
from fewgraft.app.learning.learn import learn
from fewgraft.app.learning.saving import open_classifier
from fewgraft.data.pictures import read_picture
from fewgraft.data.sources.folder import list_classes, list_files
from fewgraft.model import CosineModel
from fewgraft.runtime import BATCH

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@torch.inference_mode()
def bare_pass(model: CosineModel, files: list[Path]) -> float:
    card = model.card
    pixels = [read_picture(f, card.size, card.channels, card.crop) for f in files]
    batches = [
        torch.from_numpy(np.stack(pixels[s : s + BATCH])) for s in range(0, len(pixels), BATCH)
    ]
    model.embed(model.prepare(batches[0]))
    start = time.perf_counter()
    for batch in batches:
        model.embed(model.prepare(batch))
    return time.perf_counter() - start


class Timed(Embedder):
    """Counts the time that goes into features."""

    seconds = 0.0

    def __call__(self, photos: Sequence[Photo], what: str = "photos") -> Embedded:
        """Features, as ever."""
        start = time.perf_counter()
        done = super().__call__(photos, what)
        self.seconds += time.perf_counter() - start
        return done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backbone", default="efficientnet-lite0", help="or icons")
    parser.add_argument("--data", default="icons", help="where the pictures come from")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos, cache = Path(folder) / "photos", Path(folder) / "cache"
        cut = [sys.executable, str(EXAMPLES / "make_photos.py"), arguments.data, str(photos)]
        subprocess.run([*cut, "--old", "3"], check=True)
        new, unlabelled = list_classes(photos / "new", at_least=1), list_files(photos / "pile")
        if arguments.backbone == "icons":
            model = open_classifier("icons")
        else:
            start = model_of_backbone(arguments.backbone)
            model, _ = build_base(start, list_classes(photos / "old"), keep=False)
        files = [*(file for own in new.values() for file in own), *unlabelled]
        first = bare_pass(model, files)
        embedder, began = Timed(model, cache=cache), time.perf_counter()
        learn(model, new, unlabelled, embedder=embedder)
        whole = time.perf_counter() - began
        bare = (first + bare_pass(model, files)) / 2  # before and after: the machine may drift
        one_more = {**new, next(iter(new)): [*next(iter(new.values())), unlabelled[0]]}
        again, began = Timed(model, cache=cache), time.perf_counter()
        learn(model, one_more, unlabelled[1:], embedder=again)
        second = time.perf_counter() - began
    print(f"{arguments.backbone}, {len(files)} photos of {arguments.data}")
    print(f"one bare forward pass      {bare:6.2f} s")
    print(f"learn                      {whole:6.2f} s")
    print(f"  decoding and network     {embedder.seconds:6.2f} s")
    print(f"  lesson, judging, record  {whole - embedder.seconds:6.2f} s")
    print(f"beyond the bare pass       {100 * (whole / bare - 1):6.1f} % (target 20)")
    print(f"learn again, one photo more{second:6.2f} s")


if __name__ == "__main__":
    main()
