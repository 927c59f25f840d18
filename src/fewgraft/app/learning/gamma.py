"""γ, the scale of cosines in Eq. 1: the one under which left-out photos are most likely."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

GAMMAS = torch.logspace(math.log10(2), 3, 90)  # 2 … 1000


def best_gamma(*parts: tuple[Tensor, Tensor]) -> float:
    """The likeliest γ for cosines [n, K] with labels [n], in parts of different classes."""
    losses = [sum(cross_entropy(gamma * c, own).item() for c, own in parts) for gamma in GAMMAS]
    return GAMMAS[torch.tensor(losses).argmin()].item()


def notes_of_gamma(gamma: float) -> Iterator[str]:
    """A warning where the likeliest γ may lie beyond those that are tried."""
    if gamma == GAMMAS[-1].item():
        yield (
            f"left-out photos are told apart so easily that scores could not be scaled (γ = "
            f"{gamma:.0f}, the largest that is tried): probabilities may be too modest"
        )
    if gamma == GAMMAS[0].item():
        yield (
            f"left-out photos can hardly be told apart (γ = {gamma:.0f}, the smallest that is "
            "tried): probabilities may be too bold"
        )
