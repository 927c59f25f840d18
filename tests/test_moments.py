"""FeCAM and RanPAC against loops over episodes, classes and pictures in NumPy."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.incremental.fecam import FeCAM
from fewgraft.methods.incremental.ranpac import RanPAC, _projection
from fewgraft.prototypes import direction_logits, directions

pytestmark = pytest.mark.numerical

E, BASE, EACH, D, Q = 2, 5, 12, 6, 4
LABELS = torch.tensor([[0, 0, 1, 2, 2, 2], [2, 1, 1, 0, 1, 0]])  # classes of 1, 2 and 3 supports
Array = NDArray[np.float64]


def problem(each: int = EACH) -> tuple[Task, Queries]:
    rng = torch.Generator().manual_seed(0)
    means = torch.randn(BASE, 1, D, generator=rng)
    base = directions(means + 0.5 * torch.randn(BASE, each, D, generator=rng))
    support = directions(torch.randn(E, LABELS.shape[1], D, generator=rng))
    weights = directions(base.mean(1))
    asked = directions(torch.randn(E, Q, D, generator=rng))
    task = Task(
        ways=3,
        support=support,
        labels=LABELS,
        unlabelled=torch.empty(E, 0, D),
        base_unlabelled=torch.empty(E, 0, BASE),
        weights=weights,
        gamma=20.0,
        numbers=torch.arange(E),
        base_features=base,
    )
    return task, Queries(asked, direction_logits(asked, weights, 20.0))


def of_class(task: Task, episode: int, label: int) -> Array:
    return task.support[episode][task.labels[episode] == label].double().numpy()


def root(x: Array) -> Array:
    found: Array = np.sign(x) * np.sqrt(np.abs(x))
    return found


def unit(x: Array) -> Array:
    found: Array = x / np.linalg.norm(x)
    return found


def correlation(covariance: Array, shrinkage: float) -> Array:
    """Entry by entry."""
    d = len(covariance)
    v1 = np.mean([covariance[i, i] for i in range(d)])
    v2 = np.mean([covariance[i, j] for i in range(d) for j in range(d) if i != j])
    shrunk = np.array(
        [
            [covariance[i, j] + shrinkage * (v1 if i == j else v2) for j in range(d)]
            for i in range(d)
        ]
    )
    found: Array = shrunk / np.sqrt(np.outer(np.diag(shrunk), np.diag(shrunk)))
    return found


@pytest.mark.parametrize("each", [EACH, 3])
@pytest.mark.parametrize("shrinkage", [0.5, 10.0])
def test_fecam(shrinkage: float, each: int) -> None:
    """With more pictures of a class than features, and with fewer."""
    task, queries = problem(each)
    assert task.base_features is not None
    logits = FeCAM(shrinkage).fit(task).logits(queries)
    base = [root(own.double().numpy()) for own in task.base_features]
    covariances = [np.cov(own.T) for own in base]
    shared = np.mean(covariances, axis=0)
    for episode in range(E):
        novel = [root(of_class(task, episode, label)) for label in range(3)]
        for place, query in enumerate(queries.features[episode].double().numpy()):
            for column, (own, spread) in enumerate(
                zip([*base, *novel], [*covariances, *[shared] * 3], strict=True)
            ):
                apart = unit(root(query)) - unit(own.mean(0))
                expected = -apart @ np.linalg.inv(correlation(spread, shrinkage)) @ apart
                assert logits[episode, place, column].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("ridge", [0.01, 1.0])
def test_ranpac(ridge: float) -> None:
    """Supports come as often as makes a novel class as large as a base class, in one regression."""
    task, queries = problem()
    assert task.base_features is not None
    logits = RanPAC(ridge, projections=40).fit(task).logits(queries)
    projection = _projection(D, 40).numpy()
    base = list(task.base_features.double().numpy())
    moments = sum((h := np.maximum(own @ projection, 0)).T @ h for own in base)
    added = ridge * np.diag(moments).mean() * np.eye(40)
    for episode in range(E):
        own = [of_class(task, episode, label) for label in range(3)]
        novel = [np.repeat(pictures, EACH // len(pictures), axis=0) for pictures in own]
        x = np.concatenate([*base, *novel])
        y = np.repeat(np.eye(BASE + 3), EACH, axis=0)
        hidden = np.maximum(x @ projection, 0)
        weights = np.linalg.solve(hidden.T @ hidden + added, hidden.T @ y)
        asked = np.maximum(queries.features[episode].double().numpy() @ projection, 0)
        np.testing.assert_allclose(logits[episode].numpy(), asked @ weights, rtol=1e-4, atol=1e-6)


def test_a_projection_is_normal_and_always_the_same() -> None:
    drawn = _projection(50, 400)
    assert drawn.mean().item() == pytest.approx(0, abs=0.02)
    assert drawn.std().item() == pytest.approx(1, abs=0.02)
    assert torch.equal(drawn, _projection(50, 400))
