"""Meta-Inc-Baseline + X: a method that knows novel classes only, beside base classes.

Most methods that use U have no place for base classes. The joint classifier of Meta-Inc-Baseline
makes one: what it calls base in U is taken out, X learns from the rest, and a query is novel as far
as the joint classifier says so, and of novel class n as far as X says so. With b the base logits, p
the prototypes of the support and x the scores of X,

    novel logits = logsumexp over n of γ cos(q, p_n) + log softmax over n of (scale · x_n)

The scale is chosen on validation episodes. The paper's point is that such
combinations blur base and novel classes (Sec. 1); docs/results.md shows by how much.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, Queries, Search, Solution, Task
from fewgraft.prototypes import direction_logits, join_logits, prototypes

RANK = 30  # in tables: below the methods themselves


@dataclass(frozen=True)
class BesideBase(Method):
    """X on what the joint classifier does not call base."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"scale": (0.1, 0.3, 1.0, 3.0)}

    inner: Method  # X
    scale: float = 1.0

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

    def changed(self, **changes: Any) -> Self:
        """Hyper-parameters of X go under `inner`."""
        inner = self.inner.changed(**changes.pop("inner", {}))
        return replace(super().changed(**changes), inner=inner)

    def fit(self, task: Task) -> "AnswersBeside":
        """Episodes one by one: each leaves another number of pictures in U."""
        novel = prototypes(task.support, task.labels, task.ways)
        best = direction_logits(task.unlabelled, novel, task.gamma).amax(-1)
        left = best > task.base_unlabelled.amax(-1)  # [E, U]
        parts = [
            self.inner.fit(_novel_alone(task, episode, kept)) for episode, kept in enumerate(left)
        ]
        return AnswersBeside(novel, parts, task.gamma, self)


def _novel_alone(task: Task, episode: int, kept: Tensor) -> Task:
    """One episode without base classes and without what U shows of them; kept [U]."""
    one = slice(episode, episode + 1)
    unlabelled, pictures = task.unlabelled[one, kept], task.pictures
    if pictures is not None:
        left = pictures.unlabelled[one, kept.to(pictures.unlabelled.device)]
        pictures = replace(pictures, support=pictures.support[one], unlabelled=left)
    return replace(
        task,
        support=task.support[one],
        labels=task.labels[one],
        unlabelled=unlabelled,
        base_unlabelled=unlabelled.new_empty(*unlabelled.shape[:2], 0),
        weights=task.weights[:0],
        numbers=task.numbers[one],
        pictures=pictures,
    )


@dataclass(frozen=True)
class AnswersBeside:
    """Who is novel by the joint classifier, and which novel class by X."""

    novel: Tensor  # [E, N, d]
    parts: list[Solution]  # of each episode
    gamma: float
    config: BesideBase

    def logits(self, queries: Queries) -> Tensor:
        """[E, Q, N_b+N], base classes first."""
        features = queries.features
        none = features.new_empty(1, features.shape[1], 0)
        found = [
            part.logits(Queries(features[episode : episode + 1], none))
            for episode, part in enumerate(self.parts)
        ]
        shares = (self.config.scale * torch.cat(found)).log_softmax(-1)
        evidence = direction_logits(features, self.novel, self.gamma).logsumexp(-1, keepdim=True)
        return join_logits(queries.base_logits, evidence + shares)


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
        )
        for spec in specs
        if spec.method.uses_unlabelled and not spec.joint
    ]
