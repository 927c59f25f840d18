"""Metrics of incremental few-shot learning (the paper's Sec. 5.1).

Acc_x/y: pictures of x (base, novel) classified among the y (base, novel, all) classes. The joint
Acc is over all queries. Δ_b = Acc_b/all − Acc_b/b and Δ_n = Acc_n/all − Acc_n/n measure
what the two groups of classes take from each other; Δ is their mean, and nearer 0 is better.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NAN = float("nan")
S = TypeVar("S", bound="DataclassInstance")  # scores: a dataclass of tensors, episodes first


@dataclass(frozen=True)
class Scores:
    """Accuracies of each episode as shares from 0 to 1, all of shape [E].

    Without base classes (plain few-shot learning) all that concerns them is NaN, and `acc` is
    `n_n`.

    Attributes:
        acc: Joint accuracy over all queries.
        b_all: Base queries classified among all classes.
        n_all: Novel queries classified among all classes.
        b_b: Base queries classified among base classes.
        n_n: Novel queries classified among novel classes.
    """

    acc: Tensor
    b_all: Tensor
    n_all: Tensor
    b_b: Tensor
    n_n: Tensor

    @property
    def delta_b(self) -> Tensor:
        """Eq. 8, what base classes lose to novel ones: Acc_b/all − Acc_b/b."""
        return self.b_all - self.b_b

    @property
    def delta_n(self) -> Tensor:
        """Eq. 8, what novel classes lose to base ones: Acc_n/all − Acc_n/n."""
        return self.n_all - self.n_n

    @property
    def delta(self) -> Tensor:
        """Δ = (Δ_b + Δ_n) / 2."""
        return (self.delta_b + self.delta_n) / 2

    @property
    def harmonic(self) -> Tensor:
        """Harmonic mean of Acc_b/all and Acc_n/all of each episode; 0 where both are 0."""
        total = self.b_all + self.n_all
        return torch.where(total == 0, total, 2 * self.b_all * self.n_all / total)


METRICS = ("acc", "delta", "b_all", "n_all", "b_b", "n_n", "delta_b", "delta_n", "harmonic")
# As tables print them.
NAMES = {
    "acc": "Acc",
    "delta": "Δ",
    "b_all": "b/all",
    "n_all": "n/all",
    "b_b": "b/b",
    "n_n": "n/n",
    "harmonic": "H",
}


def score(logits: Tensor, labels: Tensor, n_base: int) -> Scores:
    """Scores of logits [E, Q, N_b+N] against labels [E, Q]; base classes are the first `n_base`."""
    _check(logits, labels, n_base)
    is_base = labels < n_base
    novel_best, novel_answers = logits[..., n_base:].max(-1)
    right_among_novel = novel_answers + n_base == labels
    if n_base:
        base_best, base_answers = logits[..., :n_base].max(-1)
        right_among_base = base_answers == labels
        # Of equally large logits the first counts, which is a base class.
        right_among_all = right_among_base.where(base_best >= novel_best, right_among_novel)
    else:
        right_among_base = torch.zeros_like(right_among_novel)
        right_among_all = right_among_novel
    return Scores(
        acc=right_among_all.double().mean(-1),
        b_all=_mean_where(right_among_all, is_base),
        n_all=_mean_where(right_among_all, ~is_base),
        b_b=_mean_where(right_among_base, is_base),
        n_n=_mean_where(right_among_novel, ~is_base),
    )


def _check(logits: Tensor, labels: Tensor, n_base: int) -> None:
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit labels {tuple(labels.shape)}")
    if not n_base < logits.shape[-1]:
        raise ValueError(
            f"{logits.shape[-1]} columns leave no novel class beside {n_base} base ones"
        )
    least, most = torch.aminmax(logits) if logits.numel() else (logits, logits)  # NaN is both
    if not (least.isfinite().all() and most.isfinite().all()):
        raise ValueError("logits must be finite: NaN would be counted as an answer")


def _mean_where(right: Tensor, chosen: Tensor) -> Tensor:
    """Mean of `right` over the chosen queries of each episode [E]; NaN where none is chosen."""
    return (right & chosen).sum(-1).double() / chosen.sum(-1).double()


def join_scores(chunks: Iterable[S]) -> S:
    """The scores of consecutive chunks of episodes as one."""
    parts = list(chunks)
    kind = type(parts[0])
    names = [field.name for field in fields(kind)]
    return kind(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})


@dataclass(frozen=True)
class Interval:
    """A mean over episodes with its 95 % interval mean ± half.

    Attributes:
        mean: As a share from 0 to 1.
        half: Half the width of the interval.
    """

    mean: float
    half: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside the interval."""
        return abs(self.mean) > self.half

    def __str__(self) -> str:
        """In percent, as tables print it."""
        return f"{100 * self.mean:.2f} ± {100 * self.half:.2f}"


