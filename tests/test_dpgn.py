"""DPGN on features: one vertex and one edge at a time, and what must not matter."""

import dataclasses

import pytest
import torch
from torch import Tensor

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.transductive.dpgn import WIDTH, DistributionPropagation
from fewgraft.prototypes import directions

pytestmark = pytest.mark.numerical
EPISODES, WAYS, FEATURES, PILE = 2, 3, 6, 5
LABELS = torch.tensor([0, 1, 1, 2])


def drawn(seed: int, *shape: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def pieces(generations: int = 2) -> dict[str, Tensor]:
    """As if training had moved all of them."""
    rng = torch.Generator().manual_seed(0)
    method = DistributionPropagation(generations)
    found = method.initial(torch.empty(4, FEATURES), 10.0, 1, rng)
    return {
        name: piece.double() + 0.1 * drawn(k, *piece.shape)
        for k, (name, piece) in enumerate(found.items())
    }


def problem(learnt: dict[str, Tensor]) -> tuple[Task, Queries]:
    pile = directions(drawn(50, EPISODES, PILE, FEATURES))
    queries = directions(drawn(51, EPISODES, 4, FEATURES))
    task = Task(
        ways=WAYS,
        support=directions(drawn(52, EPISODES, len(LABELS), FEATURES)),
        labels=LABELS.expand(EPISODES, -1),
        unlabelled=pile,
        base_unlabelled=pile[..., :0],
        weights=pile[0, :0],
        gamma=10.0,
        numbers=torch.arange(EPISODES),
        learnt=learnt,
    )
    return task, Queries(queries, queries[..., :0])


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.01 * x)


def normal(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()


def similarity(apart: Tensor, name: str, learnt: dict[str, Tensor]) -> float:
    hidden = leaky(learnt[f"{name}_second"] @ leaky(learnt[f"{name}_first"] @ apart))
    return float((learnt[f"{name}_out"] @ hidden + learnt[f"{name}_bias"]).sigmoid())


def shares_by_hand(task: Task, query: Tensor, e: int, generations: int) -> Tensor:
    """A full graph of supports, U and one query, in which nobody listens to the query."""
    assert task.learnt is not None
    learnt, few = dict(task.learnt), len(LABELS)
    features = [*task.support[e], *task.unlabelled[e], query]
    n = len(features)
    value = [normal(learnt["embedding"] @ x) for x in features]
    edges = torch.zeros(n, n, dtype=torch.float64)
    distribution = torch.full((n, few), 1 / few, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            if i < few and j < few:
                edges[i, j] = float(i != j and LABELS[i] == LABELS[j])
                distribution[i, j] = float(LABELS[i] == LABELS[j])
            elif (i < few) != (j < few) and j != n - 1:
                edges[i, j] = 1 / few
    points, distributions = edges.clone(), edges.clone()

    def changed(old: Tensor, name: str, inputs: list[list[Tensor]]) -> Tensor:
        new = torch.zeros_like(old)
        for i in range(n):
            for j in range(n):
                if old[i, j] > 0:
                    new[i, j] = old[i, j] * similarity(inputs[i][j], name, learnt)
            if new[i].sum() > 0:
                new[i] *= old[i].sum() / new[i].sum()
            new[i] /= new[i].sum() + 1
        return new

    for k in range(generations):
        apart = [[(a - b) ** 2 for b in value] for a in value]
        points = changed(points, f"points_{k}", apart)
        a, b, c, d = learnt[f"mixing_{k}"]
        to_supports = points[:, :few]
        distribution = leaky(
            a * to_supports
            + b * distribution
            + c * to_supports.mean(1, keepdim=True)
            + d * distribution.mean(1, keepdim=True)
        )
        far = [[((x - y) ** 2).sum()[None] for y in distribution] for x in distribution]
        distributions = changed(distributions, f"distributions_{k}", far)
        if k == generations - 1:
            break
        heard = [sum(distributions[i, j] * value[j] for j in range(n)) for i in range(n)]
        new = []
        for i in range(n):
            spoken = torch.cat([value[i], heard[i] / distributions[i].sum().clamp(min=1e-6)])
            moved = learnt[f"moving_{k}_out"] @ leaky(learnt[f"moving_{k}"] @ spoken)
            new.append(normal(value[i] + moved))
        value = new
    scores = torch.stack([points[-1, :few][c == LABELS].mean() for c in range(WAYS)]) + 1e-6
    return scores / scores.sum()


def test_one_edge_at_a_time() -> None:
    task, queries = problem(pieces())
    found = DistributionPropagation(2).fit(task).logits(queries)
    for e in range(EPISODES):
        for q in (0, 3):
            wanted = shares_by_hand(task, queries.features[e, q], e, 2)
            torch.testing.assert_close(found[e, q].exp(), wanted, rtol=1e-6, atol=1e-8)


def test_the_order_of_supports_does_not_matter() -> None:
    task, queries = problem(pieces())
    order = torch.tensor([3, 1, 0, 2])
    turned = dataclasses.replace(task, support=task.support[:, order], labels=task.labels[:, order])
    method = DistributionPropagation(2)
    torch.testing.assert_close(method.fit(turned).logits(queries), method.fit(task).logits(queries))


def test_u_speaks_to_the_supports() -> None:
    task, queries = problem(pieces())
    other = dataclasses.replace(task, unlabelled=task.unlabelled.flip(-1))
    method = DistributionPropagation(2)
    first, second = (method.fit(t).logits(queries) for t in (task, other))
    assert not torch.allclose(first, second, atol=1e-4)


def test_the_loss_reaches_all_that_is_learnt() -> None:
    learnt = {name: piece.requires_grad_() for name, piece in pieces().items()}
    task, queries = problem(learnt)
    labels = (torch.arange(4) % WAYS).expand(EPISODES, -1)
    loss, logits = DistributionPropagation(2).loss(task, queries, labels, torch.Generator())
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros_like(logits[..., 0]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(piece.grad is not None and (piece.grad != 0).any() for piece in learnt.values())
    assert learnt["embedding"].shape == (WIDTH, FEATURES)
