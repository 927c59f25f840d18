"""Is it better with U? What old classes lose, what left-out examples say, when to reject."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import torch
from torch import Tensor

from fewgraft.app.features.embedding import Photo
from fewgraft.app.features.labelled import Labelled
from fewgraft.app.learning.bordering import Bordering, Seen
from fewgraft.app.learning.lesson import Known, Learnt, Lesson, left_out_examples
from fewgraft.model import Unknown

FEWEST_FOR_LIMIT = 20  # check photos; a limit from fewer would be a guess


def count_of(share: float, photos: int) -> int:
    """How many photos a share is at most: the share is the decimal that someone typed.

    Counts are compared, never shares: 173/200 − 169/200 > 0.02 in floating point.
    """
    return int(Decimal(str(share)) * photos)


@dataclass(frozen=True)
class Judged:
    """Pictures with known labels, answered before and after."""

    photos: tuple[Photo, ...]
    truth: tuple[str, ...]
    before: tuple[str, ...]  # empty where there was nothing to answer with
    after: tuple[str, ...]
    best_logit: Tensor  # [n] of the answers after

    @property
    def right_before(self) -> int:
        """How many were answered right."""
        return _right(self.truth, self.before)

    @property
    def right_after(self) -> int:
        """How many are answered right."""
        return _right(self.truth, self.after)

    @property
    def accuracy_before(self) -> float:
        """Share of right answers."""
        return self.right_before / len(self.before) if self.before else float("nan")

    @property
    def accuracy_after(self) -> float:
        """Share of right answers."""
        return self.right_after / len(self.after) if self.after else float("nan")

    def loses_more_than(self, tolerance: float) -> bool:
        """Whether more photos are lost than this share of them, and more than by chance.

        Check photos are a sample. Of L photos lost, about √L more or fewer would be lost of others.
        """
        lost = self.right_before - self.right_after
        return lost - math.sqrt(max(lost, 0)) > count_of(tolerance, len(self.photos))

    def is_worse_than(self, other: "Judged") -> bool:
        """Whether fewer of the same photos are right than in another way, and not by chance.

        Of those that only one way has right, either way may have had them: with n of these, chance
        alone makes a difference of about √n.
        """
        ours, theirs = (
            [a == b for a, b in zip(one.truth, one.after, strict=True)] for one in (self, other)
        )
        lost = sum(theirs) - sum(ours)
        return lost > math.sqrt(sum(a != b for a, b in zip(ours, theirs, strict=True)))


def _right(truth: Sequence[str], answers: Sequence[str]) -> int:
    return sum(a == b for a, b in zip(truth, answers, strict=True)) if answers else 0


@dataclass(frozen=True)
class JudgedLesson:
    """A lesson learnt one way, and how it does."""

    learnt: Learnt
    check: Judged | None
    left_out: Judged
    lowest: float | None = None  # the best logit that most new photos reach, as rehearsed


@dataclass(frozen=True)
class Trial:
    """With U and without it."""

    with_unlabelled: JudgedLesson
    without_unlabelled: JudgedLesson

    @classmethod
    def of(cls, lesson: Lesson, check: Labelled, examples: Labelled, tolerance: float) -> "Trial":
        """Learn both ways."""
        without = _answer(lesson, check, examples, tolerance, with_unlabelled=False)
        if not len(lesson.unlabelled):
            return cls(without, without)
        return cls(_answer(lesson, check, examples, tolerance, with_unlabelled=True), without)

    def harm(self, tolerance: float) -> str:
        """Why U should not be used, in plain words; empty if nothing speaks against it."""
        gained, plain = self.with_unlabelled.left_out, self.without_unlabelled.left_out
        if gained.is_worse_than(plain):
            return (
                "with the pile, fewer of the new photos were recognised when left out "
                f"({gained.accuracy_after:.0%} against {plain.accuracy_after:.0%} without it)"
            )
        check = self.with_unlabelled.check
        if check and check.loses_more_than(tolerance):
            return (
                f"with the pile, the old classes fell from {check.accuracy_before:.1%} to "
                f"{check.accuracy_after:.1%} on the check photos, more than the tolerance of "
                f"{tolerance:.1%}"
            )
        return ""


def _answer(
    lesson: Lesson, check: Labelled, examples: Labelled, tolerance: float, *, with_unlabelled: bool
) -> JudgedLesson:
    learnt = lesson.learnt(with_unlabelled=with_unlabelled)
    left_out = left_out_examples(lesson, with_unlabelled=with_unlabelled)
    old = _old_ones(lesson, check)
    seen = Seen(
        learnt,
        learnt.known.logits(check.features[old]),
        check.places(learnt.known.classes)[old],
        left_out,
    )
    bordered = Bordering(lesson.border, tolerance).of(seen)
    learnt = replace(learnt, bias=bordered.bias)
    return JudgedLesson(
        learnt,
        _judged(lesson, learnt, check, old, learnt.known.logits(check.features[old]))
        if old
        else None,
        _judged(lesson, learnt, examples, left_out.places, bordered.left_out),
        bordered.lowest,
    )


def _old_ones(lesson: Lesson, check: Labelled) -> list[int]:
    """Check photos of classes that were known and are not taught."""
    others = set(lesson.known.classes) - set(lesson.taught)
    return [row for row, name in enumerate(check.names) if name in others]


def _judged(
    lesson: Lesson, learnt: Learnt, labelled: Labelled, rows: list[int], logits: Tensor
) -> Judged:
    """Some of the labelled photos, with logits [n, K'] afterwards."""
    names = tuple(labelled.names[row] for row in rows)
    could_answer = bool(rows) and set(names) <= set(lesson.known.classes)
    classes = learnt.known.classes
    return Judged(
        tuple(labelled.photos[row] for row in rows),
        names,
        _names(lesson.before, labelled.features[rows]) if could_answer else (),
        tuple(classes[best] for best in logits.argmax(-1).tolist()) if rows else (),
        logits.amax(-1) if rows else torch.empty(0),
    )


def _names(known: Known, features: Tensor) -> tuple[str, ...]:
    return tuple(known.classes[best] for best in known.logits(features).argmax(-1).tolist())


def unknown_below(
    before: Unknown | None, answer: JudgedLesson, false_rejects: float
) -> Unknown | None:
    """The best logit below which the answer is "unknown".

    Without check photos nothing says how old classes would fare, and the limit is never raised. It
    is lowered to where most new photos lay in rehearsal: a prototype of few photos is far from its
    own class as well.
    """
    if answer.check is None or len(answer.check.photos) < FEWEST_FOR_LIMIT:
        if before is None or answer.lowest is None or answer.lowest >= before.threshold:
            return before
        return before.model_copy(update={"threshold": answer.lowest})
    what = "check photos and left-out new photos"
    return choose_threshold(best_logits(answer), false_rejects, what)


def best_logits(answer: JudgedLesson) -> Tensor:
    """Of all photos of known classes that the lesson did not learn from [n]."""
    check = [answer.check.best_logit] if answer.check else []
    return torch.cat([*check, answer.left_out.best_logit])


def choose_threshold(best_logits: Tensor, false_rejects: float, what: str) -> Unknown:
    """The largest threshold that rejects at most this share of pictures of known classes."""
    ordered = best_logits.sort().values
    rejected = min(count_of(false_rejects, len(ordered)), len(ordered) - 1)
    threshold = ordered[rejected].item()
    share = (best_logits < threshold).double().mean().item()
    return Unknown(threshold=threshold, false_rejects=share, pictures=len(ordered), chosen_on=what)
