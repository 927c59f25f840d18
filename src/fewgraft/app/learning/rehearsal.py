"""Where should new classes begin? Base classes that pretend to be new tell (Algorithm 2's idea).

A third of the classes is set aside, three times over. A classifier is made of most photos of the
others; the rest of their photos are old ones that it has not seen. Then lessons are rehearsed: a
few of the classes set aside are taught, from 1 to 20 photos each, without an unlabelled set and
with one in which old and new photos are mixed. The answers to all photos that were not used say
what any bias on the new classes would have lost of the old ones and found of the new ones.

Photos may come in series, so half of those that are held out of a class are neighbours of one
another: a random draw alone would leave a twin of each in training. The other half is such a draw:
where photos do not come in series, neighbours are the typical ones of their class, and too easy.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fewgraft.app.learning.foreign import auroc
from fewgraft.app.learning.gamma import best_gamma
from fewgraft.app.learning.head import class_weights
from fewgraft.border import Border, Tradeoff, bias_between
from fewgraft.devices import one_thread
from fewgraft.prototypes import (
    Refinement,
    base_evidence,
    direction_logits,
    directions,
    prototypes,
    pseudo_labels,
    refine,
)
from fewgraft.whitening import LARGEST_WHITENED, rooted, space_of_roots, turned

FOLDS = 3
LESSONS = 6  # per fold
WAYS = 5  # classes that pretend to be new
COUNTS = (1, 2, 5, 10, 20)  # photos that a prototype is made of
SHOTS = (1, 5)  # in lessons with an unlabelled set
SHARES = (0.5, 0.1)  # of new photos in it
UNLABELLED = 20  # new photos per class in it
UNLABELLED_BIASES = (0.0, 0.05)  # cosines: on new classes in the pseudo-labels
SHARPNESS = 18.0  # γ of the pseudo-labels
STEPS, ALPHA = 15, 0.5  # of Eqs. 3–4
HELD_OUT = 0.3  # of the photos of each class that stays
FEWEST_CLASSES, FEWEST_PHOTOS = 6, 3
MOST_PHOTOS = 50  # per class: more would only take longer
MOST_ASKED = 1000  # old photos per lesson
BIASES = torch.arange(-16, 33) / 80  # cosines: −0.2 … 0.4
TOLERANCE = 0.02  # where two ways are compared
FALSE_REJECTS = 0.05  # share of photos of known classes that may be answered "unknown"

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class RehearsedLesson:
    """A rehearsed lesson: cosines of photos that were not used in it."""

    old_best: Tensor  # [n] to the nearest old class
    old_right: Tensor  # [n] whether that is the right one
    old_novel: Tensor  # [n, N] to the new classes
    new_best: Tensor  # [m] to the nearest old class
    new_novel: Tensor  # [m, N]
    new_labels: Tensor  # [m]
    counts: Tensor  # [N] photos that each prototype is made of
    share: float = 0.0  # of U that counted for the new classes
    draw: int = 0  # which draw of classes it belongs to

    def scores(self, start: Sequence[float]) -> tuple[Shares, Shares]:
        """Shares [B] of old photos lost and of new photos found with biases start [N] + BIASES.

        What is added to all new classes does not change which of them is the best. In NumPy: these
        are many small sums, and PyTorch takes longer to begin one than to do it.
        """
        of_old, of_new = (
            x.numpy() + np.asarray(start, np.float32) for x in (self.old_novel, self.new_novel)
        )
        right = of_new.argmax(-1) == self.new_labels.numpy()
        return (
            _share_below(self.old_best.numpy() - of_old.max(-1), self.old_right.numpy()),
            _share_below(self.new_best.numpy() - of_new.max(-1), right),
        )

    def best_of_new(self, start: Sequence[float]) -> Shares:
        """Best scores [B, m] of new photos with biases start [N] + BIASES, in cosines."""
        novel = (self.new_novel.numpy() + np.asarray(start, np.float32)).max(-1)
        best: Shares = np.maximum(self.new_best.numpy(), novel + BIASES.numpy()[:, None])
        return best


def _share_below(gaps: NDArray[np.float32], counted: NDArray[np.bool_]) -> Shares:
    """Share [B] of n photos that count and whose gap [n] is less than each of BIASES."""
    below: Shares = np.searchsorted(np.sort(gaps[counted]), BIASES.numpy()) / len(gaps)
    return below


@dataclass
class Rehearsal:
    """All that was rehearsed in one space."""

    plain: dict[int, list[RehearsedLesson]] = field(default_factory=dict)  # by count
    # By the bias in the pseudo-labels and the share of new photos in U.
    unlabelled: dict[tuple[float, float], list[RehearsedLesson]] = field(default_factory=dict)
    cosines: list[Tensor] = field(default_factory=list)  # [n, K'] of held-out photos
    labels: list[Tensor] = field(default_factory=list)  # [n]
    series: list[Tensor] = field(default_factory=list)  # [n] which of them are neighbours
    foreign: list[Tensor] = field(default_factory=list)  # [n] best cosines of classes set aside
    drawn: list[tuple["Fold", list["FoldDraw"]]] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """Of held-out photos of old classes, before any lesson."""
        right = [c.argmax(-1) == own for c, own in zip(self.cosines, self.labels, strict=True)]
        return torch.cat(right).double().mean().item()

    @property
    def best(self) -> Tensor:
        """Best cosines [n] of held-out photos."""
        return torch.cat([cosines.amax(-1) for cosines in self.cosines])

    def limit(self) -> float:
        """The best cosine that all but a few of the held-out photos reach, drawn either way.

        The lower one of the two ways: if photos come in series it is that of neighbours.
        """
        best, series = self.best, torch.cat(self.series)
        groups = [own for own in (best[series], best[~series]) if len(own)]
        return min(own.quantile(FALSE_REJECTS).item() for own in groups)

    @property
    def auroc(self) -> float:
        """How well the best cosine tells held-out photos from those of classes never taught."""
        return auroc(self.best, torch.cat(self.foreign))

    def gamma(self) -> float:
        """The γ under which held-out photos are most likely."""
        return best_gamma(*zip(self.cosines, self.labels, strict=True))

    def border(self) -> Border | None:
        """What was found; None if no lesson could be rehearsed."""
        counts = sorted(self.plain)
        if not counts or not self.unlabelled:
            return None
        biases = [_balanced(self.plain[count]) for count in counts]
        start = partial(bias_between, counts=counts, biases=biases)
        curves = {key: _curve(start, own) for key, own in self.unlabelled.items()}
        chosen = max(
            dict.fromkeys(bias for bias, _ in curves),
            key=lambda bias: sum(value(curves[bias, s]) for s in SHARES),
        )
        shares = {s: _mean_share(self.unlabelled[chosen, s]) for s in SHARES}
        order = sorted(SHARES, key=lambda s: shares[s])
        return Border(
            counts=tuple(counts),
            biases=tuple(biases),
            shifts=_rounded(BIASES),
            without_unlabelled=_curve(start, [one for own in self.plain.values() for one in own]),
            with_unlabelled=tuple(curves[chosen, s] for s in order),
            shares=tuple(shares[s] for s in order),
            ways=_mean_ways(self.plain[counts[0]]),
            lessons=len(self.plain[counts[0]]),
            mistakes=round(1 - self.accuracy, 5),
            unlabelled_bias=chosen,
            sharpness=SHARPNESS,
        )


def value(curve: Tradeoff) -> float:
    """Balanced gain of the best shift within the tolerance."""
    pairs = zip(curve.lost, curve.found, strict=True)
    return max((found - lost for lost, found in pairs if lost <= TOLERANCE), default=-1.0)


def rehearse(
    features: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    shrinkage: float | None = None,
    seed: int = 0,
) -> Iterator[Rehearsal]:
    """Rehearse with features [n, d] of base photos, as the network gives them.

    Gives all that was rehearsed so far, after each of the folds.
    """
    rng = torch.Generator().manual_seed(seed)
    features, labels = _thinned(features, labels, n_classes, rng)
    roots = turned(rooted(features))
    done = Rehearsal()
    for aside in torch.randperm(n_classes, generator=rng).chunk(FOLDS):
        fold = Fold(features, roots, labels, n_classes, aside, shrinkage, rng)
        done.cosines.append(fold.cosines)
        done.labels.append(fold.old_labels)
        done.series.append(fold.series)
        done.foreign.append(torch.cat([(own @ fold.weights.T).amax(-1) for own in fold.aside]))
        with one_thread():
            _rehearse_lessons(fold, done, rng)
        yield done


def can_rehearse(features: Tensor, labels: Tensor, n_classes: int) -> bool:
    """Whether there are enough classes with enough photos, and features that can be whitened."""
    if features.shape[1] > LARGEST_WHITENED:
        return False
    photos = torch.bincount(labels, minlength=n_classes)
    return int((photos >= FEWEST_PHOTOS).sum()) >= FEWEST_CLASSES


class Fold:
    """A classifier of most classes and most of their photos, and what it has not seen."""

    def __init__(
        self,
        features: Tensor,  # [n, d]
        roots: Tensor,  # [n, r] of these, turned
        labels: Tensor,
        n_classes: int,
        aside: Tensor,
        shrinkage: float | None,
        rng: torch.Generator,
    ) -> None:
        stays = torch.ones(n_classes, dtype=torch.bool)
        stays[aside] = False
        place = stays.cumsum(0) - 1
        mine = stays[labels]
        old, own = roots[mine], place[labels[mine]]
        series, drawn = _held_out(features[mine], own, rng)
        held = series | drawn
        kept = int(stays.sum())
        space = space_of_roots(old[~held], own[~held], kept, features.shape[1], shrinkage)
        self.kept, self.kept_labels = space.placed(old[~held]), own[~held]
        self.weights = class_weights(self.kept, self.kept_labels, kept)
        self.old, self.old_labels = space.placed(old[held]), own[held]
        self.cosines = self.old @ self.weights.T
        self.series = series[held]
        self.aside = [space.placed(roots[labels == label]) for label in aside.tolist()]


def _rehearse_lessons(fold: Fold, done: Rehearsal, rng: torch.Generator) -> None:
    """Draws of new classes, each taught from all numbers of photos, without U and with it."""
    first = LESSONS * len(done.drawn)
    draws = [FoldDraw(fold, first + number, rng) for number in range(LESSONS)]
    done.drawn.append((fold, draws))
    for lesson in (lesson for draw in draws for lesson in draw.plain):
        novel = prototypes(lesson.support[None], lesson.labels[None], lesson.ways)[0]
        counts = torch.full((lesson.ways,), float(lesson.shots))
        done.plain.setdefault(lesson.shots, []).append(lesson.answered(novel, counts))
    mixed = [lesson for draw in draws for lesson in draw.mixed]
    for lesson, refined in zip(mixed, _refined(fold.weights, mixed), strict=True):
        for bias, novel, counts in zip(UNLABELLED_BIASES, *refined, strict=True):
            counted = (counts.sum() - len(lesson.labels)).item() / len(lesson.u)
            answered = replace(lesson.answered(novel, counts), share=min(max(counted, 0.0), 1.0))
            done.unlabelled.setdefault((bias, lesson.share), []).append(answered)


class FoldDraw:
    """Classes that pretend to be new, old photos to ask, and all lessons with them."""

    def __init__(self, fold: Fold, number: int, rng: torch.Generator) -> None:
        self.number = number
        order = torch.randperm(len(fold.aside), generator=rng)[:WAYS].tolist()
        self.new = [_shuffled(fold.aside[place], rng) for place in order]
        self.new_best = [(own @ fold.weights.T).amax(-1) for own in self.new]
        unlabelled, asked = torch.randperm(len(fold.old), generator=rng).tensor_split(2)
        self.asked = asked = asked[:MOST_ASKED]
        best = fold.cosines[asked].max(-1)
        self.old, self.old_best = fold.old[asked], best.values
        self.old_right = best.indices == fold.old_labels[asked]
        self.plain = [lesson for count in COUNTS if (lesson := FoldLesson.of(self, count)).ways]
        self.mixed = [
            replace(lesson, share=share, u=lesson.mixed(fold.old[unlabelled], share, rng))
            for shots in SHOTS
            if (lesson := FoldLesson.of(self, shots, with_unlabelled=True)).ways
            for share in SHARES
        ]


@dataclass(frozen=True)
class FoldLesson:
    """Some classes of a draw: their first photos are examples, the next in U, the last asked."""

    draw: FoldDraw
    shots: int
    used: dict[int, int]  # class of the draw → photos that are not asked
    share: float = 0.0  # of new photos in U
    u: Tensor = field(default_factory=lambda: torch.empty(0))  # [U, d]

    @classmethod
    def of(cls, draw: FoldDraw, shots: int, *, with_unlabelled: bool = False) -> "FoldLesson":
        """With those classes that have photos enough for each of these."""
        left = {place: len(own) - shots for place, own in enumerate(draw.new)}
        if with_unlabelled:
            used = {p: shots + min(UNLABELLED, n // 2) for p, n in left.items() if n > 1}
        else:
            used = {p: shots for p, n in left.items() if n > 0}
        return cls(draw, shots, used)

    @property
    def ways(self) -> int:
        """N, the new classes."""
        return len(self.used)

    @property
    def support(self) -> Tensor:
        """[N·shots, d]."""
        return torch.cat([self.draw.new[place][: self.shots] for place in self.used])

    @property
    def labels(self) -> Tensor:
        """Of the support [N·shots]."""
        return torch.arange(self.ways).repeat_interleave(self.shots)

    def mixed(self, old: Tensor, share: float, rng: torch.Generator) -> Tensor:
        """An unlabelled set [U, d] of new photos and of these old ones."""
        new = [self.draw.new[place][self.shots : n] for place, n in self.used.items()]
        return _mixture(torch.cat(new), old, share, rng)

    def answered(self, novel: Tensor, counts: Tensor) -> RehearsedLesson:
        """With prototypes [N, d] of so many photos [N]."""
        draw, used = self.draw, self.used.items()
        new = [draw.new[place][n:] for place, n in used]
        return RehearsedLesson(
            old_best=draw.old_best,
            old_right=draw.old_right,
            old_novel=draw.old @ novel.T,
            new_best=torch.cat([draw.new_best[place][n:] for place, n in used]),
            new_novel=torch.cat(new) @ novel.T,
            new_labels=torch.arange(len(new)).repeat_interleave(torch.tensor([*map(len, new)])),
            counts=counts,
            draw=draw.number,
        )


def _refined(weights: Tensor, lessons: Sequence[FoldLesson]) -> list[tuple[Tensor, Tensor]]:
    """What `_refined_alike` gives of each lesson, old classes having these weights [K, d]."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    shapes = [(lesson.shots, lesson.ways) for lesson in lessons]
    for shape in set(shapes):
        alike = [place for place, own in enumerate(shapes) if own == shape]
        refined = _refined_alike(weights, [lessons[place] for place in alike])
        found |= dict(zip(alike, zip(*refined, strict=True), strict=True))
    return [found[place] for place in range(len(lessons))]


