"""Which pictures are near each other or a class, and which are the same one.

In the transductive setting U holds the queries themselves. Nothing may rest on it, but a query that
is a vertex of a graph already is not its own neighbour there: a copy of a query in U is that query.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

ROUNDING = 1e-13  # squared distances below this share of the squared lengths are 0


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² of a [E, n, d] and b [E, m, d] in double precision → [E, n, m].

    Equal pictures are at 0 exactly.
    """
    lengths = a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None]
    distances = lengths - 2 * a @ b.transpose(1, 2)
    return torch.where(distances > ROUNDING * lengths, distances, torch.zeros_like(distances))


def class_logits(features: Tensor, centres: Tensor, sharpness: float) -> Tensor:
    """−λ‖x − w‖² of x [E, n, d] and w [E, N, d], less what is the same for all w → [E, N, n].

    Pictures come last, here and in what is made of it: long rows are what a processor likes.
    """
    half = centres.square().sum(-1, keepdim=True) / 2
    return 2 * sharpness * (centres @ features.transpose(1, 2) - half)


def copies(pictures: Tensor, others: Tensor) -> Tensor:
    """Where each picture [E, n, d] itself is among others [E, m, d], once at most → [E, n, m]."""
    found = pictures.new_zeros(*pictures.shape[:2], others.shape[1], dtype=torch.bool)
    if not others.shape[1]:
        return found
    place = squared_distances(pictures.double(), others.double()).argmin(-1, keepdim=True)
    nearest = others.gather(1, place.expand(-1, -1, others.shape[-1]))
    return found.scatter_(-1, place, (nearest == pictures).all(-1, keepdim=True))


def not_asked(unlabelled: Tensor, queries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """U [E, U, d] without the pictures that are queries [E, Q, d], as `equally_many` gives it."""
    return equally_many(unlabelled, ~copies(unlabelled, queries).any(-1))


def equally_many(pictures: Tensor, kept: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pictures [E, n, d] where they are kept [E, n]: episodes keep different numbers of them.

    Gives episodes [e] that keep equally many, and what they keep [e, n', d].
    """
    counts = kept.sum(1)
    for count in sorted(set(counts.tolist())):
        episodes = (counts == count).nonzero()[:, 0]
        rest = pictures[episodes][kept[episodes]]
        yield episodes, rest.view(len(episodes), count, pictures.shape[-1])


def first_of_all(pictures: Tensor, kept: Tensor) -> Tensor:
    """What is kept [E, n] of pictures [E, n, d], in their order, then rows of 0: [E, n', d]."""
    count = int(kept.sum(1).amax())
    order = (~kept).int().argsort(dim=1, stable=True)[:, :count, None]
    found = (pictures * kept[..., None]).gather(1, order.expand(-1, -1, pictures.shape[-1]))
    return found


def propagated(edges: Tensor, degrees: Tensor, values: Tensor, alpha: float) -> Tensor:
    """(I − αS)⁻¹ V of values V [E, n, m]; S = D^−½ A D^−½ of edges A [E, n, n], D their degrees."""
    scale = degrees.rsqrt()
    system = -alpha * scale[:, :, None] * edges * scale[:, None]
    system.diagonal(0, 1, 2).add_(1.0)
    found: Tensor = torch.cholesky_solve(values, torch.linalg.cholesky(system))
    return found
