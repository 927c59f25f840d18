"""One lesson over features: classes to teach, a few examples of each, and an unlabelled set U.

The mathematics is the benchmark's (Eqs. 2–4), with three things that a benchmark does not need. U
is gone through in parts, so that it may be larger than memory. What old classes make of it is
computed once, however often it is looked at. What each of its pictures did is written down. K
classes are known, N are taught (some of them perhaps known already). The pages and commands for
practitioners call U the pile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewgraft.app.features.cache import Features
from fewgraft.border import Border
from fewgraft.densities import ClassPlaces
from fewgraft.devices import one_thread
from fewgraft.prototypes import (
    TINY,
    Refinement,
    base_evidence,
    cosine_logits,
    direction_logits,
    directions,
    members_of,
    pseudo_labels,
    updated,
)

PART = 4096  # unlabelled pictures that are looked at together
AS_MANY_AS = 20  # photos that what was known of a class counts for at most
LEFT_OUT_TOGETHER = 256  # prototypes that are refined in one go when examples are left out
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
    places: ClassPlaces | None = None  # where their pictures lie, if that counts as well

    def logits(self, features: Tensor) -> Tensor:
        """γ·cos(f, w) + b [n, K] of features [n, d], and densities where they count."""
        logits = cosine_logits(features, self.weights, self.gamma) + self.bias
        return logits + self.places.scores(directions(features)) if self.places else logits


@dataclass(frozen=True)
class Lesson:
    """What is to be learnt."""

    known: Known
    taught: tuple[str, ...]
    support: Tensor  # features [S, d]
    labels: Tensor  # [S] in 0 … N−1
    unlabelled: Features  # [U, d], in memory or in a file
    config: Refinement
    border: Border | None = None  # what rehearsals say of new classes

    @property
    def before(self) -> Known:
        """What answered before the lesson."""
        return self.known

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """All classes afterwards: the old ones in their places, then the new ones."""
        old = self.known.classes
        return (*old, *(name for name in self.taught if name not in old))

    @cached_property
    def taught_places(self) -> Tensor:
        """Places [N] of the taught classes among all classes."""
        return places_of(self.taught, self.classes)

    @cached_property
    def others(self) -> Tensor:
        """Rows of the known classes that are not taught."""
        rows = [row for row, name in enumerate(self.known.classes) if name not in self.taught]
        return torch.tensor(rows, dtype=torch.long)

    @cached_property
    def remembered(self) -> tuple[Tensor, Tensor]:
        """What is known of taught classes, as examples [M, d] of them with labels [M]."""
        places = {name: row for row, name in enumerate(self.known.classes)}
        rows, labels = [], []
        for label, name in enumerate(self.taught):
            if name in places:
                times = min(self.known.examples[places[name]], AS_MANY_AS)
                rows += [places[name]] * times
                labels += [label] * times
        return self.known.weights[rows], torch.tensor(labels, dtype=torch.long)

    @cached_property
    def old_scores(self) -> "OldScores":
        """What the known classes that are not taught make of U."""
        scores = OldScores.empty(len(self.unlabelled))
        others = self.others
        weights, bias = directions(self.known.weights[others]), self.known.bias[others]
        for rows, part in _parts(self.unlabelled):
            inverse = 1 / torch.linalg.vector_norm(part, dim=-1).clamp(min=TINY)
            logits = direction_logits(part, weights, self.known.gamma)
            logits = logits.mul_(inverse[:, None]).add_(bias)
            evidence = base_evidence(logits[None], self.config)[0]
            scores.put(rows, inverse, logits, evidence, others)
        return scores

    def learnt(self, *, with_unlabelled: bool = True) -> "Learnt":
        """The classifier afterwards."""
        members = self._members[None]
        if not with_unlabelled or not len(self.unlabelled):
            novel, count = self._prototypes(members)
            return Learnt(self, novel[0], np.zeros(0, np.int16), count[0])
        novel, count, helped = self._refined(members, every=1)
        return Learnt(self, novel[0], helped[0], count[0])

    def learnt_without(
        self, places: Sequence[int], *, with_unlabelled: bool
    ) -> tuple[Tensor, Tensor]:
        """Prototypes [E, N, d] without one example, each in turn, of so many pictures [E, N].

        A part of U will do for these, and they go through it together.
        """
        members = self._members.repeat(len(places), 1, 1)
        members[range(len(places)), places] = 0
        if not with_unlabelled or not len(self.unlabelled):
            return self._prototypes(members)
        few = max(1, LEFT_OUT_TOGETHER // len(self.taught))
        refined = [
            self._refined(some, _stride(self.unlabelled)) for some in torch.split(members, few)
        ]
        return torch.cat([novel for novel, _, _ in refined]), torch.cat([n for _, n, _ in refined])

    def left_out_scores(
        self, places: Sequence[int], *, with_unlabelled: bool
    ) -> tuple[Tensor, Tensor]:
        """What the taught classes say of each example [n, N] that is left out of them.

        Without any bias; also how many pictures made each class [n, N].
        """
        novel, counts = self.learnt_without(places, with_unlabelled=with_unlabelled)
        support = self.support[list(places)]
        return cosine_logits(support[:, None], novel, self.known.gamma)[:, 0], counts

    @cached_property
    def example_directions(self) -> Tensor:
        """Directions [S+M, d] of what the taught classes are learnt from."""
        return directions(torch.cat([self.support, self.remembered[0]]))

    @cached_property
    def _members(self) -> Tensor:
        """Their classes, one-hot [S+M, N]."""
        labels = torch.cat([self.labels, self.remembered[1]])
        return members_of(labels, len(self.taught), self.support.dtype)

    def _prototypes(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 2 [E, N, d] with one-hot classes [E, S+M, N] of the examples, and their counts."""
        count = members.sum(1)
        return directions(_shared_sums(members, self.example_directions) / count[..., None]), count

    def _refined(self, members: Tensor, every: int) -> tuple[Tensor, Tensor, NDArray[np.int16]]:
        """Eqs. 3–4 with every so-manyth picture of U, in parts, for E sets of examples at once.

        Prototypes [E, N, d], how many pictures count [E, N], and the step from which each picture
        helped [E, U]. `members` [E, S+M, N] says which examples a set has.
        """
        unlabelled, old = self.unlabelled[::every], self.old_scores.every(every)
        helped = np.zeros((len(members), len(unlabelled)), np.int16)
        own, own_count = _shared_sums(members, self.example_directions), members.sum(1)
        novel, count = self._prototypes(members)
        for step in range(1, self.config.steps + 1):
            total, count = own, own_count
            for rows, part in _parts(unlabelled):
                weights = self.part_weights(novel, part, old, rows)
                total = total + _shared_sums(weights * old.inverse[rows, None], part)
                count = count + weights.sum(1)
                now, before = (weights.amax(-1) >= HELPED).numpy(), helped[:, rows]
                helped[:, rows] = np.where(now, np.where(before, before, step), 0)
            novel = updated(novel, total, count, self.config)
        return novel, count, helped

    def part_weights(self, novel: Tensor, part: Tensor, old: "OldScores", rows: slice) -> Tensor:
        """How much features [n, d] of U, in these rows, count for each taught class [E, n, N]."""
        logits = self.part_logits(novel, part, old, rows)
        return pseudo_labels(logits, old.evidence[None, rows], self.config)

    def part_logits(self, novel: Tensor, part: Tensor, old: "OldScores", rows: slice) -> Tensor:
        """What the taught classes make of these [E, n, N], in one product for all sets."""
        logits = direction_logits(part, novel.flatten(0, 1), self.known.gamma)
        logits = logits.mul_(old.inverse[rows, None])
        return logits.view(-1, *novel.shape[:2]).transpose(0, 1)

    def judged(self) -> tuple[int, ...]:
        """Examples that can be left out: something of their class remains."""
        labels = torch.cat([self.labels, self.remembered[1]])
        counts = torch.bincount(labels, minlength=len(self.taught))
        return tuple(p for p, label in enumerate(self.labels.tolist()) if counts[label] > 1)


