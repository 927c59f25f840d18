"""Pictures of base/train that methods may look back at: which ones, and features of them."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewgraft.base_knowledge import EXEMPLARS, BaseKnowledge, knowledge_of
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices, KeyStream
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import feature_bank, mid_bank
from fewgraft.model import CosineModel

NOTHING: Indices = np.empty(0, np.int64)
KEPT = 20  # features of base/train per class, for methods that use them


def kept_features(
    model: CosineModel, store: ImageStore, root: Path | None = None, views: int = 1
) -> Tensor:
    """Directions [N_b, m, d] of the same few pictures of base/train per class; m is up to 20."""
    chosen = base_pictures(store)
    bank = feature_bank(model, store, np.unique(chosen), root, views)
    return bank[torch.from_numpy(chosen)]


def base_knowledge(
    model: CosineModel, store: ImageStore, root: Path | None = None
) -> BaseKnowledge:
    """From up to 60 pictures of base/train per class, without views."""
    chosen = some_of_each(_base_pools(store), EXEMPLARS)
    pictures = np.unique(np.concatenate(chosen))
    bank = feature_bank(model, store, pictures, root)
    mid = mid_bank(model, store, pictures, root)
    places = [torch.from_numpy(own) for own in chosen]
    return knowledge_of([bank[p] for p in places], [mid[p] for p in places] if mid else None)


def base_pictures(store: ImageStore) -> Indices:
    """The same few pictures of base/train per class [N_b, m]; m is up to 20."""
    return kept_pictures(_base_pools(store))


def _base_pools(store: ImageStore) -> list[Indices]:
    """Pictures of base/train of each base class."""
    pools = store.by_class(Part.BASE_TRAIN)
    return [pools.get(label, NOTHING) for label in range(len(store.base_classes))]


def kept_pictures(pools: list[Indices]) -> Indices:
    """[N_b, m] of the pictures of each base class; m is as many as the smallest class allows."""
    chosen = some_of_each(pools, min([KEPT, *map(len, pools)]))
    return np.stack(chosen) if chosen else np.empty((0, 0), np.int64)


def some_of_each(pools: list[Indices], count: int) -> list[Indices]:
    """Up to so many pictures of each base class, at random, the same in every run."""
    if pools and not min(map(len, pools)):
        raise FewgraftError(
            "this method uses features of base/train, and a base class has no pictures there",
            "Add some of every base class.",
        )
    return [
        pool[KeyStream(0, k).choose(len(pool), min(count, len(pool)))]
        for k, pool in enumerate(pools)
    ]
