"""Where should new classes begin? Base classes that pretend to be new tell (Algorithm 2's idea).

A third of the classes is set aside, three times over. A classifier is made of most photos of the
others; the rest of their photos are old ones that it has not seen. Then lessons are rehearsed: a
few of the classes set aside are taught, from 1 to 20 photos each, without an unlabelled set and
with one in which old and new photos are mixed. The answers to all photos that were not used say
what any bias on the new classes would have lost of the old ones and found of the new ones.

Photos come in series. Those that are held out of a class are neighbours of one another, because a
random draw would leave a twin of each in training.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.app.learning.foreign import auroc
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
from fewgraft.whitening import LARGEST_WHITENED, space_of

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
GAMMAS = torch.logspace(math.log10(2), 2, 60)  # 2 … 100
TOLERANCE = 0.02  # where two ways are compared


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

    def scores(self, biases: Tensor) -> tuple[Tensor, Tensor]:
        """Shares [B] of old photos lost and of new photos found with biases [B, N]."""
        taken = (self.old_novel + biases[:, None]).amax(-1) > self.old_best
        best = (self.new_novel + biases[:, None]).max(-1)
        found = (best.values > self.new_best) & (best.indices == self.new_labels)
        return (taken & self.old_right).double().mean(-1), found.double().mean(-1)


@dataclass
class Rehearsal:
    """All that was rehearsed in one space."""

    plain: dict[int, list[RehearsedLesson]] = field(default_factory=dict)  # by count
    # By the bias in the pseudo-labels and the share of new photos in U.
    unlabelled: dict[tuple[float, float], list[RehearsedLesson]] = field(default_factory=dict)
    cosines: list[Tensor] = field(default_factory=list)  # [n, K'] of held-out photos
    labels: list[Tensor] = field(default_factory=list)  # [n]
    foreign: list[Tensor] = field(default_factory=list)  # [n] best cosines of classes set aside

    @property
    def accuracy(self) -> float:
        """Of held-out photos of old classes, before any lesson."""
        right = [c.argmax(-1) == own for c, own in zip(self.cosines, self.labels, strict=True)]
        return torch.cat(right).double().mean().item()

    @property
    def best(self) -> Tensor:
        """Best cosines [n] of held-out photos."""
        return torch.cat([cosines.amax(-1) for cosines in self.cosines])

    @property
    def auroc(self) -> float:
        """How well the best cosine tells held-out photos from those of classes never taught."""
        return auroc(self.best, torch.cat(self.foreign))

    def gamma(self) -> float:
        """The γ under which held-out photos are most likely; never an end of what is tried."""
        pairs = list(zip(self.cosines, self.labels, strict=True))
        losses = [sum(cross_entropy(g * c, own).item() for c, own in pairs) for g in GAMMAS]
        return GAMMAS[1:-1][torch.tensor(losses)[1:-1].argmin()].item()

    def border(self) -> Border | None:
        """What was found; None if no lesson could be rehearsed."""
        counts = sorted(self.plain)
        if not counts or not self.unlabelled:
            return None
        biases = [_balanced(self.plain[count]) for count in counts]
        start = partial(bias_between, counts=counts, biases=biases)
        curves = {key: _curve(start, own) for key, own in self.unlabelled.items()}
        chosen = max(
            UNLABELLED_BIASES, key=lambda bias: sum(value(curves[bias, s]) for s in SHARES)
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
    done = Rehearsal()
    for aside in torch.randperm(n_classes, generator=rng).chunk(FOLDS):
        fold = _Fold(features, labels, n_classes, aside, shrinkage, rng)
        done.cosines.append(fold.cosines)
        done.labels.append(fold.old_labels)
        done.foreign.append(torch.cat([(own @ fold.weights.T).amax(-1) for own in fold.aside]))
        with one_thread():
            for _ in range(LESSONS):
                _rehearse_lessons(fold, done, rng)
        yield done


def can_rehearse(features: Tensor, labels: Tensor, n_classes: int) -> bool:
    """Whether there are enough classes with enough photos, and features that can be whitened."""
    if features.shape[1] > LARGEST_WHITENED:
        return False
    photos = torch.bincount(labels, minlength=n_classes)
    return int((photos >= FEWEST_PHOTOS).sum()) >= FEWEST_CLASSES


class _Fold:
    """A classifier of most classes and most of their photos, and what it has not seen."""

    def __init__(
        self,
        features: Tensor,
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
        old, own = features[mine], place[labels[mine]]
        held = _held_out(old, own, rng)
        kept = int(stays.sum())
        space = space_of(old[~held], own[~held], kept, shrinkage=shrinkage)
        self.weights = class_weights(space(old[~held]), own[~held], kept)
        self.old, self.old_labels = space(old[held]), own[held]
        self.cosines = self.old @ self.weights.T
        self.aside = [space(features[labels == label]) for label in aside.tolist()]


def _rehearse_lessons(fold: _Fold, done: Rehearsal, rng: torch.Generator) -> None:
    """One draw of new classes, taught from all numbers of photos, without U and with it."""
    order = [int(place) for place in torch.randperm(len(fold.aside), generator=rng)[:WAYS]]
    new = [_shuffled(fold.aside[place], rng) for place in order]
    places = torch.randperm(len(fold.old), generator=rng)
    unlabelled, asked = places.tensor_split(2)
    asked = asked[:MOST_ASKED]
    for count in COUNTS:
        enough = [own for own in new if len(own) > count]
        if enough:
            examples = _Examples.of(enough, count)
            novel = prototypes(examples.support[None], examples.labels[None], len(enough))[0]
            counts = torch.full((len(enough),), float(count))
            rest = [own[count:] for own in enough]
            answered = _answered(fold, asked, novel, rest, counts)
            done.plain.setdefault(count, []).append(answered)
    for shots in SHOTS:
        enough = [own for own in new if len(own) > shots + 1]
        if not enough:
            continue
        examples = _Examples.of(enough, shots)
        mixed = [own[shots : shots + _half(len(own) - shots)] for own in enough]
        rest = [own[shots + _half(len(own) - shots) :] for own in enough]
        for share in SHARES:
            u = _mixture(torch.cat(mixed), fold.old[unlabelled], share, rng)
            for bias, novel, counts in zip(
                UNLABELLED_BIASES, *_refined(fold, examples, u), strict=True
            ):
                counted = (counts.sum() - len(examples.labels)).item() / len(u)
                answered = _answered(fold, asked, novel, rest, counts)
                answered = replace(answered, share=min(max(counted, 0.0), 1.0))
                done.unlabelled.setdefault((bias, share), []).append(answered)


@dataclass(frozen=True)
class _Examples:
    support: Tensor  # [S, d]
    labels: Tensor  # [S]
    shots: int
    ways: int

    @classmethod
    def of(cls, new: Sequence[Tensor], shots: int) -> "_Examples":
        labels = torch.arange(len(new)).repeat_interleave(shots)
        return cls(torch.cat([own[:shots] for own in new]), labels, shots, len(new))


def _refined(fold: _Fold, examples: _Examples, u: Tensor) -> tuple[Tensor, Tensor]:
    """Prototypes [B, N, d] after Eqs. 3–4, and how many photos they are made of [B, N].

    One for each bias in the pseudo-labels, all at once: a bias on new classes is as much less for
    the old ones.
    """
    config = Refinement(STEPS, ALPHA)
    biases = SHARPNESS * torch.tensor(UNLABELLED_BIASES)[:, None, None]
    support, labels, u = (
        given.expand(len(biases), *given.shape) for given in (examples.support, examples.labels, u)
    )
    base = direction_logits(u[:1], fold.weights, SHARPNESS) - biases
    start = prototypes(support, labels, examples.ways)
    novel = refine(start, support, labels, u, base, SHARPNESS, config)
    logits = direction_logits(u, novel, SHARPNESS)
    weights = pseudo_labels(logits, base_evidence(base, config), config)
    return novel, examples.shots + weights.sum(1)


def _answered(
    fold: _Fold, asked: Tensor, novel: Tensor, rest: Sequence[Tensor], counts: Tensor
) -> RehearsedLesson:
    new = torch.cat(list(rest))
    best = fold.cosines[asked].max(-1)
    return RehearsedLesson(
        old_best=best.values,
        old_right=best.indices == fold.old_labels[asked],
        old_novel=fold.old[asked] @ novel.T,
        new_best=(new @ fold.weights.T).amax(-1),
        new_novel=new @ novel.T,
        new_labels=torch.cat([torch.full((len(own),), k) for k, own in enumerate(rest)]),
        counts=counts,
    )


def _mixture(new: Tensor, old: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """New and old photos, so many of the new ones that they are this share, or nearly."""
    wanted = min(len(old), max(len(new), 1))  # as many old ones as there are new ones at most
    some = min(len(new), max(1, round(wanted * share / (1 - share))))
    return torch.cat([_shuffled(new, rng)[:some], _shuffled(old, rng)[:wanted]])


def _curve(
    start: Callable[[Sequence[float]], list[float]], lessons: Iterable[RehearsedLesson]
) -> Tradeoff:
    """Lost and found at each shift from where counts begin, the mean over lessons."""
    scores = [
        one.scores(torch.tensor(start(one.counts.tolist())) + BIASES[:, None]) for one in lessons
    ]
    lost, found = (torch.stack(part) for part in zip(*scores, strict=True))
    error = lost.std(0, correction=0) / math.sqrt(len(lost))
    return Tradeoff(
        lost=_rounded(lost.mean(0)), error=_rounded(error), found=_rounded(found.mean(0))
    )


def _rounded(shares: Tensor) -> tuple[float, ...]:
    """Five digits are more than rehearsals tell, and keep the card readable."""
    return tuple(round(share, 5) for share in shares.tolist())


def _balanced(lessons: Sequence[RehearsedLesson]) -> float:
    """The bias with which old and new photos do best together."""
    gains = [
        found - lost
        for lost, found in (
            one.scores(BIASES[:, None].expand(-1, len(one.counts))) for one in lessons
        )
    ]
    return round(BIASES[torch.stack(gains).mean(0).argmax()].item(), 5)


def _mean_ways(lessons: Sequence[RehearsedLesson]) -> float:
    return sum(len(one.counts) for one in lessons) / len(lessons)


def _mean_share(lessons: Sequence[RehearsedLesson]) -> float:
    return sum(one.share for one in lessons) / len(lessons)


def _held_out(features: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
    """Which photos [n] are held out: of each class one and its nearest neighbours, never all."""
    seen = directions(features - features.mean(0))
    held = torch.zeros(len(labels), dtype=torch.bool)
    for own in _by_class(labels):
        wanted = min(round(HELD_OUT * len(own) + 0.25), len(own) - 1)
        if wanted:
            first = own[torch.randint(len(own), (1,), generator=rng)]
            held[own[(seen[own] @ seen[first[0]]).topk(wanted).indices]] = True
    return held


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


def _half(photos: int) -> int:
    return min(UNLABELLED, photos // 2)
