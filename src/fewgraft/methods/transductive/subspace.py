"""The subspace of a task: the few directions in which its pictures differ.

Lichtenstein et al., ECCV 2020, give the transposed features to FastICA and take its sources as a
basis. FastICA whitens and then only rotates; lengths, distances and clusters do not see a rotation.
So the basis is that of the whitening: the first right singular vectors of the features A [n, d]
after each *row* lost its mean over the d features. Their "PCA" is the same without that.
"""

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from fewgraft.methods.base import Task
from fewgraft.prototypes import directions, members_of

Kind = Literal["ica", "pca"]
Centring = Literal["joint", "apart"]
RANK = 1e-5  # a singular value below this share of the largest is 0


@dataclass(frozen=True)
class Subspace:
    """Where a task lives, and its support and U there."""

    mean: Tensor  # of U, or of support and U [E, 1, d]
    basis: Tensor  # [E, d, k]
    support: Tensor  # [E, S, k]
    unlabelled: Tensor  # [E, U, k]

    @classmethod
    def of(cls, task: Task, dimensions: int, kind: Kind, centring: Centring) -> Self:
        """From support and U, in double precision.

        Centring: "joint" subtracts the mean of support and U from all, as the authors do with a
        pile; "apart" that of the support from the support and that of U from the rest, as they do
        where U is the query set.
        """
        support, unlabelled = task.support.double(), task.unlabelled.double()
        if centring == "joint":
            mean = torch.cat([support, unlabelled], 1).mean(1, keepdim=True)
            own = mean
        else:
            mean, own = unlabelled.mean(1, keepdim=True), position_means(support, task)
        support, unlabelled = directions(support - own), directions(unlabelled - mean)
        basis = leading_directions(torch.cat([support, unlabelled], 1), dimensions, kind)
        return cls(mean, basis, directions(support @ basis), directions(unlabelled @ basis))

    def place(self, features: Tensor) -> Tensor:
        """Further pictures [E, n, d] → [E, n, k], of length 1."""
        return directions(directions(features.double() - self.mean) @ self.basis)


def leading_directions(features: Tensor, count: int, kind: Kind) -> Tensor:
    """[E, d, k] of features [E, n, d]; directions that the features do not have are 0."""
    rows = features - features.mean(-1, keepdim=True) if kind == "ica" else features
    wide = rows.shape[1] < rows.shape[2]
    gram = rows @ rows.transpose(1, 2) if wide else rows.transpose(1, 2) @ rows
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values[..., -count:].clamp(min=0), vectors[..., -count:]
    found = rows.transpose(1, 2) @ vectors if wide else vectors
    present = values > RANK**2 * values[..., -1:]
    basis: Tensor = directions(found.transpose(1, 2)).transpose(1, 2) * present[:, None]
    return basis


def position_means(support: Tensor, task: Task) -> Tensor:
    """What "apart" subtracts from each support picture [E, S, d].

    With equal shots it is the mean of the first pictures of all classes, of the second ones, and so
    on, as the authors have it; with unequal shots that of all.
    """
    members = members_of(task.labels, task.ways, support.dtype)  # [E, S, N]
    counts = members.sum(1)
    equal = (counts == counts[:, :1]).all(1)
    place = ((members.cumsum(1) - 1) * members).sum(-1) * equal[:, None]  # [E, S]
    together = (place[:, :, None] == place[:, None]).to(support.dtype)
    return together @ support / together.sum(-1, keepdim=True)