@dataclass(frozen=True)
class OldScores:
    """What old classes make of each unlabelled picture; a few numbers instead of one per class."""

    inverse: Tensor  # [U] 1/‖f‖: directions are never written out
    evidence: Tensor  # [U] all that pseudo-labels need
    total: Tensor  # [U] the log of the sum over old classes in Eq. 1
    best: Tensor  # [U, 2] the two best logits, −∞ where there are none
    places: Tensor  # [U, 2] of which known classes

    @classmethod
    def empty(cls, pictures: int) -> "OldScores":
        """Room for the scores of so many pictures, all of them as if there were no old class."""
        nothing = torch.full((pictures, 4), float("-inf"))
        places = torch.zeros(pictures, 2, dtype=torch.long)
        return cls(torch.ones(pictures), nothing[:, 0], nothing[:, 1], nothing[:, 2:], places)

    def every(self, step: int) -> "OldScores":
        """Those of every so-manyth picture."""
        parts = (self.inverse, self.evidence, self.total, self.best, self.places)
        return OldScores(*(part[::step] for part in parts))

    def put(
        self, rows: slice, inverse: Tensor, logits: Tensor, evidence: Tensor, classes: Tensor
    ) -> None:
        """Fill in what logits [n, K] over these classes [K] say of some pictures."""
        kept = min(2, logits.shape[-1])
        self.inverse[rows] = inverse
        self.evidence[rows] = evidence
        if kept:
            self.total[rows] = logits.logsumexp(-1)
            self.best[rows, :kept], two = logits.topk(kept, dim=-1)
            self.places[rows, :kept] = classes[two]


@dataclass(frozen=True)
class UnlabelledPart:
    """What some unlabelled pictures, from `start` on, did and what they are taken for."""

    start: int
    weights: Tensor  # [n, N] how much each counted for each taught class
    scores: Tensor  # [n, 2] probabilities of the two likeliest classes afterwards
    places: Tensor  # [n, 2] which classes these are


