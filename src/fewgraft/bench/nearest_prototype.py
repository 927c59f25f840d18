"""Base weights without training: class means, as for the novel classes."""

import torch
from torch import Tensor

from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.prototypes import prototypes


def base_weights(features: Tensor, store: ImageStore) -> Tensor:
    """W_b [N_b, d]: the class means over base/train, from features [n, d] of all pictures."""
    chosen = torch.from_numpy(store.indices(Part.BASE_TRAIN))
    labels = torch.from_numpy(store.labels).long()[chosen]
    return prototypes(features[chosen][None], labels[None], len(store.base_classes))[0]
