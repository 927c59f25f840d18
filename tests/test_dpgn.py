"""DPGN (features): loops over nodes and pairs of the whole graph, orders, and its losses."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from novel_tasks import novel_task
from torch import Tensor
from torch.nn.functional import leaky_relu

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.transductive.dpgn import (
    GENERATIONS,
    DistributionPropagation,
    class_scores,
    edge_loss,
)
from fewgraft.prototypes import directions, prototypes

pytestmark = pytest.mark.numerical
EPISODES, WAYS, WIDTH, UNLABELLED = 2, 3, 6, 7
LABELS = torch.tensor([0, 1, 1, 2])
METHOD = DistributionPropagation(mass=0.7)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pieces() -> dict[str, Tensor]:
    """As after some training: all of them somewhere else than at the start."""
    rng = torch.Generator().manual_seed(0)
    found = METHOD.initial(drawn(9, 4, WIDTH), 10.0, 1, rng)
    return {name: x + 0.1 * torch.randn(x.shape, generator=rng) for name, x in found.items()}


def problem() -> tuple[Task, Queries]:
    centres = drawn(0, EPISODES, WAYS, WIDTH)

    def near(labels: Tensor, seed: int) -> Tensor:
        return directions(centres[:, labels] + 0.7 * drawn(seed, EPISODES, len(labels), WIDTH))

    unlabelled, queries = near(torch.arange(UNLABELLED) % WAYS, 1), near(torch.arange(6) % WAYS, 2)
    return novel_task(near(LABELS, 3), LABELS, unlabelled, queries, learnt=pieces())


# --- one graph at a time, in double precision ---

Values = dict[tuple[int, ...], Tensor]  # by node or pair


class GraphByHand:
    """All nodes and all pairs of them; statistics are over those that are `counted`."""

    def __init__(self, learnt: dict[str, Tensor]) -> None:
        self.learnt = {name: tensor.double() for name, tensor in learnt.items()}

    def standardised(self, name: str, values: Values, counted: Callable[..., bool]) -> Values:
        mapped = {key: self.learnt[name] @ x for key, x in values.items()}
        seen = torch.stack([x for key, x in mapped.items() if counted(*key)])
        mean = seen.mean(0)
        spread = ((seen - mean).square().mean() + 1e-5).sqrt()
        scale, shift = self.learnt[f"{name}_scale"], self.learnt[f"{name}_shift"]
        return {key: (x - mean) / spread * scale + shift for key, x in mapped.items()}

    def layer(self, name: str, values: Values, counted: Callable[..., bool]) -> Values:
        found = self.standardised(name, values, counted)
        return {key: leaky_relu(x) for key, x in found.items()}

    def sigmoid(self, name: str, hidden: Tensor) -> float:
        score = self.learnt[f"{name}_out"][0] @ hidden + self.learnt[f"{name}_bias"][0]
        return 1 / (1 + math.exp(-float(score)))

    def next_edges(self, edges: Tensor, likeness: dict[tuple[int, ...], float]) -> Tensor:
        """The paper's: without the diagonal, then with 1 there, and rows that add up to 1."""
        n = len(edges)
        found = torch.zeros_like(edges)
        for i in range(n):
            row = [0.0 if i == j else float(edges[i, j]) for j in range(n)]
            new = [row[j] and row[j] * likeness[max(i, j), min(i, j)] for j in range(n)]
            for j in range(n):
                found[i, j] = new[j] / sum(new) * sum(row) + (i == j)
            found[i] /= found[i].sum()
        return found

    def with_means(self, values: list[float]) -> list[list[float]]:
        """Of every support, its value, the mean of its class and the mean of all classes."""
        labels = LABELS.tolist()
        means = []
        for label in range(WAYS):
            of_class = [x for x, y in zip(values, labels, strict=True) if y == label]
            means.append(sum(of_class) / len(of_class))
        return [[x, means[y], sum(means) / WAYS] for x, y in zip(values, labels, strict=True)]

    def run(self, support: Tensor, unlabelled: Tensor, query: Tensor) -> list[Tensor]:
        """Class scores [N] of a query after every generation, by support [S, d] and U [U, d]."""
        few, seen = len(support), len(support) + len(unlabelled)
        nodes = [*support.double(), *unlabelled.double(), query.double()]
        n = len(nodes)

        def in_graph(i: int, *_: int) -> bool:
            return i < seen

        labels, share = LABELS.tolist(), [1 / (WAYS * LABELS.tolist().count(y)) for y in LABELS]
        edges = torch.eye(n, dtype=torch.float64)
        for i in range(n):
            for j in range(few):
                edges[i, j] = float(labels[i] == labels[j]) if i < few else share[j]
        edges[:few, few:seen] = METHOD.mass / len(unlabelled)
        spread = [[float(edges[i, j]) for j in range(few)] for i in range(n)]
        of_points = of_spreads = edges

        def likeness(name: str, places: Values) -> dict[tuple[int, ...], float]:
            squares: Values = {
                (i, j): (places[i,] - places[j,]).square() for i in range(n) for j in range(few)
            }
            first = self.layer(f"{name}_1", squares, in_graph)
            hidden = self.layer(f"{name}_2", first, in_graph)
            return {key: self.sigmoid(name, x) for key, x in hidden.items()}

        first: Values = {(i,): x for i, x in enumerate(nodes)}
        of_points = self.next_edges(
            of_points, likeness("first", self.standardised("first", first, in_graph))
        )
        places, answers = self.standardised("embedding", first, in_graph), []
        for g in range(GENERATIONS):
            of_points = self.next_edges(of_points, likeness(f"point_{g}", places))
            for i in range(n):
                now = self.with_means([float(x) for x in of_points[i, :few]])
                was = self.with_means(spread[i])
                weights, bias = self.learnt[f"spread_{g}"][0], self.learnt[f"spread_{g}_bias"][0]
                both = [torch.tensor([*a, *b]).double() for a, b in zip(now, was, strict=True)]
                spread[i] = [float(leaky_relu(weights @ x + bias)) for x in both]
            name = f"distribution_{g}"
            of_classes: Values = {}
            for i in range(n):
                for j in range(few):
                    squares = [(a - b) ** 2 for a, b in zip(spread[i], spread[j], strict=True)]
                    for s, (_, of_class, of_all) in enumerate(self.with_means(squares)):
                        of_classes[i, j, labels[s]] = torch.tensor([of_class, of_all]).double()
            each = self.layer(f"{name}_1", of_classes, in_graph)
            pooled: Values = {
                (i, j): torch.stack([each[i, j, c] for c in range(WAYS)]).mean(0)
                for i in range(n)
                for j in range(few)
            }
            hidden = self.layer(f"{name}_2", pooled, in_graph)
            of_spreads = self.next_edges(
                of_spreads, {key: self.sigmoid(name, x) for key, x in hidden.items()}
            )
            scores = torch.zeros(WAYS, dtype=torch.float64)
            for s, label in enumerate(labels):
                scores[label] += of_points[-1, s]
            answers.append(scores)
            if g + 1 == GENERATIONS:
                break
            both_nodes: Values = {}
            for i in range(n):
                total = sum(float(of_spreads[i, j]) for j in range(n) if j != i)
                seen_of = [of_spreads[i, j] / total * places[j,] for j in range(n) if j != i]
                both_nodes[i,] = torch.cat([places[i,], torch.stack(seen_of).sum(0)])
            gathered = self.layer(f"gather_{g}", both_nodes, in_graph)
            places = self.layer(f"next_{g}", gathered, in_graph)
        return answers


