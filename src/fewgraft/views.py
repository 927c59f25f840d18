"""Fixed views of a picture, whose features are averaged: a little shifted, or a little turned.

A view goes half as far as the pictures that the network was trained on went at most.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fewgraft.augment import Augmentation, reflected
from fewgraft.errors import FewgraftError

# Which way each view goes, down and right; a turn goes by the first of the two.
WAYS = ((0, 0), (-1, -1), (1, 1), (-1, 1), (1, -1))
COUNTS = {"shift": (1, 3, 5), "turn": (1, 3)}  # views that may be averaged


@dataclass(frozen=True)
class FixedView:
    """A picture shifted by whole pixels, the border mirrored, and turned by degrees about 0."""

    down: int = 0
    right: int = 0
    turn: float = 0.0

    def __call__(self, pixels: Tensor) -> Tensor:
        """uint8 [n, h, w, c] → uint8 [n, h, w, c]."""
        if self.down or self.right:
            pixels = _shifted(pixels, self.down, self.right)
        return _turned(pixels, math.radians(self.turn)) if self.turn else pixels


def fixed_views(trained_with: Augmentation, count: int) -> tuple[FixedView, ...]:
    """So many views, the picture as it is first, by what a network was trained with."""
    if count == 1:  # whatever it was trained with
        return (FixedView(),)
    turn, shift = trained_with.rotate / 2, trained_with.crop // 2
    kind = "turn" if turn else "shift"
    if not turn and not shift:
        raise FewgraftError(
            "this network was trained on pictures that were neither shifted nor turned",
            "Leave the number of views out.",
        )
    if count not in COUNTS[kind]:
        raise FewgraftError(
            f"there are no {count} views of a picture by {kind}ing it",
            f"Choose one of {', '.join(map(str, COUNTS[kind]))}.",
        )
    ways = WAYS[:count]
    if turn:
        return tuple(FixedView(turn=down * turn) for down, _ in ways)
    return tuple(FixedView(down * shift, right * shift) for down, right in ways)


def _shifted(pixels: Tensor, down: int, right: int) -> Tensor:
    rows, columns = (
        reflected(torch.arange(size) + by, size)
        for size, by in zip(pixels.shape[1:3], (down, right), strict=True)
    )
    return pixels[:, rows[:, None], columns]


def _turned(pixels: Tensor, angle: float) -> Tensor:
    """Black where nothing was."""
    pictures = pixels.permute(0, 3, 1, 2).float()
    cosine, sine = math.cos(angle), math.sin(angle)
    rows = torch.tensor([[cosine, -sine, 0], [sine, cosine, 0]]).expand(len(pictures), 2, 3)
    grid = affine_grid(rows, list(pictures.shape), align_corners=False)
    turned = grid_sample(pictures, grid, align_corners=False)
    return turned.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