@dataclass(frozen=True)
class Learnt:
    """The outcome of a lesson."""

    lesson: Lesson
    novel: Tensor  # directions [N, d] of the taught classes
    step_helped: NDArray[np.int16]  # [U] the step from which a picture helped; 0: it did not
    counts: Tensor  # [N] how many pictures made each prototype, unlabelled ones by their weight
    bias: Tensor | None = None  # [N] on the logits of the taught classes that are new; None: 0

    @cached_property
    def is_new(self) -> Tensor:
        """Which of all classes were not known before [K']."""
        return torch.arange(len(self.known.classes)) >= len(self.lesson.known.classes)

    @cached_property
    def known(self) -> Known:
        """All classes: the old ones in their places, then the new ones."""
        return self.directed

    @property
    def directed(self) -> Known:
        """The same, by their directions alone."""
        before = self.lesson.known
        counts = torch.bincount(self.lesson.labels, minlength=len(self.novel)).tolist()
        classes, examples = list(before.classes), list(before.examples)
        weights = list(directions(before.weights))
        bias = before.bias.tolist()
        given = (torch.zeros(len(self.novel)) if self.bias is None else self.bias).tolist()
        for name, weight, count, own in zip(
            self.lesson.taught, self.novel, counts, given, strict=True
        ):
            if name in before.classes:
                place = before.classes.index(name)
                weights[place] = weight
                examples[place] += count
            else:
                classes.append(name)
                weights.append(weight)
                bias.append(own)
                examples.append(count)
        return Known(
            tuple(classes),
            torch.stack(weights),
            before.gamma,
            torch.tensor(bias),
            tuple(examples),
        )

    @property
    def unlabelled_share(self) -> float | None:
        """Share of U that counted for the taught classes; None where it was not used."""
        if not len(self.step_helped):
            return None
        own = len(self.lesson.labels) + len(self.lesson.remembered[1])
        return max(0.0, (self.counts.sum().item() - own) / len(self.step_helped))

    @property
    def taught_places(self) -> Tensor:
        """Places [N] of the taught classes among all classes."""
        return self.lesson.taught_places

    def unlabelled_parts(self) -> Iterator[UnlabelledPart]:
        """U once more, in parts."""
        lesson, known, old = self.lesson, self.known, self.lesson.old_scores
        for rows, part in _parts(lesson.unlabelled):
            logits = lesson.part_logits(self.novel[None], part, old, rows)
            weights = pseudo_labels(logits, old.evidence[None, rows], lesson.config)[0]
            taught = logits[0] + known.bias[self.taught_places]
            total = torch.logaddexp(old.total[rows], taught.logsumexp(-1))
            everything = torch.cat([old.best[rows], taught], dim=-1)
            two = everything.topk(2, dim=-1)
            places = torch.cat([old.places[rows], self.taught_places.expand(len(part), -1)], dim=-1)
            scores = (two.values - total[:, None]).exp()
            yield UnlabelledPart(rows.start, weights, scores, places.gather(-1, two.indices))


@dataclass(frozen=True)
class LeftOut:
    """Examples that were left out, each in turn, and what the others taught says of them."""

    places: list[int]
    logits: Tensor  # [n, K']
    counts: Tensor  # [n, N] how many pictures made each prototype


def left_out_examples(lesson: Lesson, *, with_unlabelled: bool) -> LeftOut:
    """Leave out each example in turn.

    An example that is the only one of its class cannot be judged and is not among them.
    """
    places = list(lesson.judged())
    if not places:
        return LeftOut([], torch.empty(0, 0), torch.empty(0, len(lesson.taught)))
    with one_thread():  # a part of U, and few classes
        own, counts = lesson.left_out_scores(places, with_unlabelled=with_unlabelled)
    support, known = lesson.support[places], lesson.known
    new = len(lesson.classes) - len(known.classes)
    bias = torch.cat([known.bias, torch.zeros(new)])[lesson.taught_places]
    logits = torch.cat([known.logits(support), own.new_zeros(len(own), new)], dim=-1)
    logits[:, lesson.taught_places] = own + bias
    return LeftOut(places, logits, counts)


def _shared_sums(weights: Tensor, features: Tensor) -> Tensor:
    """`class_sums` for features [n, d] that E sets of weights [E, n, N] share, in one product."""
    columns = weights.transpose(0, 1).flatten(1)  # [n, E·N]
    return (columns.T @ features).view(len(weights), -1, features.shape[1])


def _parts(unlabelled: Features) -> Iterator[tuple[slice, Tensor]]:
    """(rows, features [n, d]) of U, one part after another; not copied where that is not needed."""
    for start in range(0, len(unlabelled), PART):
        part = unlabelled[start : start + PART]
        rows = slice(start, start + len(part))
        yield rows, torch.from_numpy(part if part.flags.writeable else part.copy())


def _stride(unlabelled: Features) -> int:
    """Every so-manyth picture is as much of U as a leave-one-out needs."""
    return max(1, -(-len(unlabelled) // LEFT_OUT_UNLABELLED))


def places_of(names: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Class names as places in `classes` [n]; −1 where there is none."""
    place = {name: number for number, name in enumerate(classes)}
    return torch.tensor([place.get(name, -1) for name in names], dtype=torch.long)
