"""A lesson with the method graft: the benchmark's `Graft`, over features that the tool keeps.

Old classes are directions and places of exemplars. New classes are refined with both and told apart
in a space of their own (methods/graft.py). Their border is the rehearsed one. Nearness of all pairs
of U is in memory, so that a large U is thinned.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fewgraft.app.learning.exemplars import GRAFT, episode, novel_scores, places_of_classes, thinned
from fewgraft.app.learning.lesson import (
    AS_MANY_AS,
    HELPED,
    PART,
    Known,
    Learnt,
    Lesson,
    UnlabelledPart,
)
from fewgraft.base_knowledge import BaseKnowledge, knowledge_of
from fewgraft.densities import ClassPlaces
from fewgraft.methods.base import Solution, Task
from fewgraft.methods.graft import Graft, Grafted
from fewgraft.prototypes import directions

LARGEST_UNLABELLED = 4000  # pictures of U that a lesson looks at
LEFT_OUT_UNLABELLED = 500  # and when an example is left out
LEFT_OUT_TOGETHER = 8  # examples that are left out in one go, each in turn


@dataclass(frozen=True)
class GraftLesson(Lesson):
    """What is to be learnt; `known.places` is there."""

    plain: Known | None = None  # what answered before; None: `known`
    method: Graft = GRAFT

    @property
    def before(self) -> Known:
        """What answered before the lesson: without densities, if it is the first of its kind."""
        return self.plain or self.known

    @property
    def places(self) -> ClassPlaces:
        """Of the known classes."""
        assert self.known.places is not None
        return self.known.places

    @property
    def every_example(self) -> list[int]:
        """Rows of all that the taught classes are learnt from."""
        return list(range(len(self.example_directions)))

    @property
    def most(self) -> int:
        """Exemplars that a class keeps."""
        return self.places.weights.shape[1]

    @cached_property
    def remembered(self) -> tuple[Tensor, Tensor]:
        """Exemplars [M, d] of the taught classes that are known, with labels [M]."""
        rows, labels = [self.support.new_empty(0, self.support.shape[1])], [torch.empty(0).long()]
        for label, name in enumerate(self.taught):
            if name in self.known.classes:
                own = self.exemplars_of(self.known.classes.index(name))[:AS_MANY_AS]
                rows.append(own)
                labels.append(torch.full((len(own),), label))
        return torch.cat(rows), torch.cat(labels)

    def exemplars_of(self, place: int) -> Tensor:
        """Directions [m_k, d] of a known class, the weightiest first."""
        there = self.places.weights[place] > 0
        return directions(self.places.exemplars[place][there].float())

    @cached_property
    def knowledge(self) -> BaseKnowledge:
        """Exemplars of the classes that are not taught; Σ within all known ones."""
        every = [self.exemplars_of(place) for place in range(len(self.known.classes))]
        found = knowledge_of(every)
        return dataclasses.replace(found, exemplars=found.exemplars[self.others])

    def learnt(self, *, with_unlabelled: bool = True) -> "GraftLearnt":
        """The classifier afterwards."""
        most = LARGEST_UNLABELLED if with_unlabelled else 0
        task = self.task([self.every_example], most)
        grafted = self.grafted(task)
        own = task.support.shape[1]
        helped = np.zeros(len(self.unlabelled) if most else 0, np.int16)
        if len(helped):
            counted = grafted.weights[0, own:].amax(-1) >= HELPED
            helped[:: self.stride(most)] = counted.numpy()
        counts = grafted.weights[0].sum(0)
        return GraftLearnt(self, grafted.novel[0], helped, counts, grafted=grafted)

    def left_out_scores(
        self, places: Sequence[int], *, with_unlabelled: bool
    ) -> tuple[Tensor, Tensor]:
        """What the taught classes say of each example [n, N] that is left out of them."""
        most = LEFT_OUT_UNLABELLED if with_unlabelled else 0
        scores, counts = [], []
        for start in range(0, len(places), LEFT_OUT_TOGETHER):
            some = places[start : start + LEFT_OUT_TOGETHER]
            kept = [[row for row in self.every_example if row != place] for place in some]
            together = self.grafted(self.task(kept, most))
            counts += [*together.weights.sum(1)]
            together = thinned(together, self.most)
            for number, place in enumerate(some):
                asked = self.example_directions[[place]]
                scores.append(novel_scores(episode(together, number), asked)[0])
        return torch.stack(scores), torch.stack(counts)

    def stride(self, most: int) -> int:
        """Every so-manyth picture of U is looked at."""
        return max(1, -(-len(self.unlabelled) // max(1, most)))

    def task(self, examples: Sequence[Sequence[int]], most: int) -> Task:
        """One episode for each set of examples, with no more than so many pictures of U."""
        labels = torch.cat([self.labels, self.remembered[1]])
        rows = self.unlabelled[:: self.stride(most)] if most else self.unlabelled[:0]
        pictures = directions(torch.from_numpy(np.array(rows)))
        chosen, shape = torch.tensor(examples), (len(examples), -1, -1)
        base = self.known.logits(pictures)[:, self.others]
        return Task(
            ways=len(self.taught),
            support=self.example_directions[chosen],
            labels=labels[chosen],
            unlabelled=pictures.expand(shape),
            base_unlabelled=base.expand(shape),
            weights=self.known.weights[self.others],
            gamma=self.known.gamma,
            numbers=torch.zeros(len(examples)),
            knowledge=self.knowledge,
        )

    def grafted(self, task: Task) -> Grafted:
        """Graft's solution; that of the support alone where there is no U."""
        found: Solution = (
            self.method.fit(task) if task.unlabelled.shape[1] else self.method.start(task)
        )
        assert isinstance(found, Grafted)
        return found


