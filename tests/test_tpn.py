"""TPN with a learnt network of bandwidths: loops, and limits in which it is something simpler."""

import dataclasses
import math

import pytest
import torch
from novel_tasks import novel_task
from torch import Tensor
from torch.nn.functional import softplus

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.transductive.tpn import LearntBandwidths, TransductivePropagation
from fewgraft.prototypes import directions

pytestmark = pytest.mark.numerical
EPISODES, WAYS, WIDTH = 2, 3, 6
LABELS = torch.tensor([0, 1, 1, 2])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pieces(trained: bool = True) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    found = LearntBandwidths().initial(torch.empty(4, WIDTH), 10.0, 1, rng)
    changes = {"out": 0.3 * drawn(5, 1, 8), "second_bias": drawn(6, 8)} if trained else {}
    return {**found, **changes}


def problem(learnt: dict[str, Tensor]) -> tuple[Task, Queries]:
    centres = drawn(0, EPISODES, WAYS, WIDTH)

    def near(labels: Tensor, seed: int) -> Tensor:
        return directions(centres[:, labels] + 0.7 * drawn(seed, EPISODES, len(labels), WIDTH))

    unlabelled, queries = near(torch.arange(12) % WAYS, 1), near(torch.arange(6) % WAYS, 2)
    return novel_task(near(LABELS, 3), LABELS, unlabelled, queries, learnt=learnt)


def sigma_by_hand(x: Tensor, learnt: dict[str, Tensor]) -> float:
    for name in ("first", "second"):
        x = (learnt[name].double() @ x + learnt[f"{name}_bias"].double()).clamp(min=0)
    return 0.05 + float(softplus(learnt["out"].double() @ x + learnt["out_bias"].double()))


def scores_by_hand(task: Task, query: Tensor, e: int, neighbours: int) -> list[float]:
    """One query [d] of one episode, one edge at a time; labels spread by a power series."""
    assert task.learnt is not None
    learnt = dict(task.learnt)
    points = [x.double() for x in torch.cat([task.support[e], task.unlabelled[e]])]
    n = len(points)
    unit = math.sqrt(sum(float((a - b).square().mean()) for a in points for b in points) / n**2)
    placed = [x / (sigma_by_hand(x, learnt) * unit) for x in points]
    near = torch.tensor([[float((a - b).square().mean()) for b in placed] for a in placed])
    weights = (-0.5 * near.double()).exp()
    kept = [set(row.argsort(descending=True)[:neighbours].tolist()) for row in weights]
    for i in range(n):
        for j in range(n):
            if j not in kept[i] and i not in kept[j]:
                weights[i, j] = 0.0
    degree = weights.sum(1)
    spread = weights / (degree[:, None] * degree).sqrt()
    values = torch.zeros(n, WAYS, dtype=torch.float64)
    values[range(len(LABELS)), LABELS] = 1.0
    found = values.clone()
    for _ in range(4000):
        found = values + 0.99 * spread @ found
    asked = query.double() / (sigma_by_hand(query.double(), learnt) * unit)
    to_query = torch.tensor([math.exp(-0.5 * float((asked - z).square().mean())) for z in placed])
    scores = torch.zeros(WAYS, dtype=torch.float64)
    for i in to_query.argsort(descending=True)[:neighbours].tolist():
        scores += float(to_query[i]) / math.sqrt(float(degree[i])) * found[i]
    return scores.tolist()


def test_one_query_at_a_time() -> None:
    task, queries = problem(pieces())
    found = LearntBandwidths(neighbours=8).fit(task).logits(queries)
    for e in range(EPISODES):
        for q in (0, 5):
            wanted = torch.tensor(scores_by_hand(task, queries.features[e, q], e, 8))
            torch.testing.assert_close(found[e, q].exp(), wanted, rtol=1e-4, atol=1e-6)


def test_a_network_that_knows_nothing_gives_one_bandwidth() -> None:
    learnt = {**pieces(trained=False), "out": torch.zeros(1, 8)}
    task, queries = problem(learnt)
    found = LearntBandwidths(neighbours=5).fit(task).logits(queries)
    one = TransductivePropagation(sigma=0.3, neighbours=5).fit(task).logits(queries)
    torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-4)


def test_the_loss_reaches_the_network() -> None:
    learnt = {name: piece.requires_grad_() for name, piece in pieces().items()}
    task, queries = problem(learnt)
    labels = (torch.arange(6) % WAYS).expand(EPISODES, -1)
    loss, _ = LearntBandwidths(4).loss(task, queries, labels, torch.Generator())
    loss.backward()  # type: ignore[no-untyped-call]
    slope = learnt["out_bias"].grad
    assert slope is not None
    nudged = {name: piece.detach() for name, piece in learnt.items()}
    nudged["out_bias"] = nudged["out_bias"] + 1e-3
    other, _ = LearntBandwidths(4).loss(
        dataclasses.replace(task, learnt=nudged), queries, labels, torch.Generator()
    )
    assert (other - loss).item() / 1e-3 == pytest.approx(slope.item(), rel=0.05)
