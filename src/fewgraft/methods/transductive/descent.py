"""Descent with momentum, of which only some steps are computed.

Step t moves x by −v, where v ← m v + g(x_t). Once the first steps are over, gradients change slowly
and smoothly. Then a few looks at them are enough: between two looks they follow the polynomial
through the last ones, and all steps in between are sums of the same few gradients, with weights
that depend on m alone. At first every step is a look; later looks are up to `longest` steps apart.
What is wanted of every step, such as a mean of losses, follows the polynomial through looks nearby.

A look also shows how far the polynomial missed. Where gradients change too fast for long steps,
it misses by much, and the descent is to be followed step by step instead: `longest` = 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Weights = NDArray[np.float64]
PAST = 4  # looks that a polynomial goes through
SETTLED = 25  # a step is this part of the way so far


@dataclass(frozen=True)
class Course:
    """Which steps of a descent are computed, and how they lead to each other.

    Attributes:
        looks: Steps whose gradients are computed; the last step is one of them.
        moves: For each look [3, 1+PAST] that turns v and the last gradients into what is true at
            the next one: v, how far x has moved, and the gradient as it is expected. The gradient
            of look i is in column 1 + i mod PAST.
        shares: Weights of the looks in a mean over all steps.
    """

    looks: tuple[int, ...]
    moves: Tensor
    shares: tuple[float, ...]


@cache
def course(steps: int, momentum: float, longest: int) -> Course:
    """Of a descent of so many steps."""
    looks = [0]
    while looks[-1] < steps - 1:
        length = min(max(looks[-1] // SETTLED, 1), longest)
        looks.append(min(looks[-1] + length, steps - 1))
    moves = [_moves(looks, i, momentum) for i in range(len(looks) - 1)]
    shares = np.mean([_around(looks, step) for step in range(steps)], axis=0)
    return Course(tuple(looks), torch.from_numpy(np.array(moves)), tuple(shares.tolist()))


def _moves(looks: Sequence[int], i: int, momentum: float) -> Weights:
    """From look i to the next [3, 1+PAST]."""
    past = range(max(0, i + 1 - PAST), i + 1)

    def gradient(step: int) -> Weights:
        weights = np.zeros(1 + PAST)
        weights[[1 + a % PAST for a in past]] = _polynomial([looks[a] for a in past], step)
        return weights

    speed, moved = np.eye(1 + PAST)[0], np.zeros(1 + PAST)
    for step in range(looks[i], looks[i + 1]):
        speed = momentum * speed + gradient(step)
        moved = moved + speed
    return np.stack([speed, moved, gradient(looks[i + 1])])


def _around(looks: Sequence[int], step: int) -> Weights:
    """Weights of all looks by which a step follows from those before and after it."""
    first = int(np.searchsorted(looks, step)) - PAST // 2
    first = max(0, min(first, len(looks) - PAST))
    weights = np.zeros(len(looks))
    weights[first : first + PAST] = _polynomial(looks[first : first + PAST], step)
    return weights


def _polynomial(places: Sequence[int], at: int) -> list[float]:
    """Lagrange's weights of values at some places, for the value at another."""
    return [prod((at - b) / (a - b) for b in places if b != a) for a in places]
