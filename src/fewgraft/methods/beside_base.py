"""Meta-Inc-Baseline + X: a method that knows novel classes only, beside base classes.

Most methods that use U have no place for base classes. The joint classifier of Meta-Inc-Baseline
makes one: what it calls base in U is taken out, X learns from the rest, and its scores x of a query
join the base logits. There are three ways to do that, by what decides between base and novel:

    scores     γ·level + scale · x_n
    support    γ·level + logsumexp over n of γ cos(q, p_n) + log softmax over n of (scale · x_n)
    means      the same with prototypes p of the support and of what X finds in the rest of U

In the first X decides all. The scores of many methods are probabilities, though, which add up to 1
however far a query is from all novel classes. The other two take from X only which novel class it
is. p are the prototypes of the support, or the means that X's own answers to U give, to which the
support belongs, too. Way, scale and level are chosen on validation episodes; the level is a bias on
novel classes in units of a cosine. The paper's point is that such combinations blur base and novel
classes (Sec. 1); docs/results.md shows by how much.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, Queries, Search, Solution, Task
from fewgraft.methods.transductive.nearness import equally_many, first_of_all
from fewgraft.prototypes import (
    class_sums,
    direction_logits,
    directions,
    join_logits,
    members_of,
    prototypes,
    support_sums,
)

Decides = Literal["scores", "support", "means"]
RANK = 30  # in tables: below the methods themselves
# Biases, and the cosines that a score of 0 may stand for.
LEVELS = (
    *(-0.2, -0.15, -0.1, -0.07, -0.04, -0.02, 0.02, 0.05, 0.1),
    *(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2),
)


@dataclass(frozen=True)
class BesideBase(Method):
    """X on what the joint classifier does not call base."""

    uses_unlabelled = True
    at_a_time = 300  # so that some of them have equally many pictures left
    search: ClassVar[Search] = {
        "decides": ("scores", "support", "means"),
        "scale": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        "level": LEVELS,
    }
    for_answers = ("decides", "scale", "level")
    added = ("decides", "level")

    inner: Method  # X
    scale: float = 1.0  # of its scores
    decides: Decides = "support"  # between base and novel
    level: float = 0.0  # of novel logits, in units of a cosine

    @property
    def uses_base_features(self) -> bool:  # type: ignore[override]
        """As X does."""
        return self.inner.uses_base_features

    @property
    def uses_pictures(self) -> bool:  # type: ignore[override]
        """As X does."""
        return self.inner.uses_pictures

    @property
    def pieces(self) -> str:  # type: ignore[override]
        """As X does."""
        return self.inner.pieces

    @property
    def learner(self) -> Method:
        """X."""
        return self.inner

    def inherited(self, hyper: dict[str, Any]) -> dict[str, Any]:
        """What is chosen for X goes under `inner`."""
        return {"inner": hyper} if hyper else {}

    def changed(self, **changes: Any) -> Self:
        """Hyper-parameters of X go under `inner`."""
        inner = self.inner.changed(**changes.pop("inner", {}))
        return replace(super().changed(**changes), inner=inner)

    def fit(self, task: Task) -> "AnswersBeside":
        """X learns from what is left of U, from many episodes at once."""
        novel = prototypes(task.support, task.labels, task.ways)
        best = direction_logits(task.unlabelled, novel, task.gamma).amax(-1)
        left = best > task.base_unlabelled.amax(-1)  # [E, U]
        parts = [
            LearntPart(episodes, rest, self.inner.fit(_novel_alone(task, episodes, rest, left)))
            for episodes, rest in self._parts(task.unlabelled, left)
        ]
        return AnswersBeside(novel, Answers(task, parts), task.gamma, self)

    def _parts(self, unlabelled: Tensor, left: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Episodes [e] that X learns from at once, and what is left of their U [e, U', d].

        All that have anything left where X takes gaps, which come last; else equally many.
        """
        if not self.inner.takes_gaps:
            yield from equally_many(unlabelled, left)
            return
        for episodes in (left.any(1).nonzero()[:, 0], (~left.any(1)).nonzero()[:, 0]):
            if len(episodes):
                yield episodes, first_of_all(unlabelled[episodes], left[episodes])


