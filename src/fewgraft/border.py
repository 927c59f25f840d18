"""Where new classes begin: the bias on their scores, and what it costs.

A prototype of few photos is far from every photo, its own ones too, so that its class needs a push;
one of many photos needs less. `fewgraft base` rehearses lessons with the classes it has
(app/learning/rehearsal.py); what it finds is a `Border` and goes with the model.
"""

from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Cosine = Annotated[float, Field(ge=-2, le=2)]


class Tradeoff(BaseModel):
    """What each shift of the biases does in rehearsed lessons, the mean over them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    lost: tuple[Share, ...]  # of the old photos: right without the new classes, wrong with them
    error: tuple[Share, ...]  # the standard error of that
    found: tuple[Share, ...]  # of the new photos
    lowest: tuple[Cosine, ...] = ()  # the best score that 95 % of the new photos reach


class Border(BaseModel):
    """Biases in cosines: γ times these go to the logits."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    counts: tuple[Annotated[int, Field(ge=1, le=10**6)], ...] = Field(min_length=1)  # photos
    biases: tuple[Cosine, ...]  # where old and new photos do best together, per count
    shifts: tuple[Cosine, ...] = Field(min_length=1, max_length=1000)  # added to all biases
    without_unlabelled: Tradeoff
    with_unlabelled: tuple[Tradeoff, ...] = Field(min_length=1)  # one per share
    shares: tuple[Share, ...]  # of the unlabelled set that counted for new classes
    ways: float = Field(gt=0, le=10**6)  # new classes per lesson
    lessons: int = Field(ge=1)
    mistakes: Share = 0.25  # of held-out photos of old classes, before any lesson
    unlabelled_bias: Cosine = 0.0  # on new classes in the pseudo-labels
    sharpness: float = Field(default=18.0, gt=0, le=1000)  # γ of the pseudo-labels

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.biases) != len(self.counts) or list(self.counts) != sorted(set(self.counts)):
            raise ValueError("counts and biases: one bias per count, in order")
        if len(self.shares) != len(self.with_unlabelled) or list(self.shares) != sorted(
            self.shares
        ):
            raise ValueError("shares and with_unlabelled: one curve per share, in order")
        curves = (self.without_unlabelled, *self.with_unlabelled)
        if any({len(c.lost), len(c.error), len(c.found)} != {len(self.shifts)} for c in curves):
            raise ValueError("curves need one number per shift")
        if {len(c.lowest) for c in curves} not in ({0}, {len(self.shifts)}):
            raise ValueError("lowest scores: one per shift in every curve, or none at all")
        return self

    def bias(self, counts: Sequence[float]) -> list[float]:
        """The bias of prototypes of so many photos."""
        return bias_between(counts, self.counts, self.biases)

    def curve(self, share: float | None) -> Tradeoff:
        """For a lesson in which this share of U counted for new classes; None: there was no U."""
        if share is None:
            return self.without_unlabelled
        columns = {
            name: tuple(
                float(np.interp(share, self.shares, column))
                for column in zip(*(getattr(c, name) for c in self.with_unlabelled), strict=True)
            )
            for name in ("lost", "error", "found", "lowest")
        }
        return Tradeoff(**columns)


def bias_between(
    asked: Sequence[float], counts: Sequence[int], biases: Sequence[float]
) -> list[float]:
    """The bias of prototypes of so many photos, between and beyond the counts of known biases."""
    places = np.log(np.maximum(asked, 1))
    found: list[float] = np.interp(places, np.log(counts), biases).tolist()
    return found
