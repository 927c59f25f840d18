"""The paper's Eqs. 1–4: cosine classifier, prototypes, refinement. Batched over episodes.

One differentiable function each, used by meta-training and by testing alike. E episodes, S support,
U unlabelled and Q query pictures, N novel and N_b base classes, d features.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

MINUS_INFINITY = float("-inf")
TINY = 1e-12


def cosine_logits(
    features: Tensor,
    weights: Tensor,
    gamma: float | Tensor = 1.0,
    inverse: Tensor | None = None,
) -> Tensor:
    """γ · cos(f, w_k), the exponents of Eq. 1.

    features [..., Q, d], weights [..., K, d] → [..., Q, K]; leading dimensions broadcast. The few
    products are divided by the length of f, not the many features; its inverse [..., Q, 1] may be
    known already.
    """
    directions = gamma * normalize(weights, dim=-1)
    inverse = inverse_length(features) if inverse is None else inverse
    return features @ directions.transpose(-2, -1) * inverse


def prototypes(
    features: Tensor, labels: Tensor, n_classes: int, *, normalise: bool = True
) -> Tensor:
    """Class means of the support set, Eq. 2.

    features [E, S, d] with labels [E, S] in 0 … n_classes−1 → [E, n_classes, d]. Classes may have
    different numbers of supports. `normalise` averages directions, so that a picture with a large
    feature does not outweigh the others, and returns directions; without it Eq. 2 is literal.
    """
    return SupportSums.of(features, labels, n_classes, normalise).prototypes()


@dataclass(frozen=True)
class Refinement:
    """How Eqs. 3–4 are applied; the defaults are the paper's in training.

    The rest are ours and off by default: a temperature of the pseudo-labels, a bias on novel
    logits, a mask (keep a picture only where its best novel logit reaches its best base logit plus
    this margin), novel pseudo-labels renormalised to sum to 1, and the k surest pictures a class.
    """

    steps: int = 1  # n_steps
    alpha: float = 1.0  # α
    temperature: float = 1.0
    novel_bias: float = 0.0
    mask_margin: float | None = None
    renormalise: bool = False
    top_k: int | None = None


def refine(
    novel: Tensor,
    support: Tensor,
    labels: Tensor,
    unlabelled: Tensor,
    base_logits: Tensor,
    gamma: float | Tensor,
    how: Refinement,
    *,
    normalise: bool = True,
    inverse: Tensor | None = None,
) -> Tensor:
    """Novel prototypes [E, N, d] refined with unlabelled features [E, U, d] (Eqs. 3–4).

    support [E, S, d] with labels [E, S] in 0 … N−1; base_logits [E, U, N_b] are γ·cos(f, w) of the
    unlabelled pictures over the base classes, which do not change from step to step (N_b = 0 is
    plain few-shot learning; a column of −∞ is a base class that this episode does without). The
    inverse lengths [E, U, 1] of the unlabelled features may be known already.
    """
    # What is the same in every step: the support's share of the sums, lengths, base beliefs.
    own = SupportSums.of(support, labels, novel.shape[1], normalise)
    inverse = inverse_length(unlabelled) if inverse is None else inverse
    base = BaseBelief.of(base_logits, how)
    for _ in range(how.steps):
        weights = pile_weights(novel, unlabelled, inverse, base, gamma, how)
        total = weighted_sums(weights, unlabelled, inverse if normalise else None)
        novel = own.moved(novel, total, weights.sum(1), how)
    return novel


@dataclass(frozen=True)
class SupportSums:
    """The support's share of Eq. 3, to which the pile adds its own."""

    total: Tensor  # [E, N, d]
    count: Tensor  # [E, N]
    normalise: bool = True

    @classmethod
    def of(
        cls,
        support: Tensor,
        labels: Tensor,
        n_classes: int,
        normalise: bool = True,
        inverse: Tensor | None = None,
    ) -> Self:
        """From support [E, S, d] with labels [E, S].

        Its inverse lengths [E, S, 1], which only `normalise` asks for, may be known already.
        """
        members = members_of(labels, n_classes, support.dtype)
        count = members.sum(1)
        if (count == 0).any():
            raise ValueError("every class needs at least one support picture")
        if count.sum() != labels.numel():
            raise ValueError(f"labels must be in 0 … {n_classes - 1}")
        if not normalise:
            inverse = None
        elif inverse is None:
            inverse = inverse_length(support)
        return cls(weighted_sums(members, support, inverse), count, normalise)

    def prototypes(self) -> Tensor:
        """Class means [E, N, d], Eq. 2."""
        return _prepared(self.total / self.count[..., None], self.normalise)

    def moved(self, novel: Tensor, total: Tensor, count: Tensor, how: Refinement) -> Tensor:
        """Prototypes [E, N, d] after a step, given the pile's sums [E, N, d] and [E, N]."""
        mean = (total + self.total) / (count + self.count)[..., None]
        estimate = _prepared(mean, self.normalise)  # Eq. 3
        novel = how.alpha * estimate + (1 - how.alpha) * novel  # Eq. 4
        return _prepared(novel, self.normalise)


