"""The TEAM-like metric: scikit-learn, loops over pairs, and limits in which it is simpler."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from novel_tasks import novel_task
from sklearn.covariance import LedoitWolf
from torch import Tensor

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.transductive.team import (
    AdaptiveMetric,
    metric_root,
    pair_scatter,
    shrunk_covariance,
)
from fewgraft.prototypes import directions

pytestmark = pytest.mark.numerical
EPISODES, WAYS, WIDTH = 3, 3, 6
LABELS = torch.tensor([0, 1, 1, 2, 2, 2])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem() -> tuple[Task, Queries]:
    sizes = (20, 20, len(LABELS))
    unlabelled, queries, support = (
        directions(drawn(seed, EPISODES, size, WIDTH)).float() for seed, size in enumerate(sizes)
    )
    return novel_task(support, LABELS, unlabelled, queries)


@pytest.mark.parametrize(("n", "width"), [(20, 6), (8, 30), (200, 4)])
def test_the_covariance_is_that_of_scikit_learn(n: int, width: int) -> None:
    features = drawn(0, 3, n, width) * drawn(1, width).exp()
    found = shrunk_covariance(features)
    for e in range(3):
        wanted = LedoitWolf().fit(features[e].numpy()).covariance_
        np.testing.assert_allclose(found[e], wanted, rtol=1e-9, atol=1e-12)


def test_pairs_one_by_one() -> None:
    support = drawn(0, EPISODES, len(LABELS), WIDTH)
    found = pair_scatter(support, LABELS.expand(EPISODES, -1), WAYS)
    for e in range(EPISODES):
        pairs = [
            support[e, i] - support[e, j]
            for i, j in itertools.combinations(range(len(LABELS)), 2)
            if LABELS[i] == LABELS[j]
        ]
        assert len(pairs) == 4
        wanted = sum(torch.outer(pair, pair) for pair in pairs) / len(pairs)
        torch.testing.assert_close(found[e], wanted)


def test_one_shot_has_no_pairs() -> None:
    support = drawn(0, 1, WAYS, WIDTH)
    assert (pair_scatter(support, torch.arange(WAYS)[None], WAYS) == 0).all()


@pytest.mark.parametrize("together", [False, True])
def test_against_an_inverse_per_episode(together: bool) -> None:
    task, queries = problem()
    found = AdaptiveMetric(0.7, 0.5, together).fit(task).logits(queries).double()
    for e in range(EPISODES):
        support, pile, asked = (
            part[e].double().numpy() for part in (task.support, task.unlabelled, queries.features)
        )
        spread = LedoitWolf().fit(np.concatenate([support, pile])).covariance_
        pairs = pair_scatter(task.support[e : e + 1].double(), LABELS[None], WAYS)[0].numpy()
        ridge = 0.7 * np.trace(spread) / WIDTH * np.eye(WIDTH)
        metric = np.linalg.inv(spread + ridge + 0.5 * pairs)
        powers = np.empty((len(asked), WAYS))
        for q, c in np.ndindex(*powers.shape):
            apart = asked[q] - support[LABELS.numpy() == c].mean(0)
            powers[q, c] = np.exp(-apart @ metric @ apart / 2)
        shares = powers / powers.sum(1, keepdims=True)
        if together:
            shares = shares * powers / powers.sum(0)
            shares /= shares.sum(1, keepdims=True)
        np.testing.assert_allclose(found[e].softmax(-1), shares, rtol=1e-3, atol=1e-6)


def test_a_round_covariance_gives_euclidean_distances() -> None:
    root = metric_root(0.25 * torch.eye(WIDTH).double()[None])
    a, b = drawn(0, 1, 4, WIDTH), drawn(1, 1, 4, WIDTH)
    torch.testing.assert_close(((a - b) @ root).norm(dim=-1), 2 * (a - b).norm(dim=-1))


def test_linear_maps_change_nothing_without_shrinkage() -> None:
    features, turn = drawn(0, 1, 30, WIDTH), drawn(1, WIDTH, WIDTH)

    def distances(x: Tensor) -> Tensor:
        apart = x - x.mean(1, keepdim=True)
        placed = x @ metric_root(apart.mT @ apart / 30)
        return torch.cdist(placed, placed)

    torch.testing.assert_close(
        distances(features @ turn), distances(features), rtol=1e-5, atol=1e-5
    )


def test_together_the_other_queries_count() -> None:
    task, queries = problem()
    few = Queries(queries.features[:, :4], queries.base_logits[:, :4])
    solution = AdaptiveMetric(together=True).fit(task)
    assert not torch.allclose(
        solution.logits(few).softmax(-1), solution.logits(queries)[:, :4].softmax(-1), atol=1e-3
    )


def test_the_covariance_of_u_decides() -> None:
    task, queries = problem()
    stretched = dataclasses.replace(
        task, unlabelled=directions(task.unlabelled * torch.linspace(0.1, 3, WIDTH))
    )
    first, second = (AdaptiveMetric().fit(t).logits(queries) for t in (task, stretched))
    assert not torch.allclose(first, second, atol=0.1)
