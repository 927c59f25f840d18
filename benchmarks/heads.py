"""Heads over the same features: what each makes of old classes and of new ones from a few photos.

    .venv/bin/python benchmarks/heads.py FEATURES.npz ... [--draws 3]

Draws and files are those of benchmarks/practice.py; the pile is left out, so that nothing but the
head differs. Per head: accuracy of old classes alone, of new classes alone, and of both at the bias
on new classes that is best on the very photos asked. That bias is no way to choose one: it shows
what the head could do with the best border.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from practice import NEW, PhotoSet, draw_task, photo_sets
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from fewgraft.app.learning.head import class_weights
from fewgraft.whitening import class_means, space_of, whitening_of

Head = Callable[[Tensor, Tensor, int, Tensor], Tensor]
"""(features [n, d], labels [n], how many classes are old, asked [m, d]) → scores [m, K].

The last classes are new and have few photos."""

BIASES = np.linspace(-1, 1, 401)


def means(x: Tensor, y: Tensor, old: int, asked: Tensor) -> Tensor:
    """Cosines to class means of centred features (SimpleShot)."""
    centre = class_means(x[y < old], y[y < old], old).mean(0)
    weights = class_means(normalize(x - centre, dim=-1), y, int(y.max()) + 1)
    return normalize(asked - centre, dim=-1) @ normalize(weights, dim=-1).T


def diagonal(x: Tensor, y: Tensor, old: int, asked: Tensor) -> Tensor:
    """The same after division by the spread within old classes."""
    mine = y < old
    spread = (x[mine] - class_means(x[mine], y[mine], old)[y[mine]]).std(0) + 1e-3
    return means(x / spread, y, old, asked / spread)


def whitened(shrinkage: float | None, *, fitted: bool = False) -> Head:
    """Cosines in the whitened space, with class means or fitted weights for old classes."""

    def head(x: Tensor, y: Tensor, old: int, asked: Tensor) -> Tensor:
        mine = y < old
        space = space_of(x[mine], y[mine], old, shrinkage=shrinkage)
        weights = normalize(class_means(space(x), y, int(y.max()) + 1), dim=-1)
        if fitted:
            weights[:old] = class_weights(space(x[mine]), y[mine], old)
        return space(asked) @ weights.T

    return head


def mahalanobis(x: Tensor, y: Tensor, old: int, asked: Tensor) -> Tensor:
    """Negative distances under the shared covariance, half shrunk."""
    mine = y < old
    unit, other = normalize(x, dim=-1), normalize(asked, dim=-1)
    residuals = unit[mine] - class_means(unit[mine], y[mine], old)[y[mine]]
    whitening = whitening_of(residuals, int(mine.sum()) - old, 0.5)
    centres = class_means(unit, y, int(y.max()) + 1)
    distances = torch.cdist(other @ whitening.T, centres @ whitening.T).square()
    return -distances / distances.median()


def fecam(x: Tensor, y: Tensor, old: int, asked: Tensor) -> Tensor:
    """Covariances per class, shrunk and correlated (FeCAM, Goswami et al., NeurIPS 2023).

    Roots of features; each covariance + mean variance + mean covariance on and off the diagonal,
    normalised to correlations. A class of fewer than five photos has the mean of the old ones.
    """
    roots, other = x.clamp(min=0).sqrt().double(), asked.clamp(min=0).sqrt().double()
    width = x.shape[1]
    scores = []
    shared = torch.zeros(width, width, dtype=torch.double)
    for label in range(int(y.max()) + 1):
        own = roots[y == label]
        if label < old:
            covariance = torch.cov(own.T)
            shared += covariance / old
        else:
            covariance = shared
        variance = covariance.diagonal().mean()
        beside = (covariance.sum() - covariance.diagonal().sum()) / (width * (width - 1))
        identity = torch.eye(width, dtype=torch.double)
        shrunk = covariance + variance * identity + beside * (1 - identity)
        scale = shrunk.diagonal().sqrt()
        factor = torch.linalg.cholesky(shrunk / scale / scale[:, None])
        apart = normalize(other, dim=-1) - normalize(own.mean(0), dim=0)
        solved = torch.linalg.solve_triangular(factor, apart.T, upper=False)
        scores.append(-solved.square().sum(0))
    found = torch.stack(scores, dim=1)
    return (found / found.abs().median()).float()


def ranpac(x: Tensor, y: Tensor, old: int, asked: Tensor) -> Tensor:
    """Ridge regression on rectified random projections (RanPAC, McDonnell et al., NeurIPS 2023).

    The ridge is chosen on a fifth of the old photos.
    """
    del old
    rng = torch.Generator().manual_seed(0)
    projection = torch.randn(x.shape[1], 4000, generator=rng)
    hidden, other = torch.relu(x @ projection), torch.relu(asked @ projection)
    targets = one_hot(y).float()
    held = torch.rand(len(y), generator=rng) < 0.2

    def solved(rows: Tensor, ridge: float) -> Tensor:
        moments = hidden[rows].T @ hidden[rows]
        moments.diagonal().add_(ridge * moments.diagonal().mean())
        weights: Tensor = torch.linalg.solve(moments, hidden[rows].T @ targets[rows])
        return weights

    ridges = [1e-3, 1e-2, 1e-1, 1.0]
    right = [(hidden[held] @ solved(~held, r)).argmax(-1) == y[held] for r in ridges]
    best = max(zip(ridges, right, strict=True), key=lambda pair: float(pair[1].sum()))[0]
    return other @ solved(torch.ones_like(held), best)


def logistic(x: Tensor, y: Tensor, old: int, asked: Tensor) -> Tensor:
    """Logistic regression of old classes, directions of weights; prototypes beside them."""
    mine = y < old
    centre = class_means(x[mine], y[mine], old).mean(0)
    unit = normalize(x - centre, dim=-1)
    model = LogisticRegression(C=10.0, max_iter=200).fit(unit[mine].numpy(), y[mine].numpy())
    coefficients = torch.from_numpy(model.coef_).float()
    weights = normalize(class_means(unit, y, int(y.max()) + 1), dim=-1)
    weights[:old] = normalize(coefficients, dim=-1)
    return normalize(asked - centre, dim=-1) @ weights.T


HEADS: dict[str, Head] = {
    "class means": means,
    "diagonal": diagonal,
    "whitened, λ = 0.1": whitened(0.1),
    "whitened, λ = 0.3": whitened(0.3),
    "whitened, λ estimated": whitened(None),
    "whitened, λ estimated, weights fitted (the tool)": whitened(None, fitted=True),
    "not whitened, weights fitted": whitened(1.0, fitted=True),
    "Mahalanobis, shared covariance": mahalanobis,
    "FeCAM": fecam,
    "RanPAC": ranpac,
    "logistic regression and prototypes": logistic,
}


def judged(scores: Tensor, labels: Tensor, old: int) -> tuple[float, float, float]:
    """Old among old, new among new, and both at the best bias."""
    is_old = labels < old
    right_old = (scores[is_old, :old].argmax(-1) == labels[is_old]).float().mean().item()
    among = scores[~is_old, old:].argmax(-1) + old == labels[~is_old]
    spread = scores[:, :old].amax(-1).std().item()
    joint = 0.0
    for bias in spread * 6 * BIASES:
        pushed = scores.clone()
        pushed[:, old:] += bias
        right = pushed.argmax(-1) == labels
        both = right[is_old].float().mean() + right[~is_old].float().mean()
        joint = max(joint, both.item() / 2)
    return right_old, among.float().mean().item(), joint


def compare(photos: PhotoSet, shots: int, draws: int) -> None:
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in HEADS}
    for seed in range(draws):
        task = draw_task(photos, seed, shots, 200)
        given = np.concatenate([task.base, task.support])
        names = [*np.unique(photos.labels[task.base]), *np.unique(photos.labels[task.support])]
        place = {name: number for number, name in enumerate(names)}
        asked = np.concatenate([task.old, task.new])
        labels, truth = (
            torch.tensor([place[name] for name in photos.labels[rows]]) for rows in (given, asked)
        )
        x, q = torch.from_numpy(photos.features[given]), torch.from_numpy(photos.features[asked])
        for name, head in HEADS.items():
            old = len(names) - NEW
            found[name].append(judged(head(x, labels, old, q), truth, old))
    print(f"\n{photos.name}, {shots}-shot, {draws} draws\n")
    print("| head | old alone | new alone | joint, best bias |\n|---|---:|---:|---:|")
    for name, each in found.items():
        print(f"| {name} | {' | '.join(f'{100 * v:.1f}' for v in np.mean(each, 0))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="npz files of features")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--shots", default="1,5")
    asked = parser.parse_args()
    for photos in photo_sets(asked.files):
        for shots in map(int, asked.shots.split(",")):
            compare(photos, shots, asked.draws)


if __name__ == "__main__":
    main()
