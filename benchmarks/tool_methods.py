"""The tool's two methods, refine and graft, and the choice between them, on the same features.

    .venv/bin/python benchmarks/tool_methods.py FEATURES.npz ... [--draws 12] [--shots 1,5]

Draws are those of practice.py: 5 new classes, 5 foreign ones, all others old; a pile of 200 photos,
half of them new; no check photos. `joint` is the mean of old and new accuracy. Differences to
refine are paired over draws, with 95 % intervals (Student's t). A draw's base classifier is made
once; the last columns say in how many draws auto took graft, and what rehearsals said of graft. An
npz file is as practice.py takes it; without one it runs on Icons.
"""

import argparse
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from practice import PhotoSet, draw_task, photo_sets, scores
from scipy.stats import t as student

import fewgraft

METHODS = ("refine", "graft", "auto")
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Lesson:
    """One lesson with one method."""

    seed: int
    shots: int
    method: str
    old: float
    new: float
    took: str  # refine or graft
    rehearsed: float  # points that graft was ahead in rehearsal; nan: nothing was rehearsed


def lessons(photos: PhotoSet, seed: int, shots: list[int], unlabelled: int) -> Iterator[Lesson]:
    """All lessons of a draw: its old classes and their photos are the same for all shots."""
    x, y = photos.features, photos.labels
    rows = draw_task(photos, seed, shots[0], unlabelled).base
    v1 = fewgraft.FewgraftClassifier().fit(x[rows], y[rows])
    said = v1.model_.card.graft
    ahead = 100 * (said.graft - said.refine) if said else math.nan
    for number in shots:
        task = draw_task(photos, seed, number, unlabelled)
        assert np.array_equal(task.base, rows)
        for method in METHODS:
            v1.set_params(method=method)
            v2 = v1.learn(x[task.support], y[task.support], unlabelled=x[task.unlabelled])
            answers = v2.predict(x[np.concatenate([task.old, task.new])])
            old, new = (100 * share for share in scores(photos, task, answers))
            yield Lesson(seed, number, method, old, new, v2.outcome_.choice.method, ahead)


def table(name: str, shots: int, done: list[Lesson]) -> str:
    """Old, new and joint accuracy of each method, and the paired difference to refine."""
    by = {m: [one for one in done if (one.method, one.shots) == (m, shots)] for m in METHODS}
    joint = {m: np.array([(one.old + one.new) / 2 for one in own]) for m, own in by.items()}
    lines = [
        f"\n{name}, {shots}-shot, {len(by['refine'])} draws\n",
        "| | old | new | joint | joint − refine | took graft | rehearsed |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for method, own in by.items():
        old, new = (np.mean([getattr(one, key) for one in own]) for key in ("old", "new"))
        ahead = interval(joint[method] - joint["refine"]) if method != "refine" else ""
        took = sum(one.took == "graft" for one in own)
        rehearsed = f"{np.mean([one.rehearsed for one in own]):+.2f}" if method == "auto" else ""
        cells = (f"{old:.1f}", f"{new:.1f}", f"{joint[method].mean():.2f}", ahead, took, rehearsed)
        lines.append(f"| {method} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def interval(differences: Numbers) -> str:
    """The mean, and half a 95 % interval."""
    n = len(differences)
    if n < 2:
        return f"{differences.mean():+.2f}"
    half = student.ppf(0.975, n - 1) * differences.std(ddof=1) / math.sqrt(n)
    return f"{differences.mean():+.2f} ± {half:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="npz files of features")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--shots", default="1,5")
    parser.add_argument("--unlabelled", type=int, default=200, help="photos in the pile")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    shots = list(map(int, asked.shots.split(",")))
    for photos in photo_sets(asked.files):
        done: list[Lesson] = []
        for seed in range(asked.draws):
            done += lessons(photos, seed, shots, asked.unlabelled)
            print(*(vars(one) for one in done if one.seed == seed), sep="\n", flush=True)
        for number in shots:
            print(table(photos.name, number, done), flush=True)


if __name__ == "__main__":
    main()
