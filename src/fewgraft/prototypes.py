"""The paper's Eqs. 1–4: cosine classifier, prototypes, refinement. Batched over episodes.

One differentiable function each, used by meta-training and by testing alike. E episodes, S support,
U unlabelled and Q query pictures, N novel and N_b base classes, d features.

Features are directions, that is vectors of length 1, from where they come in: the bank of a data
set, a network that moves, the photos of the tool. Only `cosine_logits` takes features as a network
gives them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

MINUS_INFINITY = float("-inf")
TINY = 1e-12


def directions(features: Tensor) -> Tensor:
    """f / ‖f‖ of features [..., d]; a feature of length 0 has no direction and stays 0."""
    return normalize(features, dim=-1, eps=TINY)


def cosine_logits(features: Tensor, weights: Tensor, gamma: float | Tensor = 1.0) -> Tensor:
    """γ · cos(f, w_k), the exponents of Eq. 1, for features of any length.

    features [..., Q, d], weights [..., K, d] → [..., Q, K]; leading dimensions broadcast. The few
    products are divided by the length of f, not the many features.
    """
    length: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return direction_logits(features, weights, gamma) * (1 / length.clamp(min=TINY))


def direction_logits(features: Tensor, weights: Tensor, gamma: float | Tensor = 1.0) -> Tensor:
    """The same for features that are directions: γ · f · w_k / ‖w_k‖."""
    return features @ (gamma * directions(weights)).transpose(-2, -1)


def prototypes(
    features: Tensor, labels: Tensor, n_classes: int, *, normalise: bool = True
) -> Tensor:
    """Class means of the support set, Eq. 2, as directions unless `normalise` is off.

    features [E, S, d] with labels [E, S] in 0 … n_classes−1 → [E, n_classes, d]. Classes may have
    different numbers of supports.
    """
    total, count = support_sums(features, labels, n_classes)
    mean = total / count[..., None]  # Eq. 2
    return directions(mean) if normalise else mean


@dataclass(frozen=True)
class Refinement:
    """How prototypes are refined with U (Eqs. 3–4); the defaults are the paper's in training.

    Args:
        steps: How often Eqs. 3–4 are applied (n_steps).
        alpha: How far a prototype moves to its new estimate (α): 1 is all the way.
        temperature: Of the pseudo-labels; not in the paper, 1 leaves them as they are.
        novel_bias: On the novel logits of U; not in the paper, 0 leaves them as they are.
        normalise: Whether prototypes become directions after each step. False is the paper's letter
            (Eqs. 3–4), for features as the network gives them.

    Example:
        >>> import torch
        >>> from fewgraft.prototypes import directions, prototypes, refine
        >>> support = directions(torch.randn(2, 5, 16))
        >>> unlabelled = directions(torch.randn(2, 30, 16))
        >>> labels = torch.arange(5).expand(2, 5)  # E = 2 episodes, N = 5 classes, 1 shot
        >>> novel = prototypes(support, labels, n_classes=5)
        >>> base_logits = torch.zeros(2, 30, 0)  # no base classes
        >>> config = fewgraft.Refinement(steps=3, alpha=0.5)
        >>> refine(novel, support, labels, unlabelled, base_logits, 20.0, config).shape
        torch.Size([2, 5, 16])
    """

    steps: int = 1
    alpha: float = 1.0
    temperature: float = 1.0
    novel_bias: float = 0.0
    normalise: bool = True


def refine(
    novel: Tensor,
    support: Tensor,
    labels: Tensor,
    unlabelled: Tensor,
    base_logits: Tensor,
    gamma: float | Tensor,
    config: Refinement,
) -> Tensor:
    """Novel prototypes [E, N, d] refined with unlabelled features [E, U, d] (Eqs. 3–4).

    support [E, S, d] with labels [E, S] in 0 … N−1; base_logits [E, U, N_b] are γ·cos(f, w) of the
    unlabelled pictures over the base classes, which do not change from step to step (N_b = 0 is
    plain few-shot learning; a column of −∞ is a base class that this episode does without).
    Features are directions, or of any length where `config.normalise` is off.
    """
    logits_of = direction_logits if config.normalise else cosine_logits
    own, own_count = support_sums(support, labels, novel.shape[1])
    base = base_evidence(base_logits, config)
    for _ in range(config.steps):
        logits = logits_of(unlabelled, novel, gamma)  # the exponents of Eq. 1
        weights = pseudo_labels(logits, base, config)  # Ŷ′
        total, count = own + class_sums(weights, unlabelled), own_count + weights.sum(1)
        novel = updated(novel, total, count, config)
    return novel


def updated(novel: Tensor, total: Tensor, count: Tensor, config: Refinement) -> Tensor:
    """Prototypes [E, N, d] after one step, from sums [E, N, d] and counts [E, N] over S and U."""
    scaled = directions if config.normalise else _as_it_is
    estimate = scaled(total / count[..., None])  # Eq. 3
    return scaled(config.alpha * estimate + (1 - config.alpha) * novel)  # Eq. 4


def _as_it_is(prototypes: Tensor) -> Tensor:
    return prototypes


def pseudo_labels(novel_logits: Tensor, base: Tensor, config: Refinement) -> Tensor:
    """Ŷ′ [E, U, N]: how much each unlabelled picture counts for each novel class.

    The softmax of Eq. 1 over all N_b+N columns, then the novel ones alone. They are *not*
    renormalised: a picture believed to be base keeps little weight. novel_logits [E, U, N]; `base`
    [E, U] is `base_evidence`.
    """
    novel = (novel_logits + config.novel_bias) / config.temperature
    everything = torch.logaddexp(novel.logsumexp(-1), base)
    return (novel - everything[..., None]).exp()


def base_evidence(base_logits: Tensor, config: Refinement) -> Tensor:
    """All that pseudo-labels need of base_logits [E, U, N_b], the same in every step [E, U].

    The log of the base columns' share of the sum in Eq. 1; −∞ where there are none.
    """
    if base_logits.shape[-1] == 0:
        return base_logits.new_full(base_logits.shape[:-1], MINUS_INFINITY)
    return (base_logits / config.temperature).logsumexp(-1)


def support_sums(support: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Sums [E, N, d] and counts [E, N] of each class's supports, for Eqs. 2 and 3."""
    members = members_of(labels, n_classes, support.dtype)
    count = members.sum(1)
    if (count == 0).any():
        raise ValueError("every class needs at least one support picture")
    if count.sum() != labels.numel():
        raise ValueError(f"labels must be in 0 … {n_classes - 1}")
    return class_sums(members, support), count


def class_sums(weights: Tensor, features: Tensor) -> Tensor:
    """Weighted sums over pictures: weights [E, n, N], features [E, n, d] → [E, N, d]."""
    return weights.transpose(1, 2) @ features


def members_of(labels: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    """1 where a picture is of a class, else 0: labels [E, S] → [E, S, n_classes]."""
    classes = torch.arange(n_classes, device=labels.device)
    return (labels[..., None] == classes).to(dtype)


def join_logits(base: Tensor, novel: Tensor) -> Tensor:
    """W = [W_b, W_n], seen as logits: base [E, Q, N_b] and novel [E, Q, N] → [E, Q, N_b+N]."""
    return torch.cat([base, novel], dim=-1) if base.shape[-1] else novel


def without_columns(base_logits: Tensor, classes: Tensor) -> Tensor:
    """base_logits [E, Q, N_b] with the classes [E, N] of each episode struck out.

    In an episode that rehearses on base classes, the prototypes of these N classes *overwrite*
    their rows of W_b: struck out here, they come back as the novel columns.
    """
    places = classes[:, None, :].expand(-1, base_logits.shape[1], -1)
    return base_logits.scatter(-1, places, MINUS_INFINITY)
