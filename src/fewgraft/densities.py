"""Classes as places: densities around exemplars, beside directions.

With k(x, y) = exp(κ (x·y − 1)), and 0 for a picture and itself:

    D_k(x) = log Σ_i r_ik k(x, e_ik) / Σ_i r_ik
"""

import math
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fewgraft.prototypes import directions

ITSELF = 0.99999  # cosine from which two pictures are the same one
AT_A_TIME = 1024  # pictures whose nearness to all exemplars is in memory together
TINY = 1e-12
LARGEST_EXPONENT = 80.0  # whose power of e single precision has room for


class Density(BaseModel):
    """How densities count beside cosines: η D_k with sharpness κ."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    sharpness: float = Field(gt=0, le=1000)  # κ
    weight: float = Field(gt=0, le=1000)  # η


@dataclass(frozen=True)
class ClassPlaces:
    """Where the pictures of K classes lie."""

    exemplars: Tensor  # directions [K, m, d]; rows of zeros are none
    weights: Tensor  # r [K, m]; 0 where there is none
    density: Density

    def scores(self, features: Tensor) -> Tensor:
        """η D [n, K] of directions [n, d], in parts; in one when a graph is being exported."""
        parts = [features] if torch.compiler.is_compiling() else torch.split(features, AT_A_TIME)
        # Half precision leaves lengths that are not quite 1: a picture would not be itself.
        kappa, exemplars = self.density.sharpness, directions(self.exemplars.float())
        found = [densities(some, exemplars, self.weights.float(), kappa) for some in parts]
        return self.density.weight * torch.cat(found)


def nearness(features: Tensor, others: Tensor, sharpness: float) -> Tensor:
    """k(x, y) = exp(κ (x·y − 1)) of directions [..., n, d] and [..., m, d] → [..., n, m].

    0 for a picture and itself, so that no picture of U votes for what it was taken for.
    """
    cosines = features @ others.transpose(-2, -1)
    return (sharpness * (cosines - 1)).exp().masked_fill(cosines > ITSELF, 0.0)


def densities(features: Tensor, exemplars: Tensor, weights: Tensor, sharpness: float) -> Tensor:
    """D_k [n, K] of directions [n, d], from exemplars [K, m, d] with weights [K, m]."""
    shares = weights / weights.sum(1, keepdim=True).clamp(min=TINY)
    near = nearness(features, exemplars.flatten(0, 1), sharpness)
    return log_density((near.view(-1, *weights.shape) * shares).sum(-1), sharpness)


def log_density(mean: Tensor, sharpness: float) -> Tensor:
    """log(mean + e^−κ) of a mean nearness: e^−κ is that of a right angle.

    In units of e^−κ, as ONNX exporters take so small a number for 0 and drop it.
    """
    unit = min(sharpness, LARGEST_EXPONENT)
    return (mean * math.exp(unit) + math.exp(unit - sharpness)).log() - unit
