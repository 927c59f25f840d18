"""How far new classes are pushed or held back, so that old and new ones do best together.

What is known of that comes from two sides. The model's `Border` holds what rehearsed lessons lost
and found. Check photos of old classes and left-out examples of new ones say what this lesson does.
Each is weighted by its number of photos, and rehearsals count as much as a few photos.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fewgraft.app.learning.lesson import Learnt, LeftOut
from fewgraft.border import Border, Tradeoff

REHEARSED_OLD = 200  # check photos that rehearsals count as much as
REHEARSED_NEW = 20  # left-out examples
SHIFTS = tuple(step / 80 for step in range(-60, 33))  # cosines, where nothing was rehearsed
MISTAKES_PER_LOSS = 10  # one photo more may be lost for so many that are mistaken anyway
TOLERANCES = (0.003, 0.02)  # the least and the most, unless another is asked for
UNREHEARSED_TOLERANCE = 0.015


def usual_tolerance(border: Border | None) -> float:
    """Share of old photos that may be lost where nobody says how many.

    A classifier that is nearly always right may lose hardly any; where it is often wrong, as many
    more are worth what is found for them.
    """
    if border is None:
        return UNREHEARSED_TOLERANCE
    least, most = TOLERANCES
    return min(max(round(border.mistakes / MISTAKES_PER_LOSS, 4), least), most)


@dataclass(frozen=True)
class Seen:
    """Photos with known labels, scored by a lesson without any bias on new classes."""

    learnt: Learnt
    logits: Tensor  # [n, K'] of check photos of old classes
    labels: Tensor  # [n]
    left_out: LeftOut


@dataclass(frozen=True)
class Bordered:
    """What was chosen."""

    bias: Tensor  # [N] on the logits of the taught classes
    left_out: Tensor  # [n, K'] logits of left-out examples with such a bias
    lowest: float | None  # the best logit that 95 % of rehearsed new photos reached; None: none was


@dataclass(frozen=True)
class Bordering:
    """How the bias is chosen."""

    border: Border | None
    tolerance: float  # share of the old photos that may be lost

    def of(self, seen: Seen) -> Bordered:
        """The biases of a lesson."""
        learnt = seen.learnt
        shift = self._shift(seen)
        gamma, is_new = learnt.known.gamma, learnt.is_new[learnt.taught_places]
        bias = gamma * (self._start(learnt.counts) + shift) * is_new
        each = gamma * (self._start(seen.left_out.counts) + shift) * is_new
        return Bordered(
            bias, _with_bias(seen.left_out.logits, learnt, each), self._lowest(learnt, shift)
        )

    def _lowest(self, learnt: Learnt, shift: float) -> float | None:
        curve = self._curve(learnt)
        if self.border is None or curve is None or not curve.lowest:
            return None
        return learnt.known.gamma * float(np.interp(shift, self.border.shifts, curve.lowest))

    def _start(self, counts: Tensor) -> Tensor:
        """The rehearsed biases of prototypes of so many photos, in cosines, in the same shape."""
        if self.border is None:
            return torch.zeros_like(counts)
        return torch.tensor(self.border.bias(counts.flatten().tolist())).view_as(counts)

    def _shift(self, seen: Seen) -> float:
        """The shift with the best balance of what is lost and found, within the tolerance."""
        learnt = seen.learnt
        if not learnt.is_new.any() or (self.border is None and not len(seen.logits)):
            return 0.0
        shifts = torch.tensor(self.border.shifts if self.border else SHIFTS)
        lost, error = self._lost(seen, shifts)
        found = self._found(seen, shifts)
        allowed = lost - error <= self.tolerance
        if not allowed.any():
            return shifts[lost.argmin()].item()
        if found is None:  # nothing speaks for a push
            held = allowed & (shifts <= 0)
            return shifts[held].max().item() if held.any() else shifts[0].item()
        gain = torch.where(allowed, found - lost, -math.inf)
        return shifts[gain.argmax()].item()

    def _lost(self, seen: Seen, shifts: Tensor) -> tuple[Tensor, Tensor]:
        """Share of old photos lost at each shift [B], and its standard error [B]."""
        learnt, photos = seen.learnt, len(seen.logits)
        prior = REHEARSED_OLD if self.border else 0
        counted = torch.zeros(len(shifts), dtype=torch.double)
        if photos:
            old = seen.logits[:, ~learnt.is_new].max(-1)
            new = seen.logits[:, learnt.is_new]
            right = old.indices == seen.labels
            start = self._start(learnt.counts)[learnt.is_new[learnt.taught_places]]
            for number, shift in enumerate(shifts):  # one at a time: both sides may be many
                push = learnt.known.gamma * (start + shift)
                counted[number] = (((new + push).amax(-1) > old.values) & right).sum()
        curve = self._curve(learnt)
        if curve and self.border:
            more = int(learnt.is_new.sum()) / self.border.ways  # more classes take more
            counted = counted + prior * more * torch.tensor(curve.lost, dtype=torch.double)
        if curve and not photos:
            return counted / prior, torch.tensor(curve.error, dtype=torch.double)
        return counted / (photos + prior), counted.sqrt() / (photos + prior)

    def _found(self, seen: Seen, shifts: Tensor) -> Tensor | None:
        """Share of new photos found at each shift [B]; None if nothing tells."""
        learnt, left_out = seen.learnt, seen.left_out
        prior = REHEARSED_NEW if self.border else 0
        counted = torch.zeros(len(shifts), dtype=torch.double)
        if left_out.places:
            truth = learnt.taught_places[learnt.lesson.labels[left_out.places]]
            is_new = learnt.is_new[learnt.taught_places]
            start = self._start(left_out.counts)
            for number, shift in enumerate(shifts):
                push = learnt.known.gamma * (start + shift) * is_new
                answers = _with_bias(left_out.logits, learnt, push).argmax(-1)
                counted[number] = (answers == truth).sum()
        curve = self._curve(learnt)
        if curve:
            counted = counted + prior * torch.tensor(curve.found, dtype=torch.double)
        examples = len(left_out.places) + prior
        return counted / examples if examples else None

    def _curve(self, learnt: Learnt) -> Tradeoff | None:
        """What rehearsed lessons lost and found with as much of an unlabelled set."""
        return self.border.curve(learnt.unlabelled_share) if self.border else None


def _with_bias(logits: Tensor, learnt: Learnt, bias: Tensor) -> Tensor:
    """Logits [n, K'] with a bias [N] or [n, N] on the taught classes."""
    if not len(logits):
        return logits
    whole = torch.zeros_like(logits)
    whole[:, learnt.taught_places] = bias.expand(len(logits), -1).to(whole.dtype)
    return logits + whole
