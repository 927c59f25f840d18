"""Class weights over fixed features: class means, moved to where the loss of Eq. 1 is least.

Means alone know nothing of a class's neighbours. The loss is the cross-entropy of γ·cos(f, w_k)
plus a penalty on what is moved, so that few photos move little.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.prototypes import cosine_logits, directions
from fewgraft.whitening import class_means

SHARPNESS = 15.0  # γ while weights move; nothing hangs on it between 10 and 20
PENALTY = 1e-2  # on the squared distance to the means
STEPS = 12  # of L-BFGS, each a few products: the rest of the way gains nothing
MOST_PRODUCTS = 10**10  # photos × classes × features of one evaluation of the loss
FEWEST_PHOTOS = 3  # per class


def class_weights(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Directions [n_classes, d] from directions [n, d] with labels [n]."""
    means = directions(class_means(features, labels, n_classes))
    every = -(-len(features) * means.numel() // MOST_PRODUCTS)
    some, own = features[::every], labels[::every]
    if len(some) < FEWEST_PHOTOS * n_classes:
        return means
    return _moved(means, some, own)


def _moved(means: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    way = torch.zeros_like(means, requires_grad=True)
    optimiser = torch.optim.LBFGS([way], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = cosine_logits(features, means + way, SHARPNESS)
        total = cross_entropy(logits, labels) + PENALTY * way.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    with torch.enable_grad():
        optimiser.step(loss)  # type: ignore[no-untyped-call]
    return directions(means + way.detach())