def _novel_alone(task: Task, episodes: Tensor, unlabelled: Tensor, left: Tensor) -> Task:
    """Some episodes [e] without base classes and without what U shows of them [e, U', d].

    `left` [E, U] says what of U that is. Rows of U' beyond what an episode has left are gaps.
    """
    pictures = task.pictures
    counts = left[episodes].sum(1)
    has_gaps = bool((counts != unlabelled.shape[1]).any())
    if pictures is not None:
        some, kept = episodes.cpu(), left[episodes].cpu()
        rest = pictures.unlabelled[some][kept].view(len(some), -1)
        pictures = replace(pictures, support=pictures.support[some], unlabelled=rest)
    return replace(
        task,
        support=task.support[episodes],
        labels=task.labels[episodes],
        unlabelled=unlabelled,
        base_unlabelled=unlabelled.new_empty(*unlabelled.shape[:2], 0),
        weights=task.weights[:0],
        numbers=task.numbers[episodes.cpu()],
        pictures=pictures,
        present=torch.arange(unlabelled.shape[1], device=counts.device) < counts[:, None]
        if has_gaps
        else None,
    )


@dataclass(frozen=True)
class LearntPart:
    """What X learnt of some episodes."""

    episodes: Tensor  # [e]
    rest: Tensor  # of U [e, U', d]
    solution: Solution

    def scores(self, features: Tensor) -> Tensor:
        """x of features [e, n, d]: [e, n, N]."""
        return self.solution.logits(Queries(features, features.new_empty(*features.shape[:2], 0)))


@dataclass(frozen=True)
class Answers:
    """What X says, computed once: tuning asks the same queries for every scale."""

    task: Task
    parts: list[LearntPart]
    kept: list[tuple[Queries, Tensor]] = field(default_factory=list)  # of the last queries

    def scores(self, queries: Queries) -> Tensor:
        """x of the queries [E, Q, N]."""
        if not self.kept or self.kept[0][0] is not queries:
            features = queries.features
            found = features.new_empty(*features.shape[:2], self.task.ways)
            for part in self.parts:
                found[part.episodes] = part.scores(features[part.episodes])
            self.kept[:] = [(queries, found)]
        return self.kept[0][1]

    @cached_property
    def means(self) -> Tensor:
        """Directions of the means of the support and of what X finds in U [E, N, d]."""
        task = self.task
        total, _ = support_sums(task.support, task.labels, task.ways)
        for part in self.parts:
            if part.rest.shape[1]:
                answers = part.scores(part.rest).argmax(-1)
                members = members_of(answers, task.ways, total.dtype)
                total[part.episodes] += class_sums(members, part.rest)
        return directions(total)


@dataclass(frozen=True)
class AnswersBeside:
    """Base classes by their logits, novel ones by X."""

    novel: Tensor  # prototypes of the support [E, N, d]
    answers: Answers
    gamma: float
    config: BesideBase

    @property
    def carried(self) -> Tensor:
        """What the novel classes are in a next session."""
        return self.novel

    def logits(self, queries: Queries) -> Tensor:
        """[E, Q, N_b+N], base classes first."""
        config = self.config
        found = config.scale * self.answers.scores(queries)
        if config.decides != "scores":
            novel = self.novel if config.decides == "support" else self.answers.means
            evidence = direction_logits(queries.features, novel, self.gamma)
            found = evidence.logsumexp(-1, keepdim=True) + found.log_softmax(-1)
        return join_logits(queries.base_logits, found + self.gamma * config.level)


def beside_base(specs: Iterable[MethodSpec]) -> list[MethodSpec]:
    """A row of the joint settings for every method with U and without a place for base classes."""
    return [
        MethodSpec(
            f"+{spec.name}",
            f"Meta-Inc-Baseline + {spec.title}",
            BesideBase(spec.method),
            spec.stage,
            RANK + spec.rank,
            regular=False,
            balanced=spec.balanced,
            remark=spec.remark,
            builds_on=spec.name,
        )
        for spec in specs
        if spec.method.uses_unlabelled and not spec.joint
    ]
