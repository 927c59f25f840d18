"""Which score tells photos of no class from photos of known ones?

    .venv/bin/python benchmarks/unknown.py FEATURES.npz ... [--draws 5]

Files are those of benchmarks/practice.py, and so are the draws: 5 classes are foreign, and 5 more
are left out here; the others are old. Half of the old photos, or those marked "train", make the
classifier as the tool does; the other photos of old classes are known ones. A score is large for
known photos. Printed is its AUROC, the mean over draws, and the paired difference to the best
cosine, which the tool uses, with its standard error.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from practice import PhotoSet, draw_task, photo_sets
from torch import Tensor

from fewgraft.app.learning.foreign import auroc
from fewgraft.app.learning.head import class_weights
from fewgraft.prototypes import directions
from fewgraft.whitening import class_means, rooted, space_of, whitening_of

GAMMAS = (5.0, 10.0, 18.0, 30.0)  # of the energy
NEIGHBOURS = (3, 5)  # class means


@dataclass(frozen=True)
class Known:
    """What a classifier keeps of its photos, and photos to score."""

    cosines: Tensor  # [m, K] to class weights, in the whitened space
    means: Tensor  # [m, K] cosines to class means there
    within: Tensor  # [m, K] squared distances to class means under the covariance within classes
    overall: Tensor  # [m] to the mean of all under the covariance of all


def known_of(x: Tensor, y: Tensor, classes: int, asked: Tensor) -> Known:
    """From features [n, d] with labels [n], for features [m, d]."""
    space = space_of(x, y, classes)
    unit = class_means(space(x), y, classes)
    weights = class_weights(space(x), y, classes)
    seen = space(asked)
    centre = class_means(rooted(x), y, classes).mean(0)
    flat, other = (directions(rooted(some) - centre) for some in (x, asked))
    centres = class_means(flat, y, classes)
    return Known(
        seen @ weights.T,
        seen @ directions(unit).T,
        _distances(flat - centres[y], centres, other),
        _distances(flat - flat.mean(0), flat.mean(0)[None], other)[:, 0],
    )


def _distances(residuals: Tensor, centres: Tensor, asked: Tensor) -> Tensor:
    """Squared distances [m, K] under the covariance of residuals [n, d], half shrunk."""
    whitening = whitening_of(residuals, len(residuals), 0.5)
    scale = residuals.square().mean()  # which whitening leaves out
    return torch.cdist(asked @ whitening.T, centres @ whitening.T).square() / scale


def energy(gamma: float) -> Callable[[Known], Tensor]:
    """The log of the sum over classes (Liu et al., NeurIPS 2020), in units of γ."""
    return lambda known: (gamma * known.cosines).logsumexp(-1) / gamma


def nearest(neighbours: int) -> Callable[[Known], Tensor]:
    """The cosine to the so-manyth nearest class mean (after Sun et al., ICML 2022)."""
    return lambda known: known.means.topk(neighbours, dim=-1).values[:, -1]


SCORES: dict[str, Callable[[Known], Tensor]] = {
    "best cosine (the tool)": lambda known: known.cosines.amax(-1),
    "best cosine to a class mean": lambda known: known.means.amax(-1),
    "Mahalanobis, shared covariance": lambda known: -known.within.amin(-1),
    "relative Mahalanobis": lambda known: known.overall - known.within.amin(-1),
    "best less second cosine": lambda known: -known.cosines.topk(2).values.diff(dim=-1)[:, 0],
    **{f"energy, γ = {gamma:.0f}": energy(gamma) for gamma in GAMMAS},
    **{f"cosine to class mean {k}": nearest(k) for k in NEIGHBOURS},
}


def compare(photos: PhotoSet, draws: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in SCORES}
    for seed in range(draws):
        task = draw_task(photos, seed, 1, 0)
        names, labels = np.unique(photos.labels[task.base], return_inverse=True)
        base, old, foreign = (
            torch.from_numpy(photos.features[rows]) for rows in (task.base, task.old, task.foreign)
        )
        known = known_of(base, torch.from_numpy(labels), len(names), torch.cat([old, foreign]))
        for name, score in SCORES.items():
            scores = score(known)
            found[name].append(auroc(scores[: len(old)], scores[len(old) :]))
    print(f"\n{photos.name}, {draws} draws\n\n| score | AUROC | difference |\n|---|---:|---:|")
    ours = np.array(next(iter(found.values())))
    for name, each in found.items():
        ahead = np.array(each) - ours
        error = ahead.std(ddof=1) / np.sqrt(draws)
        print(f"| {name} | {np.mean(each):.3f} | {ahead.mean():+.3f} ± {error:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="npz files of features")
    parser.add_argument("--draws", type=int, default=5)
    asked = parser.parse_args()
    for photos in photo_sets(asked.files):
        compare(photos, asked.draws)


if __name__ == "__main__":
    main()
