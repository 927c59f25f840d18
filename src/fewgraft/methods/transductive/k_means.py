"""k-means of many episodes at once: several starts each, the best of them.

Starts are drawn by k-means++ (Arthur and Vassilvitskii, SODA 2007) with the numbers of the episode.
Points are drawn in the order of their distance from the mean of all, so that the order in which
they come does not matter. An episode's starts are done when no point changes its cluster.
"""

import numpy as np
import torch
from torch import Tensor

from fewgraft.draws import KeyStream
from fewgraft.methods.transductive.nearness import squared_distances

STREAMS = 0x6B6D6561  # a seed of its own
MOST_STEPS = 300


def k_means(points: Tensor, count: int, numbers: Tensor, starts: int) -> Tensor:
    """Centres [E, count, k] of points [E, n, k], n ≥ count, in episodes of these numbers [E]."""
    first = plus_plus(points, uniform(numbers, starts, count))  # [E, R, count, k]
    episodes, _, n_centres, width = first.shape
    many = points.repeat_interleave(starts, 0)
    found = lloyd(many, first.view(-1, n_centres, width))
    inertia = squared_distances(many, found).amin(-1).sum(-1).view(episodes, starts)
    best = inertia.argmin(1)
    return found.view_as(first)[torch.arange(episodes, device=points.device), best]


def uniform(numbers: Tensor, starts: int, count: int) -> Tensor:
    """Numbers between 0 and 1 [E, starts, count], the same for an episode for ever."""
    keys = np.stack([KeyStream(STREAMS, n).keys(starts * count) for n in numbers.tolist()])
    found = torch.from_numpy((keys >> np.uint64(11)).astype(np.float64) / 2.0**53)
    return found.view(len(numbers), starts, count).to(numbers.device)


def plus_plus(points: Tensor, draws: Tensor) -> Tensor:
    """First centres [E, R, count, k]: each a point, by its squared distance from those before."""
    far = (points - points.mean(1, keepdim=True)).square().sum(-1)
    ordered = points.gather(1, far.argsort(1)[..., None].expand_as(points))  # [E, n, k]
    least = torch.ones(*draws.shape[:2], points.shape[1], dtype=points.dtype, device=points.device)
    chosen: list[Tensor] = []
    for draw in draws.unbind(-1):  # [E, R]
        least = torch.where(least.sum(-1, keepdim=True) > 0, least, torch.ones_like(least))
        edges = least.cumsum(-1)
        place = torch.searchsorted(edges, (draw[..., None] * edges[..., -1:]), right=True)
        place = place.clamp(max=points.shape[1] - 1)  # [E, R, 1]
        centre = ordered.gather(1, place.expand(-1, -1, points.shape[-1]))  # [E, R, k]
        distances = squared_distances(centre, ordered)  # [E, R, n]
        least = distances if not chosen else torch.minimum(least, distances)
        chosen.append(centre)
    return torch.stack(chosen, 2)


def lloyd(points: Tensor, centres: Tensor) -> Tensor:
    """Centres [m, count, k] of points [m, n, k], each the mean of the points nearest to it.

    One that no point is nearest to stays where it is.
    """
    centres, moving = centres.clone(), torch.arange(len(points), device=points.device)
    before = torch.full(points.shape[:2], -1, device=points.device)
    for _ in range(MOST_STEPS):
        nearest = squared_distances(points[moving], centres[moving]).argmin(-1)
        changed = (nearest != before[moving]).any(1)
        moving, nearest = moving[changed], nearest[changed]
        if not len(moving):
            break
        before[moving] = nearest
        members = torch.nn.functional.one_hot(nearest, centres.shape[1]).to(points.dtype)
        size = members.sum(1)[..., None]
        means = members.transpose(1, 2) @ points[moving] / size.clamp(min=1)
        centres[moving] = torch.where(size > 0, means, centres[moving])
    return centres
