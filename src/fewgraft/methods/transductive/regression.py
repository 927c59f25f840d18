"""Logistic regression of many small episodes, as scikit-learn's default solver finds it.

    min over W, b of (1/n) Σ_i CE(W x_i + b, y_i) + ‖W‖² / (2 C n)

The same optimiser from the same start, with the same rule to stop: pseudo-labels change with it, so
it is a part of the methods that use it. What is left out are checks of arguments, which take longer
than the sums of an episode. Two classes have one row, of the second class against the first.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

Numbers = NDArray[np.float64]
STOP = {"maxiter": 1000, "maxls": 50, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps}


def regressions(
    features: Tensor, labels: Tensor, ways: int, strength: float, chosen: Tensor | None = None
) -> Tensor:
    """Weights and biases [E, N, d+1] from features [E, n, d] and labels [E, n].

    `strength` is C; `chosen` [E, n] says which pictures take part, and each class has some.
    """
    inputs = torch.cat([features, torch.ones_like(features[..., :1])], 2).double().numpy(force=True)
    classes = labels.numpy(force=True)
    rows = np.ones_like(classes, bool) if chosen is None else chosen.numpy(force=True)
    each = zip(inputs, classes, rows, strict=True)
    found = [_regression(x[some], y[some], ways, strength) for x, y, some in each]
    return torch.from_numpy(np.stack(found)).to(features)


def linear(features: Tensor, weights: Tensor) -> Tensor:
    """Scores [E, n, N] of features [E, n, d] with weights and biases [E, N, d+1]."""
    return features @ weights[..., :-1].transpose(1, 2) + weights[:, None, :, -1]


def _regression(x: Numbers, y: NDArray[np.int64], ways: int, strength: float) -> Numbers:
    """[N, d+1] of one episode; the last column of x [n, d+1] is 1."""
    first = 1 if ways <= 2 else 0  # the first class of two has score 0
    targets = np.eye(ways)[y][:, first:]
    shape, penalty = (ways - first, x.shape[1]), 1 / (strength * len(x))

    def loss(flat: Numbers) -> tuple[float, Numbers]:
        weights = flat.reshape(shape)
        scores = x @ weights.T
        largest = scores.max(1, keepdims=True, initial=0.0 if first else -np.inf)
        powers = np.exp(scores - largest)
        total = powers.sum(1, keepdims=True)
        if first:
            total += np.exp(-largest)
        entropies = np.log(total) + largest
        value = (entropies.sum() - (scores * targets).sum()) / len(x)
        slope = (powers / total - targets).T @ x / len(x)
        slope[:, :-1] += penalty * weights[:, :-1]
        return value + penalty / 2 * (weights[:, :-1] ** 2).sum(), slope.ravel()

    weights = np.zeros((ways, x.shape[1]))
    if ways > 1:
        start = np.zeros(shape[0] * shape[1])
        best = minimize(loss, start, jac=True, method="L-BFGS-B", options=STOP)
        weights[first:] = best.x.reshape(shape)
    return weights