def _refined_alike(weights: Tensor, lessons: Sequence[FoldLesson]) -> tuple[Tensor, Tensor]:
    """Prototypes [L, B, N, d] after Eqs. 3–4, and how many photos they are made of [L, B, N].

    Lessons have as many classes and shots as one another. There is one result for each bias in the
    pseudo-labels: a bias on new classes is as much less for the old ones.
    """
    config = Refinement(STEPS, ALPHA)
    u = pad_sequence([lesson.u for lesson in lessons], batch_first=True)
    base = base_evidence(direction_logits(u, weights, SHARPNESS), config)  # [L, U]
    photos = torch.tensor([len(lesson.u) for lesson in lessons])
    base[torch.arange(u.shape[1]) >= photos[:, None]] = math.inf  # padding is of no new class
    biases = SHARPNESS * torch.tensor(UNLABELLED_BIASES)[:, None]
    base = (base[:, None] - biases).flatten(0, 1)  # [L·B, U]
    support = torch.stack([lesson.support for lesson in lessons])
    labels = torch.stack([lesson.labels for lesson in lessons])
    support, labels, u = (x.repeat_interleave(len(biases), 0) for x in (support, labels, u))
    start = prototypes(support, labels, lessons[0].ways)
    novel = refine(start, support, labels, u, base[..., None], SHARPNESS, config)
    taken = pseudo_labels(direction_logits(u, novel, SHARPNESS), base, config)
    counts = lessons[0].shots + taken.sum(1)
    shape = len(lessons), len(biases), -1
    return novel.view(*shape, novel.shape[-1]), counts.view(shape)