def pile_weights(
    novel: Tensor,
    unlabelled: Tensor,
    inverse: Tensor,
    base: "BaseBelief",
    gamma: float | Tensor,
    how: Refinement,
) -> Tensor:
    """How much each picture of the pile counts for each novel class [E, U, N].

    unlabelled [E, U, d] with the inverse of its lengths [E, U, 1].
    """
    directions = gamma * normalize(novel, dim=-1)
    logits = unlabelled @ directions.transpose(1, 2) * inverse + how.novel_bias
    return pseudo_labels(logits, base, how)


def weighted_sums(weights: Tensor, features: Tensor, inverse: Tensor | None) -> Tensor:
    """Weighted sums over pictures, for Eq. 3: weights [E, U, N], features [E, U, d] → [E, N, d].

    With inverse lengths [E, U, 1] it is directions that are summed; they are never written out.
    """
    return (weights if inverse is None else weights * inverse).transpose(1, 2) @ features


@dataclass(frozen=True)
class BaseBelief:
    """All that pseudo-labels need of the base logits, which is the same in every step."""

    total: Tensor  # [E, U] log of the sum over the base columns; −∞ where there are none
    best: Tensor  # [E, U] the largest of them

    @classmethod
    def of(cls, base_logits: Tensor, how: Refinement) -> Self:
        """From base_logits [E, U, N_b]."""
        if base_logits.shape[-1] == 0:
            none = base_logits.new_full(base_logits.shape[:-1], MINUS_INFINITY)
            return cls(none, none)
        return cls((base_logits / how.temperature).logsumexp(-1), base_logits.amax(-1))


def pseudo_labels(novel_logits: Tensor, base: BaseBelief, how: Refinement) -> Tensor:
    """Ŷ′ [E, U, N]: softmax over all N_b+N columns, then the novel ones alone.

    They are *not* renormalised: a picture believed to be base keeps little weight.
    """
    novel = novel_logits / how.temperature
    if how.renormalise:
        weights = novel.softmax(-1)
    else:
        everything = torch.logaddexp(novel.logsumexp(-1), base.total)
        weights = (novel - everything[..., None]).exp()
    if how.mask_margin is not None:
        kept = novel_logits.amax(-1) >= base.best + how.mask_margin
        weights = weights * kept[..., None]
    if how.top_k is not None and how.top_k < weights.shape[1]:
        least = weights.topk(how.top_k, dim=1).values[:, -1:]
        weights = weights * (weights >= least)
    return weights


def members_of(labels: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    """1 where a picture is of a class, else 0: labels [E, S] → [E, S, n_classes]."""
    classes = torch.arange(n_classes, device=labels.device)
    return (labels[..., None] == classes).to(dtype)


def _prepared(features: Tensor, normalise: bool) -> Tensor:
    return normalize(features, dim=-1) if normalise else features


def inverse_length(features: Tensor) -> Tensor:
    """1 / ‖f‖ [..., 1]; a feature of length 0 has no direction, and all its products are 0."""
    length: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return 1 / length.clamp(min=TINY)


def join_logits(base: Tensor, novel: Tensor) -> Tensor:
    """W = [W_b, W_n], seen as logits: base [E, Q, N_b] and novel [E, Q, N] → [E, Q, N_b+N]."""
    return torch.cat([base, novel], dim=-1) if base.shape[-1] else novel


def joint_logits(
    support: Tensor,
    labels: Tensor,
    n_novel: int,
    query: Tensor,
    base_query: Tensor,
    unlabelled: Tensor,
    base_unlabelled: Tensor,
    gamma: float | Tensor,
    refinement: Refinement | None,
) -> Tensor:
    """Ŷ_q before the softmax [E, Q, N_b+N]: Eq. 2, Eqs. 3–4 if asked for, then W = [W_b, W_n].

    Features [E, ·, d] of S, Q and U; base_query and base_unlabelled are γ·cos(f, w) of Q and U over
    the base classes. Lines 5–6 of Algorithms 1 and 2, and all that testing does.
    """
    novel = prototypes(support, labels, n_novel)
    if refinement and unlabelled.shape[1]:
        novel = refine(novel, support, labels, unlabelled, base_unlabelled, gamma, refinement)
    return join_logits(base_query, cosine_logits(query, novel, gamma))


def without_columns(base_logits: Tensor, classes: Tensor) -> Tensor:
    """base_logits [E, Q, N_b] with the classes [E, N] of each episode struck out.

    In an episode that rehearses on base classes, the prototypes of these N classes *overwrite*
    their rows of W_b: struck out here, they come back as the novel columns.
    """
    places = classes[:, None, :].expand(-1, base_logits.shape[1], -1)
    return base_logits.scatter(-1, places, MINUS_INFINITY)
