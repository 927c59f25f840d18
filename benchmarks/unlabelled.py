"""What a lesson costs on features that are there: a large pile, many old classes.

    .venv/bin/python benchmarks/unlabelled.py [--pictures 100000] [--classes 1000]

Prints the time of one bare product of all unlabelled features with all class weights, the least
that any method needs which looks at them; that of a whole lesson (with and without the pile,
leaving out, record) as a multiple of it; and the memory that the lesson takes. Times are processor
time. With very many classes the bare product is that of some pictures, times what they stand for.

The features lie in a file that is mapped, and the system drops its pages when memory is short. So
two figures are given: all that was in memory at most, and, looked at every tenth of a second, what
is of no file (RssAnon of /proc/self/status, Linux only).
"""

import argparse
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from fewgraft.app.features.embedding import Embedded
from fewgraft.app.features.labelled import Labelled
from fewgraft.app.learning.judging import Trial
from fewgraft.app.learning.lesson import PART, Known, Lesson
from fewgraft.app.learning.record import record_of
from fewgraft.prototypes import Refinement, directions

WIDTH, NEW, SHOTS = 1280, 5, 5
MOST_SCORES = 10**8  # pictures × classes of a bare product


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pictures", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=15)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    weights = directions(torch.randn(asked.classes, WIDTH))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features"
        shape = (asked.pictures, WIDTH)
        unlabelled = np.memmap(path, np.float32, "w+", shape=shape)
        for start in range(0, len(unlabelled), PART):
            some = unlabelled[start : start + PART]
            some[:] = rng.standard_normal(some.shape, np.float32)
        before, anonymous = _peak(), _anonymous()
        bare = min(_bare(unlabelled, weights) for _ in range(2))
        names = tuple(f"old {number}" for number in range(asked.classes))
        taught = tuple(f"new {number}" for number in range(NEW))
        support = torch.randn(NEW * SHOTS, WIDTH)
        labels = torch.arange(NEW).repeat_interleave(SHOTS)
        bias = torch.zeros(asked.classes)
        known = Known(names, weights, 18.0, bias, (20,) * asked.classes)
        config = Refinement(asked.steps, 0.5)
        lesson = Lesson(known, taught, support, labels, unlabelled, config)
        photos = tuple(b"" for _ in labels)
        given = Labelled(photos, tuple(taught[label] for label in labels), photos, support)
        none = Labelled((), (), (), torch.empty(0, WIDTH))
        with _watched() as seen:
            began = time.process_time()
            trial = Trial.of(lesson, none, given, 0.015)
            kept = list(range(asked.pictures))
            pictures = Embedded(unlabelled, kept, [b""] * asked.pictures, {})
            record_of(trial.with_unlabelled.learnt, pictures, [b""] * asked.pictures, 20)
            whole = time.process_time() - began
    print(f"{asked.pictures:,} pictures, {asked.classes:,} old classes, {asked.steps} steps")
    print(f"one bare product {bare:7.2f} s")
    print(f"a lesson         {whole:7.2f} s: {whole / bare:.2f} products")
    print(f"memory           {(max(seen) - anonymous) / 1e6:7.0f} MB more, of no file")
    print(f"                 {(_peak() - before) / 1e6:7.0f} MB more, mapped files included")


def _bare(unlabelled: np.memmap, weights: torch.Tensor) -> float:
    some = unlabelled[: max(PART, MOST_SCORES // len(weights))]
    began = time.process_time()
    for start in range(0, len(some), PART):
        torch.from_numpy(np.asarray(some[start : start + PART])) @ weights.T
    return (time.process_time() - began) * len(unlabelled) / len(some)


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Memory of no file, every tenth of a second."""
    seen, over = [_anonymous()], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            seen.append(_anonymous())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
