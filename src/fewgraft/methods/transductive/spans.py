"""Singular vectors of the features of an episode, from the smaller of both Gram matrices."""

import torch
from torch import Tensor

FLAT = 1e-12  # a squared singular value, as a part of the largest, that is none


def principal_axes(features: Tensor, count: int) -> Tensor:
    """The first right singular vectors of features [E, n, d], the last one first → [E, d, count].

    There are as many as n and d allow. A vector along which there is nothing is 0.
    """
    enough = features.shape[1] >= features.shape[2]
    turned = features.transpose(1, 2)
    squares, vectors = torch.linalg.eigh(turned @ features if enough else features @ turned)
    squares, vectors = squares[:, None, -count:], vectors[..., -count:]
    there = squares > FLAT * squares.amax(2, keepdim=True)
    axes = vectors if enough else turned @ vectors * squares.where(there, 1.0).rsqrt()
    found: Tensor = axes * there
    return found


def spanning(features: Tensor) -> Tensor:
    """An orthonormal basis of all features [E, n, d] → [E, d, min(n, d)], filled up with zeros."""
    _, n, d = features.shape
    if n >= d:
        return torch.eye(d, dtype=features.dtype, device=features.device).expand(
            len(features), d, d
        )
    return principal_axes(features, n)
