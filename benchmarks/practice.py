"""The tool beside what one would write with scikit-learn, on the same features.

    .venv/bin/python benchmarks/practice.py FEATURES.npz ... [--draws 4] [--shots 1,5]

Per draw: 5 new classes, 5 foreign ones, all others old; 1 or 5 photos of each new class; a pile of
200 photos, half of them new; no check photos. All ways see the same features. `joint` is the mean
of old and new accuracy. `--unknown` prints instead which photos the tool answers "unknown", with
and without the pile. An npz file holds features [n, d], labels [n] and, where some photos are
for training only, part [n] ("train" or not). Without a file it runs on Icons, through the network
in the package.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import normalize
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

import fewgraft
from fewgraft.data.parts import Part

Features = NDArray[np.float32]
Labels = NDArray[Any]
Rows = NDArray[np.int64]
NEW, FOREIGN = 5, 5


@dataclass(frozen=True)
class PhotoSet:
    """Features of labelled photos."""

    name: str
    features: Features
    labels: Labels
    train: NDArray[np.bool_] | None  # None: half of each class is


@dataclass(frozen=True)
class Draw:
    """One task, as rows of a photo set."""

    base: Rows
    support: Rows
    unlabelled: Rows
    old: Rows  # asked
    new: Rows
    foreign: Rows


def draw_task(photos: PhotoSet, seed: int, shots: int, unlabelled: int) -> Draw:
    """Classes and photos by chance; the same classes for all shots of a seed."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(photos.labels))
    own = {name: rng.permutation(np.flatnonzero(photos.labels == name)) for name in classes}
    new, foreign, old = np.split(classes, [NEW, NEW + FOREIGN])
    base, rest = [], []
    for name in old:
        rows = own[name]
        train = photos.train[rows] if photos.train is not None else np.arange(len(rows)) % 2 == 0
        base.append(rows[train])
        rest.append(rows[~train])
    seen = rng.permutation(np.concatenate(rest))
    half = unlabelled // 2
    some = [
        own[name][shots : shots + min(half // NEW, (len(own[name]) - shots) // 2)] for name in new
    ]
    asked = [own[name][shots + len(used) :] for name, used in zip(new, some, strict=True)]
    return Draw(
        np.concatenate(base),
        np.concatenate([own[name][:shots] for name in new]),
        np.concatenate([*some, seen[:half]]),
        seen[half : half + 2000],
        np.concatenate(asked),
        np.concatenate([own[name][:30] for name in foreign]),
    )


Answer = Callable[[PhotoSet, Draw], Labels]


def supervised(model: Any, *, unit: bool = True) -> Answer:
    """A scikit-learn classifier of base photos and examples."""

    def answer(photos: PhotoSet, task: Draw) -> Labels:
        x = normalize(photos.features) if unit else photos.features
        rows = np.concatenate([task.base, task.support])
        fitted = clone(model).fit(x[rows], photos.labels[rows])
        answers: Labels = fitted.predict(x[np.concatenate([task.old, task.new])])
        return answers

    return answer


def semi_supervised(model: Any, *, unit: bool = True) -> Answer:
    """A scikit-learn classifier that is given the unlabelled photos as well."""

    def answer(photos: PhotoSet, task: Draw) -> Labels:
        x = normalize(photos.features) if unit else photos.features
        names, y = np.unique(photos.labels, return_inverse=True)
        rows = np.concatenate([task.base, task.support, task.unlabelled])
        given = np.where(np.isin(rows, task.unlabelled), -1, y[rows])
        fitted = clone(model).fit(x[rows], given)
        answers: Labels = names[fitted.predict(x[np.concatenate([task.old, task.new])])]
        return answers

    return answer


def tool(photos: PhotoSet, task: Draw, tolerance: float | None = None) -> Labels:
    """Fewgraft as it comes, or with a tolerance."""
    x, y = photos.features, photos.labels
    v1 = fewgraft.FewgraftClassifier(tolerance=tolerance).fit(x[task.base], y[task.base])
    v2 = v1.learn(x[task.support], y[task.support], unlabelled=x[task.unlabelled])
    return v2.predict(x[np.concatenate([task.old, task.new])])


def logistic(**settings: Any) -> LogisticRegression:
    return LogisticRegression(max_iter=200, **settings)


WAYS: dict[str, Answer] = {
    "Fewgraft": tool,
    "nearest mean": supervised(NearestCentroid()),
    "logistic regression": supervised(logistic(), unit=False),
    "balanced logistic regression": supervised(logistic(class_weight="balanced"), unit=False),
    "LDA (Ledoit–Wolf)": supervised(LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")),
    "self-training": semi_supervised(
        SelfTrainingClassifier(logistic(class_weight="balanced"), threshold=0.8, max_iter=3),
        unit=False,
    ),
    "label spreading": semi_supervised(LabelSpreading(kernel="knn", n_neighbors=10)),
}


def scores(photos: PhotoSet, task: Draw, answers: Labels) -> tuple[float, float]:
    """Old and new accuracy."""
    truth = photos.labels[np.concatenate([task.old, task.new])]
    right = answers == truth
    return float(right[: len(task.old)].mean()), float(right[len(task.old) :].mean())


def compare(photos: PhotoSet, shots: int, draws: int, unlabelled: int, ways: Iterable[str]) -> None:
    """Print a table: old, new and joint accuracy, and the paired difference to the tool."""
    found: dict[str, list[tuple[float, float]]] = {}
    seconds: dict[str, float] = {}
    for seed in range(draws):
        task = draw_task(photos, seed, shots, unlabelled)
        for way in ways:
            start = time.perf_counter()
            found.setdefault(way, []).append(scores(photos, task, WAYS[way](photos, task)))
            seconds[way] = seconds.get(way, 0) + time.perf_counter() - start
    print(f"\n{photos.name}, {shots}-shot, {draws} draws\n")
    print("| | old | new | joint | tool ahead: old | tool ahead: joint | s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    ours = 100 * np.array(found["Fewgraft"])
    for way, each in found.items():
        own = 100 * np.array(each)
        old, new = own.mean(0)
        ahead = ours - own
        gap = [_interval(ahead[:, 0]), _interval(ahead.mean(1))] if way != "Fewgraft" else ["", ""]
        cells = [f"{old:.1f}", f"{new:.1f}", f"{(old + new) / 2:.1f}", *gap]
        print(f"| {way} | {' | '.join(cells)} | {seconds[way] / draws:.0f} |", flush=True)


def rejects(photos: PhotoSet, shots: int, draws: int, unlabelled: int) -> None:
    """Print a table: the shares of old, new and foreign photos that the tool rejects."""
    found: dict[str, list[list[float]]] = {"with the pile": [], "without": []}
    x, y = photos.features, photos.labels
    for seed in range(draws):
        task = draw_task(photos, seed, shots, unlabelled)
        v1 = fewgraft.FewgraftClassifier(unknown=True).fit(x[task.base], y[task.base])
        for way, pile in zip(found, (x[task.unlabelled], None), strict=True):
            v2 = v1.learn(x[task.support], y[task.support], unlabelled=pile)
            asked = (task.old, task.new, task.foreign)
            found[way].append([float((v2.predict(x[rows]) == "unknown").mean()) for rows in asked])
    print(f"\n{photos.name}, {shots}-shot, {draws} draws: answered unknown, %\n")
    print("| | old | new | foreign |")
    print("|---|---:|---:|---:|")
    for way, each in found.items():
        cells = " | ".join(f"{share:.1f}" for share in 100 * np.mean(each, axis=0))
        print(f"| {way} | {cells} |", flush=True)


def _interval(differences: NDArray[np.float64]) -> str:
    spread = (
        1.96 * differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else 0
    )
    return f"{differences.mean():.1f} ± {spread:.1f}"


def read_set(path: Path) -> PhotoSet:
    """An npz file of features."""
    with np.load(path) as content:
        part = content["part"] if "part" in content else np.array([""])
        train = part == "train" if (part == "train").any() else None
        return PhotoSet(path.stem, content["features"].astype(np.float32), content["labels"], train)


def icons() -> PhotoSet:
    """Features of the embedded pictures, by the pre-trained network in the package."""
    from fewgraft.model import embed_all
    from fewgraft.zoo import shipped_model

    data = fewgraft.open_data("icons")
    rows = np.concatenate(
        [data.indices(part) for part in (Part.NOVEL_TRAIN, Part.NOVEL_VAL, Part.NOVEL_TEST)]
    )
    features = embed_all(shipped_model("icons", "pre-trained"), data.pictures[rows]).numpy()
    names = np.array(data.classes)[data.labels[rows]]
    return PhotoSet("icons", features, names, None)


def photo_sets(files: Iterable[Path]) -> list[PhotoSet]:
    """Those of the files, or Icons if there are none."""
    return [read_set(path) for path in files] or [icons()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="npz files of features")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--shots", default="1,5")
    parser.add_argument("--unlabelled", type=int, default=200, help="photos in the pile")
    parser.add_argument("--tolerance", type=float, help="of the tool; its usual one if not given")
    parser.add_argument("--unknown", action="store_true", help="what the tool rejects")
    parser.add_argument("--only", help="ways to compare, separated by commas; all if not given")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")  # of solvers that stop early and of classes with one photo
    WAYS["Fewgraft"] = partial(tool, tolerance=asked.tolerance)
    ways = ["Fewgraft", *asked.only.split(",")] if asked.only else list(WAYS)
    for photos in photo_sets(asked.files):
        for shots in map(int, asked.shots.split(",")):
            if asked.unknown:
                rejects(photos, shots, asked.draws, asked.unlabelled)
                continue
            compare(photos, shots, asked.draws, asked.unlabelled, dict.fromkeys(ways))


if __name__ == "__main__":
    main()
