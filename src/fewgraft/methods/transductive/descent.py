"""Descent with momentum, of which only some steps are computed.

Step t moves x by −v, where v ← m v + g(x_t). Once the first steps are over, gradients change slowly
and smoothly. Then a few looks at them are enough: between two looks they follow the polynomial
through the last ones, and all steps in between are sums of the same few gradients, with weights
that depend on m alone. At first every step is a look; later looks are up to `longest` steps apart.
What is wanted of every step, such as a mean of losses, follows the polynomial through looks nearby.

A look also shows how far the polynomial missed. Where gradients change too fast for long steps,
it misses by much, and the descent is to be followed step by step instead: `longest` = 1.

Adam's steps are no sums of gradients, but cheap beside a gradient: `adam` takes every one of them,
with gradients that follow the polynomial between looks.
"""

from collections.abc import Callable, Sequence
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
    looks = _looks(steps, longest)
    moves = [_moves(looks, i, momentum) for i in range(len(looks) - 1)]
    shares = np.mean([_around(looks, step) for step in range(steps)], axis=0)
    return Course(tuple(looks), torch.from_numpy(np.array(moves)), tuple(shares.tolist()))


def _looks(steps: int, longest: int) -> list[int]:
    looks = [0]
    while looks[-1] < steps - 1:
        length = min(max(looks[-1] // SETTLED, 1), longest)
        looks.append(min(looks[-1] + length, steps - 1))
    return looks


def _moves(looks: Sequence[int], i: int, momentum: float) -> Weights:
    """From look i to the next [3, 1+PAST]."""
    *between, ahead = np.pad(_gradients(looks, i), ((0, 0), (1, 0)))
    speed, moved = np.eye(1 + PAST)[0], np.zeros(1 + PAST)
    for gradient in between:
        speed = momentum * speed + gradient
        moved = moved + speed
    return np.stack([speed, moved, ahead])


def _gradients(looks: Sequence[int], i: int) -> Weights:
    """Of all steps from look i to the next, both included [L+1, PAST], by those of the last looks.

    The gradient of look a is in column a mod PAST.
    """
    past = range(max(0, i + 1 - PAST), i + 1)
    weights = np.zeros((looks[i + 1] - looks[i] + 1, PAST))
    for row, step in zip(weights, range(looks[i], looks[i + 1] + 1), strict=True):
        row[[a % PAST for a in past]] = _polynomial([looks[a] for a in past], step)
    return weights


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


# --- Adam ---

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
LENGTHS = (4, 1)  # steps at a time at most, and where that misses: longer ones swing at a minimum
MOST_MISSED = 3e-3  # of the largest number of the gradient


@cache
def _between(steps: int, longest: int) -> tuple[Tensor, ...]:
    """For each look the gradients until the next one [L+1, PAST]; for the last, its own."""
    looks = [*_looks(steps, longest), steps]
    return tuple(torch.from_numpy(_gradients(looks, i)) for i in range(len(looks) - 1))


def adam(
    gradient: Callable[[Tensor, Tensor], Tensor], start: Tensor, steps: int, lr: float
) -> Tensor:
    """What steps of Adam make of `start` [E, ...], each episode by itself.

    `gradient` takes values [e, ...] and the numbers [e] of their episodes.
    """
    e = torch.arange(len(start), device=start.device)
    values, missed = _adam(gradient, start, e, steps, lr, LENGTHS[0])
    for longest in LENGTHS[1:]:
        e = e[missed > MOST_MISSED]  # episodes that want shorter steps
        if not len(e):
            break
        values[e], missed = _adam(gradient, start[e], e, steps, lr, longest)
    return values


def _adam(
    gradient: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    e: Tensor,
    steps: int,
    lr: float,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Values [e, ...], and how far an expected gradient was off [e] at most."""
    values = start.flatten(1).clone()
    first, second = torch.zeros_like(values), torch.zeros_like(values)
    past = values.new_zeros(PAST, *values.shape)
    missed, expected, step = values.new_zeros(len(values)), None, 0
    for i, weights in enumerate(_between(steps, longest)):
        found = gradient(values.view_as(start), e).flatten(1)
        past[i % PAST] = found
        if expected is not None:
            off = (found - expected).abs_().amax(1) / found.abs().amax(1).clamp(min=EPSILON)
            missed = missed.maximum(off)
        *between, ahead = (weights.to(values) @ past.flatten(1)).view(-1, *values.shape)
        for slope in between:
            step += 1
            first.lerp_(slope, 1 - BETA_1)
            second.mul_(BETA_2).addcmul_(slope, slope, value=1 - BETA_2)
            scale = second.sqrt().div_((1 - BETA_2**step) ** 0.5).add_(EPSILON)
            values.addcdiv_(first, scale, value=-lr / (1 - BETA_1**step))
        expected = ahead if len(between) > 1 else None
    return values.view_as(start), missed
