"""One lesson over features: classes to teach, a few examples of each, and an unlabelled set U.

The mathematics is the benchmark's (Eqs. 2–4), with two things that a benchmark does not need: U is
gone through in parts, so that it may be larger than memory, and what each of its pictures did is
written down. K classes are known, N are taught (some of them perhaps known already). The pages and
commands for practitioners call U the pile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewgraft.app.features.cache import Features
from fewgraft.prototypes import (
    Refinement,
    base_evidence,
    class_sums,
    cosine_logits,
    direction_logits,
    directions,
    prototypes,
    pseudo_labels,
    support_sums,
    updated,
)

PART = 4096  # unlabelled pictures that are looked at together
AS_MANY_AS = 20  # photos that what was known of a class counts for at most
LEFT_OUT_UNLABELLED = 2000  # unlabelled pictures that a leave-one-out looks at
HELPED = 0.5  # a picture helps a class from the step on where it is more likely than not of it


@dataclass(frozen=True)
class Known:
    """The classifier so far."""

    classes: tuple[str, ...]
    weights: Tensor  # directions [K, d]
    gamma: float
    bias: Tensor  # [K], which holds classes back
    examples: tuple[int, ...]  # pictures each class was learnt from

    def logits(self, features: Tensor) -> Tensor:
        """γ·cos(f, w) + b [n, K] of features [n, d]."""
        return cosine_logits(features, self.weights, self.gamma) + self.bias


@dataclass(frozen=True)
class Lesson:
    """What is to be learnt."""

    known: Known
    taught: tuple[str, ...]
    support: Tensor  # features [S, d]
    labels: Tensor  # [S] in 0 … N−1
    unlabelled: Features  # [U, d], in memory or in a file
    config: Refinement

    @cached_property
    def _others(self) -> Tensor:
        """Rows of the known classes that are not taught."""
        rows = [row for row, name in enumerate(self.known.classes) if name not in self.taught]
        return torch.tensor(rows, dtype=torch.long)

    @cached_property
    def _remembered(self) -> tuple[Tensor, Tensor]:
        """What is known of taught classes, as examples [M, d] of them with labels [M]."""
        places = {name: row for row, name in enumerate(self.known.classes)}
        rows, labels = [], []
        for label, name in enumerate(self.taught):
            if name in places:
                times = min(self.known.examples[places[name]], AS_MANY_AS)
                rows += [places[name]] * times
                labels += [label] * times
        return self.known.weights[rows], torch.tensor(labels, dtype=torch.long)

    def learnt(self, *, with_unlabelled: bool = True, left_out: int | None = None) -> "Learnt":
        """The classifier afterwards, without one of the examples if asked for."""
        kept = [place for place in range(len(self.support)) if place != left_out]
        old, old_labels = self._remembered
        support = directions(torch.cat([self.support[kept], old]))[None]
        labels = torch.cat([self.labels[kept], old_labels])[None]
        novel = prototypes(support, labels, len(self.taught))
        step_helped = np.zeros(0, np.int16)
        if with_unlabelled and len(self.unlabelled):
            own = support_sums(support, labels, len(self.taught))
            unlabelled = self.unlabelled if left_out is None else _thinned(self.unlabelled)
            novel, step_helped = self._refined(novel, own, unlabelled)
        return Learnt(self, novel[0], step_helped)

    def _refined(
        self, novel: Tensor, own: tuple[Tensor, Tensor], unlabelled: Features
    ) -> tuple[Tensor, NDArray[np.int16]]:
        """Eqs. 3–4 with U in parts; also the step from which each picture helped."""
        helped = np.zeros(len(unlabelled), np.int16)
        for step in range(1, self.config.steps + 1):
            total, count = own
            for place, part in _parts(unlabelled):
                weights = self.part_weights(novel, part)
                total = total + class_sums(weights, part[None])
                count = count + weights.sum(1)
                now = (weights[0].amax(-1) >= HELPED).numpy()
                seen = helped[place : place + len(part)]
                helped[place : place + len(part)] = np.where(now, np.where(seen, seen, step), 0)
            novel = updated(novel, total, count, self.config)
        return novel, helped

    def part_weights(self, novel: Tensor, part: Tensor) -> Tensor:
        """How much directions [n, d] of U count for each taught class [1, n, N]."""
        base = base_evidence(self.known.logits(part)[None, :, self._others], self.config)
        logits = direction_logits(part[None], novel, self.known.gamma)
        return pseudo_labels(logits, base, self.config)

    def judged(self) -> tuple[int, ...]:
        """Examples that can be left out: something of their class remains."""
        labels = torch.cat([self.labels, self._remembered[1]])
        counts = torch.bincount(labels, minlength=len(self.taught))
        return tuple(p for p, label in enumerate(self.labels.tolist()) if counts[label] > 1)


@dataclass(frozen=True)
class UnlabelledPart:
    """What some unlabelled pictures, from `start` on, did."""

    start: int
    weights: Tensor  # [n, N] how much each counted for each taught class
    logits: Tensor  # [n, K'] over all classes afterwards


@dataclass(frozen=True)
class Learnt:
    """The outcome of a lesson."""

    lesson: Lesson
    novel: Tensor  # directions [N, d] of the taught classes
    step_helped: NDArray[np.int16]  # [U] the step from which a picture helped; 0: it did not
    held_back: float = 0.0  # the bias of the new classes

    @cached_property
    def is_new(self) -> Tensor:
        """Which of all classes were not known before [K']."""
        return torch.arange(len(self.known.classes)) >= len(self.lesson.known.classes)

    @cached_property
    def known(self) -> Known:
        """All classes: the old ones in their places, then the new ones."""
        before = self.lesson.known
        counts = torch.bincount(self.lesson.labels, minlength=len(self.novel)).tolist()
        classes, examples = list(before.classes), list(before.examples)
        weights = list(directions(before.weights))
        bias = before.bias.tolist()
        for name, weight, count in zip(self.lesson.taught, self.novel, counts, strict=True):
            if name in before.classes:
                place = before.classes.index(name)
                weights[place] = weight
                examples[place] += count
            else:
                classes.append(name)
                weights.append(weight)
                bias.append(self.held_back)
                examples.append(count)
        return Known(
            tuple(classes),
            torch.stack(weights),
            before.gamma,
            torch.tensor(bias),
            tuple(examples),
        )

    def unlabelled_parts(self) -> Iterator[UnlabelledPart]:
        """U once more, in parts."""
        for start, part in _parts(self.lesson.unlabelled):
            weights = self.lesson.part_weights(self.novel[None], part)[0]
            yield UnlabelledPart(start, weights, self.known.logits(part))


def left_out_logits(lesson: Lesson, *, with_unlabelled: bool) -> tuple[list[int], Tensor]:
    """Examples that were left out, each in turn, and its logits [n, K'] by what the others taught.

    An example that is the only one of its class cannot be judged and is not among them.
    """
    places = list(lesson.judged())
    rows = [
        lesson.learnt(with_unlabelled=with_unlabelled, left_out=place).known.logits(
            lesson.support[place : place + 1]
        )
        for place in places
    ]
    return places, torch.cat(rows) if rows else torch.empty(0, 0)


def _parts(unlabelled: Features) -> Iterator[tuple[int, Tensor]]:
    """(start, directions [n, d]) of U, one part after another."""
    for start in range(0, len(unlabelled), PART):
        part = torch.from_numpy(np.array(unlabelled[start : start + PART]))
        yield start, directions(part)


def _thinned(unlabelled: Features) -> Features:
    """Evenly spaced pictures, where there are more than a leave-one-out needs."""
    return unlabelled[:: -(-len(unlabelled) // LEFT_OUT_UNLABELLED)]


def places_of(names: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Class names as places in `classes` [n]; −1 where there is none."""
    place = {name: number for number, name in enumerate(classes)}
    return torch.tensor([place.get(name, -1) for name in names], dtype=torch.long)
