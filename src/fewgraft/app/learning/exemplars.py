"""Features of a few photos per class, which a classifier keeps: bounded in number and in bytes."""

import dataclasses

import torch
from torch import Tensor

from fewgraft.densities import ClassPlaces, Density
from fewgraft.methods.graft import Graft, Grafted
from fewgraft.model import MOST_EXEMPLARS

FEWEST_EXEMPLARS = 5  # per class: fewer tell no density
MOST_BYTES = 3_000_000  # of all exemplars of a base classifier, in half precision
# As it is registered, without its rule for the border: here that is rehearsed.
GRAFT = Graft(strangers=0.0, margin=0.0)
DENSITY = Density(sharpness=GRAFT.sharpness, weight=GRAFT.density)


def room_for(n_classes: int, width: int) -> int:
    """How many exemplars per class are kept; 0 where there is room for too few."""
    most = min(MOST_EXEMPLARS, MOST_BYTES // (2 * max(1, n_classes * width)))
    return most if most >= FEWEST_EXEMPLARS else 0


def exemplars_of(features: Tensor, labels: Tensor, n_classes: int, most: int) -> list[Tensor]:
    """Up to so many directions [m_k, d] of each class, by chance, of directions [n, d]."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for label in range(n_classes):
        own = (labels == label).nonzero()[:, 0]
        found.append(features[own[torch.randperm(len(own), generator=rng)[:most]]])
    return found


def places_of_classes(exemplars: list[Tensor], weights: list[Tensor], most: int) -> ClassPlaces:
    """In half precision, as they are stored, of the weightiest directions [m_k, d] per class."""
    width = exemplars[0].shape[1]
    kept = torch.zeros(len(exemplars), most, width, dtype=torch.half)
    shares = torch.zeros(len(exemplars), most, dtype=torch.half)
    for place, (own, weight) in enumerate(zip(exemplars, weights, strict=True)):
        best = weight.argsort(descending=True, stable=True)[:most]
        kept[place, : len(best)] = own[best].half()
        shares[place, : len(best)] = weight[best].half()
    return ClassPlaces(kept, shares, DENSITY)


def evenly(exemplars: list[Tensor]) -> ClassPlaces:
    """Of directions [m_k, d] per class that all count the same."""
    weights = [own.new_ones(len(own)) for own in exemplars]
    return places_of_classes(exemplars, weights, max(map(len, exemplars)))


def episode(grafted: Grafted, number: int) -> Grafted:
    """One of several episodes that were solved together."""
    own = slice(number, number + 1)
    return dataclasses.replace(
        grafted,
        novel=grafted.novel[own],
        pictures=grafted.pictures[own],
        weights=grafted.weights[own],
    )


def thinned(grafted: Grafted, most: int) -> Grafted:
    """With the weightiest pictures of each class alone, as they are kept once a lesson is over."""
    order = grafted.weights.argsort(dim=1, descending=True, stable=True)[:, :most]
    kept = torch.zeros_like(grafted.weights, dtype=torch.bool).scatter_(1, order, True)
    return dataclasses.replace(grafted, weights=grafted.weights * kept)


def novel_scores(grafted: Grafted, features: Tensor) -> Tensor:
    """ν [n, N] of directions [n, d] in the only episode."""
    return grafted.scores(features[None], grafted.nearness(features[None]))[0]
