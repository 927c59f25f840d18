"""LaplacianShot: nearest prototypes, and neighbours in U agree.

Ziko, Dolz, Granger, Ben Ayed, "Laplacian regularized few-shot learning", ICML 2020. Features are
centred with the mean of the base classes and made directions. With a_uc the squared distance of an
unlabelled picture to a prototype and W_uj = 1 for its two nearest others in U, the bound

    Y ← softmax over classes of (−a + λ W Y),   Y⁰ = softmax(−a)

is applied until Σ (Y log Y + aY − λ(WY)Y) changes by 10⁻⁶ of itself, from the fourth step, or for
20 steps. The prototypes are rectified with U first (`rectified`, as in bd_cspn_code.py), and then U
stays moved to the mean of the support.

A query takes one such step with its own nearest pictures of U, whose Y stays. Where U is the query
set, a copy of a query is that query and not its neighbour. The paper's joint answer is
`together`: U and queries, each once, are the unlabelled set. It assumes no balance of classes.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Solution, Task
from fewgraft.methods.transductive.bd_cspn_code import centre, rectified, shift
from fewgraft.methods.transductive.nearness import copies, not_asked, squared_distances
from fewgraft.prototypes import directions, prototypes

SHARPNESS = 10.0  # of the rectification
TOLERANCE = 1e-6


@dataclass(frozen=True)
class LaplacianShot(Method):
    """How much neighbours count, and how many there are."""

    uses_unlabelled = True
    uses_base_features = True
    search: ClassVar[Search] = {"strength": (0.1, 0.3, 0.7, 1.0, 1.5)}

    strength: float = 0.7  # λ
    neighbours: int = 2  # the paper's k = 3 counts the picture itself
    steps: int = 20  # at most
    rectified: bool = True
    together: bool = False  # queries are answered as the members of one unlabelled set

    def fit(self, task: Task) -> Solution:
        """Without U a query is answered alone by the prototypes."""
        if self.together:
            return SmoothedTogether(task, self)
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        mean = centre(task)
        placed = self.place(*_centred(task, mean), task.labels, task.ways)
        answers = smoothed(placed.distances, self.places(placed.unlabelled), self)[0]
        return SmoothedAnswers(task.unlabelled, mean, placed, answers.softmax(-1), self)

    def place(self, support: Tensor, unlabelled: Tensor, labels: Tensor, ways: int) -> "Placed":
        """Prototypes, and U [E, U, d] moved to the mean of the support [E, S, d]."""
        novel = prototypes(support, labels, ways, normalise=False)
        move = torch.zeros_like(support[:, :1])
        if self.rectified:
            move = shift(support, unlabelled)
            novel = rectified(support, labels, ways, unlabelled + move, SHARPNESS)
        unlabelled = unlabelled + move
        return Placed(unlabelled, novel, move, squared_distances(unlabelled, novel))

    def places(self, unlabelled: Tensor) -> Tensor:
        """Where the nearest others of each unlabelled picture are [E, U, k]."""
        distances = squared_distances(unlabelled, unlabelled)
        distances.diagonal(0, 1, 2).fill_(torch.inf)
        return nearest(distances, min(self.neighbours, unlabelled.shape[1] - 1))


class Placed(NamedTuple):
    """Where everything is before neighbours are asked."""

    unlabelled: Tensor  # [E, U, d], moved
    novel: Tensor  # [E, N, d]
    move: Tensor  # [E, 1, d]
    distances: Tensor  # a [E, U, N]


def _centred(task: Task, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Support and U as directions from the mean."""
    return directions(task.support.double() - mean), directions(task.unlabelled.double() - mean)


def nearest(distances: Tensor, count: int) -> Tensor:
    """Where the smallest of each row of [E, n, m] are [E, n, count]."""
    return distances.topk(count, -1, largest=False).indices


def votes(answers: Tensor, places: Tensor, counted: Tensor | None = None) -> Tensor:
    """W Y: sums of answers [E, U, N] at those places [E, n, k] that are counted → [E, n, N]."""
    episodes = torch.arange(len(answers), device=answers.device)[:, None, None]
    found = answers[episodes, places]
    return (found if counted is None else found * counted[..., None]).sum(2)


def smoothed(distances: Tensor, places: Tensor, config: LaplacianShot) -> tuple[Tensor, Tensor]:
    """Logits of Y [E, U, N] after the last step, and the number of steps [E].

    An episode that has converged stays as it is.
    """
    logits = -distances
    steps = torch.zeros(len(distances), dtype=torch.int64, device=distances.device)
    energy = distances.new_full((len(distances),), torch.inf)
    moving = torch.ones_like(steps, dtype=torch.bool)
    for step in range(config.steps):
        pull = config.strength * votes(logits.softmax(-1), places)
        logits = torch.where(moving[:, None, None], pull - distances, logits)
        steps = steps + moving
        found = _energy(logits, distances, places, config.strength)
        settled = (found - energy).abs() <= TOLERANCE * energy.abs()
        moving = moving & ~(settled & (step > 2))
        energy = found
        if not moving.any():
            break
    return logits, steps


def _energy(logits: Tensor, distances: Tensor, places: Tensor, strength: float) -> Tensor:
    """Σ (Y log Y + aY − λ(WY)Y) [E]."""
    answers = logits.softmax(-1)
    pull = strength * votes(answers, places)
    return (answers * (logits.log_softmax(-1) + distances - pull)).sum((1, 2))


@dataclass(frozen=True)
class SmoothedAnswers:
    """Answers of U, which neighbours of a query give it."""

    given: Tensor  # U as it came [E, U, d]
    mean: Tensor  # [E, 1, d]
    placed: Placed
    answers: Tensor  # Y [E, U, N]
    config: LaplacianShot

    def logits(self, queries: Queries) -> Tensor:
        """One step for each query."""
        features = directions(queries.features.double() - self.mean) + self.placed.move
        distances = squared_distances(features, self.placed.unlabelled)
        same = copies(queries.features, self.given)
        distances = distances.masked_fill(same, torch.inf)
        places = nearest(distances, min(self.config.neighbours, distances.shape[-1]))
        others = distances.gather(-1, places).isfinite()  # a small U may offer only the query
        pull = self.config.strength * votes(self.answers, places, others)
        found = pull - squared_distances(features, self.placed.novel)
        return found.log_softmax(-1).to(queries.features.dtype)


@dataclass(frozen=True)
class SmoothedTogether:
    """One unlabelled set of U and queries; a picture of U that is a query counts once."""

    task: Task
    config: LaplacianShot

    def logits(self, queries: Queries) -> Tensor:
        """All queries of an episode are answered at once."""
        features, task = queries.features, self.task
        found = features.new_empty(*features.shape[:2], task.ways)
        for episodes, rest in not_asked(task.unlabelled, features):
            everything = torch.cat([features[episodes], rest], 1)
            part = replace(
                task,
                support=task.support[episodes],
                labels=task.labels[episodes],
                unlabelled=everything,
            )
            placed = self.config.place(*_centred(part, centre(part)), part.labels, part.ways)
            answers = smoothed(
                placed.distances, self.config.places(placed.unlabelled), self.config
            )[0]
            found[episodes] = answers[:, : features.shape[1]].log_softmax(-1).to(features.dtype)
        return found


METHODS = (
    MethodSpec(
        "laplacian-shot", "LaplacianShot", LaplacianShot(), "algorithm-1", rank=24, joint=False
    ),
)