def interval(values: Tensor) -> Interval:
    """Mean of [E] values and 1.96 · std / √E; a single episode has no interval (NaN)."""
    values = values.double()
    half = 1.96 * values.std().item() / math.sqrt(len(values)) if len(values) > 1 else NAN
    return Interval(values.mean().item(), half)


@dataclass(frozen=True)
class Paired:
    """Method A against method B on the same episodes.

    Attributes:
        difference: A − B.
        wins: Episodes in which A is above B.
        ties: Episodes in which both are equal.
        losses: Episodes in which A is below B.
    """

    difference: Interval
    wins: int
    ties: int
    losses: int


def paired(a: Tensor, b: Tensor) -> Paired:
    """A − B for values [E] of the same E episodes: far narrower than two intervals side by side."""
    if a.shape != b.shape:
        raise ValueError(f"{len(a)} and {len(b)} episodes cannot be paired")
    return Paired(interval(a - b), *(int(n.sum()) for n in (a > b, a == b, a < b)))


def summarise(scores: Scores) -> dict[str, Interval]:
    """Every metric with its interval."""
    return {name: interval(getattr(scores, name)) for name in METRICS}


@dataclass(frozen=True)
class Confusion:
    """Where queries go, as shares of the base and of the novel queries."""

    base_right: float
    base_to_other_base: float
    base_to_novel: float
    novel_right: float
    novel_to_other_novel: float
    novel_to_base: float


def confusion(logits: Tensor, labels: Tensor, n_base: int) -> Confusion:
    """The base/novel confusion of logits [E, Q, N_b+N] over all queries together."""
    _check(logits, labels, n_base)
    answers = logits.argmax(-1)

    def shares(own: Tensor, answered_own: Tensor) -> tuple[float, float, float]:
        right = own & (answers == labels)
        kinds = (right, own & answered_own & ~right, own & ~answered_own)
        return tuple(kind.sum().item() / own.sum().item() if own.any() else NAN for kind in kinds)  # type: ignore[return-value]

    base = shares(labels < n_base, answers < n_base)
    return Confusion(*base, *shares(labels >= n_base, answers >= n_base))


def class_accuracy(
    logits: Tensor, labels: Tensor, classes: Tensor, n_base: int
) -> dict[int, tuple[int, int]]:
    """{class of the data: (right, asked)} over all episodes.

    `classes` [E, N] says which class each novel column of an episode is; base column k is class k.
    """
    _check(logits, labels, n_base)
    episode = torch.arange(len(labels))[:, None].expand_as(labels)
    novel = classes[episode, (labels - n_base).clamp(min=0)]
    asked_classes = torch.where(labels < n_base, labels, novel)
    right = logits.argmax(-1) == labels
    asked_count = torch.bincount(asked_classes.flatten())
    right_count = torch.bincount(asked_classes[right], minlength=len(asked_count))
    return {
        int(label): (int(right_count[label]), int(asked_count[label]))
        for label in asked_count.nonzero().flatten()
    }