def _mixture(new: Tensor, old: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """New and old photos, so many of the new ones that they are this share, or nearly."""
    wanted = min(len(old), max(len(new), 1))  # as many old ones as there are new ones at most
    some = min(len(new), max(1, round(wanted * share / (1 - share))))
    return torch.cat([_shuffled(new, rng)[:some], _shuffled(old, rng)[:wanted]])


def _curve(
    start: Callable[[Sequence[float]], list[float]], lessons: Sequence[RehearsedLesson]
) -> Tradeoff:
    """Lost and found at each shift from where counts begin, the mean over lessons."""
    scores = [one.scores(start(one.counts.tolist())) for one in lessons]
    lost, found = (np.stack(part) for part in zip(*scores, strict=True))
    error = lost.std(0) / math.sqrt(len(lost))
    best = np.concatenate([one.best_of_new(start(one.counts.tolist())) for one in lessons], axis=1)
    return Tradeoff(
        lost=_rounded(lost.mean(0)),
        error=_rounded(error),
        found=_rounded(found.mean(0)),
        lowest=_rounded(np.quantile(best, FALSE_REJECTS, axis=1).clip(-2, 2)),
    )


def _rounded(shares: Tensor | Shares) -> tuple[float, ...]:
    """Five digits are more than rehearsals tell, and keep the card readable."""
    return tuple(round(share, 5) for share in shares.tolist())


def _balanced(lessons: Sequence[RehearsedLesson]) -> float:
    """The bias with which old and new photos do best together."""
    scores = [one.scores([0.0] * len(one.counts)) for one in lessons]
    gains = np.mean([found - lost for lost, found in scores], axis=0)
    return round(BIASES[gains.argmax()].item(), 5)


def _mean_ways(lessons: Sequence[RehearsedLesson]) -> float:
    return sum(len(one.counts) for one in lessons) / len(lessons)


def _mean_share(lessons: Sequence[RehearsedLesson]) -> float:
    return sum(one.share for one in lessons) / len(lessons)


def _held_out(features: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which photos are held out, never all of a class: some neighbours [n] and some drawn [n]."""
    seen = directions(features - features.mean(0))
    series, drawn = (torch.zeros(len(labels), dtype=torch.bool) for _ in range(2))
    for own in _by_class(labels):
        wanted = min(round(HELD_OUT * len(own) + 0.25), len(own) - 1)
        if wanted < 1:
            continue
        order = _shuffled(own, rng)
        nearest = (seen[order] @ seen[order[0]]).topk(-(-wanted // 2)).indices
        series[order[nearest]] = True
        drawn[order[~series[order]][: wanted // 2]] = True
    return series, drawn


def _thinned(
    features: Tensor, labels: Tensor, n_classes: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """No more photos per class than rehearsals need."""
    if int(torch.bincount(labels, minlength=n_classes).max()) <= MOST_PHOTOS:
        return features, labels
    rows = torch.cat([_shuffled(own, rng)[:MOST_PHOTOS] for own in _by_class(labels)])
    return features[rows], labels[rows]


def _by_class(labels: Tensor) -> Iterator[Tensor]:
    """The places of each class."""
    for label in range(int(labels.max()) + 1):
        yield (labels == label).nonzero()[:, 0]


def _shuffled(rows: Tensor, rng: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=rng)]
