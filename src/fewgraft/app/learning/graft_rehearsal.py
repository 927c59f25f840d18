"""The rehearsed lessons once more, with graft: its border, and which method did better.

Classes and photos are those of the other method's lessons, so that differences are paired. Scores
are divided by γ, as cosines are elsewhere in rehearsals.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fewgraft.app.learning.bordering import usual_tolerance
from fewgraft.app.learning.exemplars import (
    DENSITY,
    GRAFT,
    episode,
    exemplars_of,
    novel_scores,
    thinned,
)
from fewgraft.app.learning.gamma import best_gamma
from fewgraft.app.learning.rehearsal import (
    SHARES,
    SHOTS,
    Fold,
    FoldDraw,
    FoldLesson,
    Rehearsal,
    RehearsedLesson,
)
from fewgraft.base_knowledge import knowledge_of
from fewgraft.border import Border, bias_between
from fewgraft.densities import ClassPlaces
from fewgraft.devices import one_thread
from fewgraft.methods.base import Task
from fewgraft.methods.graft import Grafted
from fewgraft.model import GraftRehearsed, Unknown
from fewgraft.prototypes import direction_logits


def rehearsed_with_graft(done: Rehearsal, most: int) -> Rehearsal:
    """The lessons that were drawn, with graft and so many exemplars per class."""
    found = Rehearsal()
    with one_thread():
        for fold, draws in done.drawn:
            GraftFold(fold, most).rehearse(draws, found)
    return found


def compared(
    plain: Rehearsal, border: Border, graft: Rehearsal, unknown: Unknown
) -> GraftRehearsed | None:
    """Both methods at their own borders, that of refine given, paired over draws of classes."""
    own = graft.border()
    if own is None:
        return None
    refine = dict(accuracies(plain, border))
    both = np.array([[refine[draw], accuracy] for draw, accuracy in accuracies(graft, own)])
    ahead = both[:, 1] - both[:, 0]
    error = ahead.std(ddof=1) / math.sqrt(len(ahead)) if len(ahead) > 1 else 1.0
    return GraftRehearsed(
        border=own,
        unknown=unknown,
        refine=round(both[:, 0].mean(), 5),
        graft=round(both[:, 1].mean(), 5),
        error=round(error, 5),
        draws=len(both),
    )


def accuracies(rehearsal: Rehearsal, border: Border) -> Iterator[tuple[int, float]]:
    """(draw, mean accuracy of its lessons), each the mean of old and new photos."""
    start = partial(bias_between, counts=border.counts, biases=border.biases)
    tolerance = usual_tolerance(border)
    by_draw: dict[int, list[float]] = {}
    for lessons in _kinds(rehearsal, border):
        scores = [one.scores(start(one.counts.tolist())) for one in lessons]
        lost, found = (np.stack(part) for part in zip(*scores, strict=True))
        gain = found.mean(0) - lost.mean(0)
        error = lost.std(0) / math.sqrt(len(lost))
        allowed = lost.mean(0) - error <= tolerance
        shift = np.where(allowed, gain, -math.inf).argmax() if allowed.any() else 0
        for one, lose, find in zip(lessons, lost[:, shift], found[:, shift], strict=True):
            old = one.old_right.double().mean().item() - lose
            by_draw.setdefault(one.draw, []).append((old + find) / 2)
    for draw, own in by_draw.items():
        yield draw, float(np.mean(own))


def _kinds(rehearsal: Rehearsal, border: Border) -> Iterator[Sequence[RehearsedLesson]]:
    """Lessons that share a border: without U by number of shots, with it by the share of new."""
    for shots in SHOTS:
        if shots in rehearsal.plain:
            yield rehearsal.plain[shots]
    for share in SHARES:
        yield rehearsal.unlabelled[border.unlabelled_bias, share]


class GraftFold:
    """A fold whose old classes are places as well."""

    def __init__(self, fold: Fold, most: int) -> None:
        self.fold, self.most = fold, most
        self.gamma = best_gamma((fold.cosines, fold.old_labels))
        own = exemplars_of(fold.kept, fold.kept_labels, len(fold.weights), most)
        self.knowledge = knowledge_of(own)
        exemplars = self.knowledge.exemplars
        self.places = ClassPlaces(exemplars, exemplars.any(-1).float(), DENSITY)
        self.old = self.scores(fold.old)  # [n, K]

    def scores(self, features: Tensor) -> Tensor:
        """β [n, K] of directions [n, d]."""
        logits = direction_logits(features, self.fold.weights, self.gamma)
        return logits + self.places.scores(features)

    def rehearse(self, draws: Sequence[FoldDraw], found: Rehearsal) -> None:
        """All lessons of these draws, with and without U."""
        found.cosines.append(self.old / self.gamma)
        found.labels.append(self.fold.old_labels)
        found.series.append(self.fold.series)
        lessons = [lesson for draw in draws for lesson in (*draw.plain, *draw.mixed)]
        answers = self.answers(lessons)
        for lesson, grafted in zip(lessons, self.grafted(lessons), strict=True):
            answered = self.answered(lesson, grafted, answers)
            if len(lesson.u):
                found.unlabelled.setdefault((0.0, lesson.share), []).append(answered)
            else:
                found.plain.setdefault(lesson.shots, []).append(answered)

    def answers(self, lessons: Sequence[FoldLesson]) -> dict[int, list[Tensor]]:
        """Best scores [n_j] of photos of each new class among old ones, by draw."""
        draws = {lesson.draw.number: lesson.draw for lesson in lessons}
        return {
            number: [self.scores(own).amax(-1) for own in draw.new]
            for number, draw in draws.items()
        }

    def grafted(self, lessons: Sequence[FoldLesson]) -> list[Grafted]:
        """Graft's solution of each lesson; those of one shape are solved together."""
        found: dict[int, Grafted] = {}
        shapes = [(lesson.shots, lesson.ways, len(lesson.u)) for lesson in lessons]
        for shape in dict.fromkeys(shapes):
            alike = [place for place, own in enumerate(shapes) if own == shape]
            task = self.task([lessons[place] for place in alike])
            solved = GRAFT.fit(task) if shape[2] else GRAFT.start(task)
            assert isinstance(solved, Grafted)
            found |= {place: episode(solved, number) for number, place in enumerate(alike)}
        return [found[place] for place in range(len(lessons))]

    def task(self, lessons: Sequence[FoldLesson]) -> Task:
        """Lessons with as many classes, shots and photos in U as one another."""
        support = torch.stack([lesson.support for lesson in lessons])
        width = support.shape[-1]
        u = torch.stack([lesson.u.view(-1, width) for lesson in lessons])
        base = self.scores(u.flatten(0, 1)).view(*u.shape[:2], -1) if u.shape[1] else u[..., :0]
        return Task(
            ways=lessons[0].ways,
            support=support,
            labels=torch.stack([lesson.labels for lesson in lessons]),
            unlabelled=u,
            base_unlabelled=base,
            weights=self.fold.weights,
            gamma=self.gamma,
            numbers=torch.zeros(len(lessons)),
            knowledge=self.knowledge,
        )

    def answered(
        self, lesson: FoldLesson, grafted: Grafted, answers: dict[int, list[Tensor]]
    ) -> RehearsedLesson:
        """Scores of photos that were not used in a lesson, in cosines."""
        draw, used = lesson.draw, lesson.used.items()
        best = self.old[draw.asked].max(-1)
        new = [draw.new[place][n:] for place, n in used]
        new_best = [answers[draw.number][place][n:] for place, n in used]
        rest = grafted.weights[0, len(lesson.labels) :]
        novel = novel_scores(thinned(grafted, self.most), torch.cat([draw.old, *new]))
        return RehearsedLesson(
            old_best=best.values / self.gamma,
            old_right=best.indices == self.fold.old_labels[draw.asked],
            old_novel=novel[: len(draw.old)] / self.gamma,
            new_best=torch.cat(new_best) / self.gamma,
            new_novel=novel[len(draw.old) :] / self.gamma,
            new_labels=torch.arange(len(new)).repeat_interleave(torch.tensor([*map(len, new)])),
            counts=grafted.weights[0].sum(0),
            share=min(rest.sum().item() / len(rest), 1.0) if len(rest) else 0.0,
            draw=draw.number,
        )
