"""What a lesson's outcome says, class by class and photo by photo; the report shows it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fewgraft.app.features.embedding import Photo
from fewgraft.app.learning.judging import Judged
from fewgraft.app.learning.learn import Outcome

IN_DOUBT = 0.3  # a margin below which an answer is hardly one


def old_unmeasured(outcome: Outcome) -> bool:
    """Whether there are old classes, and no photos that say what they lost."""
    return outcome.check is None and not set(outcome.before.card.classes) <= set(outcome.taught)


@dataclass(frozen=True)
class ClassShare:
    """How many photos of a class are named right, now and in another way of answering."""

    name: str
    right: int
    right_otherwise: int | None  # before, or without the pile; None: there is nothing to compare
    asked: int

    @property
    def gain(self) -> int:
        """Photos that are right only now, less those that were right only otherwise."""
        return 0 if self.right_otherwise is None else self.right - self.right_otherwise


def class_shares(judged: Judged, otherwise: Sequence[str]) -> list[ClassShare]:
    """One per class, in the order of their names; `otherwise` are other answers, or none."""
    asked = Counter(judged.truth)
    right, rival = _right(judged.truth, judged.after), _right(judged.truth, otherwise)
    return [
        ClassShare(name, right[name], rival[name] if otherwise else None, asked[name])
        for name in sorted(asked)
    ]


def _right(truth: Sequence[str], answers: Sequence[str]) -> Counter[str]:
    return Counter(a for a, b in zip(truth, answers, strict=False) if a == b)


def group_shares(judged: Judged, answers: Sequence[str], own: set[str]) -> tuple[float, ...]:
    """Shares of answers that are right, wrong within the classes `own`, and outside of them."""
    pairs = list(zip(judged.truth, answers, strict=True))
    right = sum(truth == answer for truth, answer in pairs)
    within = sum(answer in own for _, answer in pairs) - right
    return tuple(count / len(pairs) for count in (right, within, len(pairs) - right - within))


@dataclass(frozen=True)
class Crossing:
    """Photos of one class that are taken for one of the other group."""

    truth: str
    answer: str
    photos: int
    right_before: int | None  # None: the class was not there to be named


def crossings(judged: Judged, own: set[str]) -> list[Crossing]:
    """Where photos of the classes `own` are taken for others, the most frequent pair first."""
    across = [
        (truth, answer, bool(judged.before) and judged.before[place] == truth)
        for place, (truth, answer) in enumerate(zip(judged.truth, judged.after, strict=True))
        if answer not in own
    ]
    photos = Counter((truth, answer) for truth, answer, _ in across)
    right = Counter((truth, answer) for truth, answer, was_right in across if was_right)
    return [
        Crossing(*pair, count, right[pair] if judged.before else None)
        for pair, count in photos.most_common()
    ]


@dataclass(frozen=True)
class Mistake:
    """A photo that is named wrongly now."""

    photo: Photo
    truth: str
    answer: str
    was_right: bool  # before the lesson


def mistakes(outcome: Outcome) -> list[Mistake]:
    """First what the lesson spoilt, then new photos, then what was wrong all along."""
    old = list(_mistakes(outcome.check)) if outcome.check else []
    new = list(_mistakes(outcome.left_out))
    spoilt = [mistake for mistake in old if mistake.was_right]
    return [*spoilt, *new, *(mistake for mistake in old if not mistake.was_right)]


def _mistakes(judged: Judged) -> Iterator[Mistake]:
    for place, (truth, answer) in enumerate(zip(judged.truth, judged.after, strict=True)):
        if truth != answer:
            was_right = bool(judged.before) and judged.before[place] == truth
            yield Mistake(judged.photos[place], truth, answer, was_right)


def helpers(outcome: Outcome, name: str) -> list[int]:
    """Rows of the pile that helped a taught class, the weightiest first."""
    unlabelled = outcome.unlabelled
    rows = np.flatnonzero((unlabelled.step > 0) & (unlabelled.helped == outcome.taught.index(name)))
    return [int(row) for row in rows[np.argsort(-unlabelled.weight[rows], kind="stable")]]


def doubtful_helpers(outcome: Outcome) -> list[int]:
    """Rows of the pile that helped a class and are now hardly, or not at all, taken for it.

    The most doubtful come first: those of another class, surest ones ahead, then by the margin.
    """
    unlabelled, classes = outcome.unlabelled, outcome.model.card.classes
    places = np.array([classes.index(name) for name in outcome.taught], np.int32)
    signed = np.where(
        unlabelled.answer == places[unlabelled.helped], unlabelled.margin, -unlabelled.margin
    )
    rows = np.flatnonzero((unlabelled.step > 0) & (signed < IN_DOUBT))
    return [int(row) for row in rows[np.argsort(signed[rows], kind="stable")]]
