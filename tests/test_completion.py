"""Completion from base classes: loops, and limits in which it is something simpler."""

import dataclasses

import numpy as np
import pytest
import torch
from novel_tasks import novel_task
from numpy.typing import NDArray
from torch import Tensor

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Queries, Task
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.methods.soft_k_means import SoftKMeans
from fewgraft.methods.transductive.completion import BaseCompletion
from fewgraft.prototypes import directions

pytestmark = pytest.mark.numerical
Numbers = NDArray[np.float64]
EPISODES, WAYS, BASE, WIDTH = 3, 3, 6, 8
LABELS = torch.tensor([0, 1, 1, 2, 2, 2])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pieces(trained: bool = True) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    found = BaseCompletion().initial(torch.empty(BASE, WIDTH), 10.0, 1, rng)
    if trained:
        names = ("encoder_bias", "decoder_bias", "out", "out_bias")
        found |= {name: 0.3 * drawn(k, *found[name].shape) for k, name in enumerate(names)}
    return found


def problem(learnt: dict[str, Tensor], absent: Tensor | None = None) -> tuple[Task, Queries]:
    unlabelled, queries = (directions(drawn(seed, EPISODES, 15, WIDTH)) for seed in (0, 1))
    support = directions(drawn(2, EPISODES, len(LABELS), WIDTH))
    base = directions(drawn(3, BASE, 5, WIDTH))
    return novel_task(
        support, LABELS, unlabelled, queries, base_features=base, learnt=learnt, absent=absent
    )


def leaky(x: Numbers) -> Numbers:
    return np.where(x > 0, x, 0.01 * x)


def unit(x: Numbers) -> Numbers:
    return np.asarray(x / np.linalg.norm(x))


def completed_by_hand(task: Task, e: int, p: Numbers, neighbours: int) -> Numbers:
    """One prototype [d] at a time."""
    assert task.learnt is not None
    assert task.base_features is not None
    n = {name: piece.double().numpy() for name, piece in task.learnt.items()}
    base = [unit(of_class.double().numpy().mean(0)) for of_class in task.base_features]
    there = [b for b in range(BASE) if task.absent is None or b not in task.absent[e].tolist()]
    nearest = sorted(there, key=lambda b: -(p @ base[b]))[:neighbours]
    powers = np.exp([float(n["sharpness"]) * (p @ base[b]) for b in nearest])
    code = leaky(n["encoder"] @ p + n["encoder_bias"])
    for share, b in zip(powers / powers.sum(), nearest, strict=True):
        code = code + share * leaky(n["encoder"] @ base[b] + n["encoder_bias"])
    hidden = leaky(n["decoder"] @ code + n["decoder_bias"])
    return np.asarray(p + n["out"] @ hidden + n["out_bias"])


def by_hand(task: Task, e: int, neighbours: int, scale: float) -> Numbers:
    support, pile = (part[e].double().numpy() for part in (task.support, task.unlabelled))
    first = [unit(support[LABELS.numpy() == c].mean(0)) for c in range(WAYS)]
    second = [completed_by_hand(task, e, p, neighbours) for p in first]
    found = []
    for c in range(WAYS):
        gaussians = []
        for centres in (first, second):
            weights = [float(label == c) for label in LABELS]
            for u in pile:
                powers = np.exp([scale * (u @ unit(centre)) for centre in centres])
                weights.append(powers[c] / powers.sum())
            x, w = np.concatenate([support, pile]), np.array(weights)[:, None] / sum(weights)
            mean = (w * x).sum(0)
            gaussians.append((mean, (w * (x - mean) ** 2).sum(0)))
        (m1, v1), (m2, v2) = gaussians
        found.append(unit((m1 * v2 + m2 * v1) / (v1 + v2)))
    return np.stack(found)


@pytest.mark.parametrize("absent", [None, torch.tensor([[0, 3, 1], [5, 4, 2], [1, 2, 3]])])
@pytest.mark.parametrize("neighbours", [2, 10])
def test_one_class_at_a_time(absent: Tensor | None, neighbours: int) -> None:
    task, _ = problem(pieces(), absent)
    if absent is not None and neighbours > BASE - WAYS:
        neighbours = BASE - WAYS
    found = BaseCompletion(neighbours, 7.0).fit(task).novel
    for e in range(EPISODES):
        wanted = by_hand(task, e, neighbours, 7.0)
        np.testing.assert_allclose(found[e], wanted, rtol=1e-4, atol=1e-5)


def test_nothing_learnt_is_one_step_of_soft_k_means() -> None:
    task, queries = problem(pieces(trained=False))
    found = BaseCompletion(scale=10.0).fit(task).logits(queries)
    plain = SoftKMeans(steps=1, scale=5.0).fit(task).logits(queries)  # of squared distances
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
    moved = BaseCompletion(scale=10.0).fit(problem(pieces())[0]).logits(queries)
    assert not torch.allclose(moved, plain, atol=1e-2)


def test_without_u_there_is_nothing_to_fuse() -> None:
    task, queries = problem(pieces())
    alone = dataclasses.replace(task, unlabelled=task.unlabelled[:, :0])
    found = BaseCompletion().fit(alone).logits(queries)
    torch.testing.assert_close(found, NearestPrototype().fit(alone).logits(queries))


def test_the_loss_is_the_distance_to_the_means_of_the_queries() -> None:
    learnt = {name: piece.requires_grad_() for name, piece in pieces().items()}
    task, queries = problem(learnt)
    labels = (torch.arange(15) % WAYS).expand(EPISODES, -1)
    found, logits = BaseCompletion().loss(task, queries, labels, torch.Generator())
    assert logits.shape == (EPISODES, 15, WAYS)
    total = 0.0
    for e in range(EPISODES):
        for c in range(WAYS):
            p = unit(task.support[e][c == LABELS].double().mean(0).numpy())
            detached = dataclasses.replace(task, learnt={k: v.detach() for k, v in learnt.items()})
            true = unit(queries.features[e][labels[e] == c].double().mean(0).numpy())
            total += ((completed_by_hand(detached, e, p, 10) - true) ** 2).sum()
    assert found.item() == pytest.approx(total / (EPISODES * WAYS), rel=1e-4)
    found.backward()  # type: ignore[no-untyped-call]
    assert all(piece.grad is not None and (piece.grad != 0).any() for piece in learnt.values())


def test_struck_classes_take_no_part() -> None:
    absent = torch.tensor([[1, 4]]).expand(EPISODES, -1)
    task, queries = problem(pieces(), absent)
    assert task.base_features is not None
    other = task.base_features.clone()
    other[[1, 4]] = directions(drawn(9, 2, 5, WIDTH))
    method = BaseCompletion(neighbours=4)
    first, second = (
        method.fit(dataclasses.replace(task, base_features=base)).logits(queries)
        for base in (task.base_features, other)
    )
    torch.testing.assert_close(first, second)


def test_it_says_what_is_missing() -> None:
    task, _ = problem(pieces())
    with pytest.raises(FewgraftError, match="features of base/train"):
        BaseCompletion().fit(dataclasses.replace(task, base_features=None))