def test_one_graph_at_a_time() -> None:
    task, queries = problem()
    found = METHOD.fit(task).logits(queries)
    by_hand = GraphByHand(pieces())
    for e in range(EPISODES):
        for q in (0, 5):
            wanted = by_hand.run(task.support[e], task.unlabelled[e], queries.features[e, q])[-1]
            torch.testing.assert_close(found[e, q].exp().double(), wanted, rtol=1e-3, atol=1e-5)


def test_a_query_in_the_unlabelled_set_is_answered_as_its_own_node() -> None:
    """The paper's transductive graph, with every support bound to every query."""
    task, _ = problem()
    asked = Queries(task.unlabelled[:, :3], task.unlabelled[:, :3, :0])
    [found, among] = (METHOD.fit(task).logits(q) for q in (asked, of_all(task)))
    torch.testing.assert_close(found, among[:, :3])


def of_all(task: Task) -> Queries:
    return Queries(task.unlabelled, task.unlabelled[..., :0])


def test_the_order_of_supports_and_of_u_is_nothing() -> None:
    task, queries = problem()
    order, shuffled = torch.tensor([2, 0, 3, 1]), torch.tensor([3, 1, 0, 6, 5, 2, 4])
    other = dataclasses.replace(
        task,
        support=task.support[:, order],
        labels=task.labels[:, order],
        unlabelled=task.unlabelled[:, shuffled],
    )
    found, again = (METHOD.fit(t).logits(queries) for t in (task, other))
    torch.testing.assert_close(again, found, rtol=1e-3, atol=1e-3)