@dataclass(frozen=True)
class GraftLearnt(Learnt):
    """The outcome: new classes are directions and places as well."""

    lesson: GraftLesson
    grafted: Grafted | None = None

    @cached_property
    def known(self) -> Known:
        """All classes: the old ones in their places, then the new ones."""
        return dataclasses.replace(self.directed, places=self._places())

    def _places(self) -> ClassPlaces:
        """Where all classes lie: S and U, by their weights r, are exemplars of the taught ones."""
        assert self.grafted is not None
        before = self.lesson.places
        exemplars = [*before.exemplars.float()]
        weights = [*before.weights.float()]
        pictures = self.grafted.pictures[0]
        for name, own in zip(self.lesson.taught, self.grafted.weights[0].T, strict=True):
            if name in self.lesson.known.classes:
                place = self.lesson.known.classes.index(name)
                exemplars[place], weights[place] = pictures, own
            else:
                exemplars.append(pictures)
                weights.append(own)
        return places_of_classes(exemplars, weights, self.lesson.most)

    @property
    def unlabelled_share(self) -> float | None:
        """Share of U that counted for the taught classes; None where it was not used."""
        if not len(self.step_helped):
            return None
        assert self.grafted is not None
        rows = self.grafted.weights[0, len(self.lesson.example_directions) :]
        return rows.sum().item() / len(rows)

    def unlabelled_parts(self) -> Iterator[UnlabelledPart]:
        """U once more, in parts; pictures that were not looked at counted for nothing."""
        weights = self._weights_of_unlabelled()
        for start in range(0, len(self.lesson.unlabelled), PART):
            part = torch.from_numpy(np.array(self.lesson.unlabelled[start : start + PART]))
            two = self.known.logits(part).softmax(-1).topk(2, dim=-1)
            yield UnlabelledPart(start, weights[start : start + PART], two.values, two.indices)

    def _weights_of_unlabelled(self) -> Tensor:
        """r of all of U [U, N]."""
        lesson = self.lesson
        found = torch.zeros(len(lesson.unlabelled), len(lesson.taught))
        if len(self.step_helped) and self.grafted is not None:
            rows = self.grafted.weights[0, len(lesson.example_directions) :]
            found[:: lesson.stride(LARGEST_UNLABELLED)] = rows
        return found
