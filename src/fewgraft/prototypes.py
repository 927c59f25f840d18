"""Prototypes and the cosine classifier: the paper's Eqs. 1 and 2, batched over episodes."""

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot


def cosine_logits(features: Tensor, weights: Tensor, gamma: float | Tensor = 1.0) -> Tensor:
    """γ · cos(f, w_k), the exponents of Eq. 1.

    features [..., Q, d], weights [..., K, d] → [..., Q, K]; leading dimensions broadcast.
    """
    return gamma * normalize(features, dim=-1) @ normalize(weights, dim=-1).transpose(-2, -1)


def prototypes(
    features: Tensor, labels: Tensor, n_classes: int, *, normalise_first: bool = True
) -> Tensor:
    """Class means of the support set (Eq. 2), L2-normalised.

    features [E, S, d] with labels [E, S] in 0 … n_classes−1 → [E, n_classes, d]. Classes may have
    different numbers of supports. `normalise_first` averages directions instead of features, so
    that a support picture with a large feature does not outweigh the others.
    """
    if normalise_first:
        features = normalize(features, dim=-1)
    members = one_hot(labels, n_classes).to(features.dtype)  # [E, S, n_classes]
    counts = members.sum(1)  # [E, n_classes]
    if (counts == 0).any():
        raise ValueError("every class needs at least one support picture")
    means = members.transpose(1, 2) @ features / counts[..., None]
    return normalize(means, dim=-1)


def join_weights(base: Tensor, novel: Tensor) -> Tensor:
    """W = [W_b, W_n]: base [N_b, d] and novel [E, N, d] → [E, N_b+N, d]."""
    return torch.cat([base.expand(len(novel), *base.shape), novel], dim=1)