def test_before_training_likeness_falls_with_distance() -> None:
    """With one picture per class far from the others, the nearest support is the answer."""
    rng = torch.Generator().manual_seed(1)
    learnt = DistributionPropagation().initial(drawn(9, 4, 16), 10.0, 1, rng)
    corners = torch.eye(16)[None, :3]
    near = directions(corners + 0.05 * drawn(2, 1, 3, 16))
    task, queries = novel_task(corners, torch.arange(3), near, near, learnt=learnt)
    found = DistributionPropagation().fit(task).logits(queries)
    assert found.argmax(-1).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("shots", [1, 5])
def test_before_training_it_is_no_worse_than_prototypes(shots: int) -> None:
    """Of classes that overlap, every generation tells at least as many queries as prototypes do,
    but for a few: small distances count as much as large ones.
    """
    rng = torch.Generator().manual_seed(1)
    method, ways, d = DistributionPropagation(), 5, 16
    centres = drawn(5, 20, ways, d)

    def near(labels: Tensor, seed: int) -> Tensor:
        return directions(centres[:, labels] + 1.2 * drawn(seed, 20, len(labels), d))

    every = torch.arange(ways)
    labels, asked = every.repeat(shots), every.repeat(10)
    support, queries = near(labels, 6), near(asked, 8)
    learnt = method.initial(drawn(9, 40, d), 10.0, shots, rng)
    task, asking = novel_task(support, labels, near(asked, 7), queries, learnt=learnt)
    cosines = queries @ prototypes(task.support, task.labels, ways).mT
    plain = (cosines.argmax(-1) == asked).double().mean().item()
    assert 0.5 < plain < 0.95
    for state in method.generations(task, asking.features):
        found = class_scores(state.point, task.labels, ways).argmax(-1)
        assert (found == asked).double().mean().item() > plain - 0.05


def test_a_class_with_more_supports_is_not_preferred() -> None:
    """Pictures that cannot be told apart; rows keep the paper's weight on others."""
    task, queries = problem()
    alike = dataclasses.replace(
        task, support=torch.ones_like(task.support), unlabelled=torch.ones_like(task.unlabelled)
    )
    first = next(METHOD.generations(alike, torch.ones_like(queries.features)))
    found = class_scores(first.point, task.labels, WAYS).exp()
    # 1 beside 1 for the node itself, twice: 1/2, 1/3
    torch.testing.assert_close(found, torch.full_like(found, 1 / 3 / WAYS))


def test_the_loss_of_edges_against_a_loop() -> None:
    edges = drawn(0, EPISODES, 5, 4).sigmoid()
    alike = drawn(1, EPISODES, 5, 4) > 0.5
    like: list[float] = []
    unlike: list[float] = []
    for weight, same in zip(edges.flatten().tolist(), alike.flatten().tolist(), strict=True):
        (like if same else unlike).append(-math.log(weight if same else 1 - weight))
    wanted = sum(like) / len(like) + sum(unlike) / len(unlike)
    assert edge_loss(edges.log(), alike).item() == pytest.approx(wanted, rel=1e-4)


def test_the_loss_adds_up_and_reaches_every_piece() -> None:
    learnt = {name: piece.requires_grad_() for name, piece in pieces().items()}
    task, queries = problem()
    task = dataclasses.replace(task, learnt=learnt)
    labels = (torch.arange(6) % WAYS).expand(EPISODES, -1)
    loss, logits = METHOD.loss(task, queries, labels, torch.Generator())
    torch.testing.assert_close(logits, METHOD.fit(task).logits(queries))
    wanted = 0.0
    for g, state in enumerate(METHOD.generations(task, queries.features)):
        alike, apart = labels[..., None] == LABELS, 0.0
        for e in range(EPISODES):
            for q, label in enumerate(labels[e].tolist()):
                scores = [-state.apart[e, q, way == LABELS].sum().item() for way in range(WAYS)]
                most = max(scores)
                total = sum(math.exp(score - most) for score in scores)
                apart += (most + math.log(total) - scores[label]) / labels.numel()
        edges = edge_loss(state.point, alike).item() + 0.1 * apart
        wanted += (edges + 0.1 * edge_loss(state.distribution, alike).item()) * (
            1.0 if g + 1 == GENERATIONS else 0.2
        )
    assert loss.item() == pytest.approx(wanted, rel=1e-3)
    loss.backward()  # type: ignore[no-untyped-call]
    slopes = {name: x.grad for name, x in learnt.items()}
    still = [name for name, slope in slopes.items() if slope is None or not slope.any()]
    # Where all distributions are positive, one number on all of them is no difference.
    assert all(name.startswith("spread") and name.endswith("bias") for name in still)
