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

from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, Queries, Search, Solution, Task
from fewgraft.methods.transductive.nearness import equally_many
from fewgraft.prototypes import direction_logits, join_logits, prototypes

RANK = 30  # in tables: below the methods themselves


@dataclass(frozen=True)
class BesideBase(Method):
    """X on what the joint classifier does not call base."""

    uses_unlabelled = True
    at_a_time = 300  # so that some of them have equally many pictures left
    search: ClassVar[Search] = {"scale": (0.1, 0.3, 1.0, 3.0, 10.0)}
    for_answers = ("scale",)

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

    def inherited(self, hyper: dict[str, Any]) -> dict[str, Any]:
        """What is chosen for X goes under `inner`."""
        return {"inner": hyper} if hyper else {}

    def changed(self, **changes: Any) -> Self:
        """Hyper-parameters of X go under `inner`."""
        inner = self.inner.changed(**changes.pop("inner", {}))
        return replace(super().changed(**changes), inner=inner)

    def fit(self, task: Task) -> "AnswersBeside":
        """X learns from all episodes at once that have equally many pictures left in U."""
        novel = prototypes(task.support, task.labels, task.ways)
        best = direction_logits(task.unlabelled, novel, task.gamma).amax(-1)
        left = best > task.base_unlabelled.amax(-1)  # [E, U]
        parts = [
            (episodes, self.inner.fit(_novel_alone(task, episodes, rest, left)))
            for episodes, rest in equally_many(task.unlabelled, left)
        ]
        return AnswersBeside(novel, parts, task.gamma, self)


def _novel_alone(task: Task, episodes: Tensor, unlabelled: Tensor, left: Tensor) -> Task:
    """Some episodes [e] without base classes and without what U shows of them [e, U', d].

    `left` [E, U] says what of U that is.
    """
    pictures = task.pictures
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
    )


@dataclass(frozen=True)
class AnswersBeside:
    """Who is novel by the joint classifier, and which novel class by X."""

    novel: Tensor  # [E, N, d]
    parts: list[tuple[Tensor, Solution]]  # episodes [e], and what X learnt of them
    gamma: float
    config: BesideBase

    @property
    def carried(self) -> Tensor:
        """What the novel classes are in a next session."""
        return self.novel

    def logits(self, queries: Queries) -> Tensor:
        """[E, Q, N_b+N], base classes first."""
        features = queries.features
        found = features.new_empty(*features.shape[:2], self.novel.shape[1])
        for episodes, solution in self.parts:
            none = features.new_empty(len(episodes), features.shape[1], 0)
            found[episodes] = solution.logits(Queries(features[episodes], none))
        shares = (self.config.scale * found).log_softmax(-1)
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
            balanced=spec.balanced,
            remark=spec.remark,
            builds_on=spec.name,
        )
        for spec in specs
        if spec.method.uses_unlabelled and not spec.joint
    ]
