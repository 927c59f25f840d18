"""XtarNet: features merged for the task, base weights conditioned on it, references pushed away.

Yoon, Kim, Seo, Moon, "XtarNet: learning to extract task-adaptive representation for incremental
few-shot learning", ICML 2020. Beside the frozen feature f there is a second feature g, which is
meta-learnt. With class means over the support and t the mean over classes of [f; g]:

    x = ω_f(t) ⊙ f + ω_g(t) ⊙ g                       merged; c_k its class means, m their mean
    W'_j = (1 + 0.1 μ(m)) ⊙ w_j + 0.1 ν(m)            conditioned base weights
    σ_k = softmax_j(ρ(c_k·W'_1, …, c_k·W'_Nb))        which base classes resemble class k
    R'_k = R_k − Σ_j σ_kj W'_j                        learnt references, pushed away from them

Logits are distances to W' and R' in TapNet's projection, in which R' and c agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Layer = tuple[Tensor, Tensor]  # V [in, out] and v [out]: x V + v
STRENGTH = 0.1  # of conditioning


@dataclass(frozen=True)
class TaskNets:
    """The nets that read the task: ω_f and ω_g, μ and ν, and ρ."""

    merge_base: Sequence[Layer]
    merge_meta: Sequence[Layer]
    scale: Sequence[Layer]
    shift: Sequence[Layer]
    correlation: Sequence[Layer]


def merging(layers: Sequence[Layer], task: Tensor) -> Tensor:
    """ω of the task's mean [E, 1, 2d]: a share per feature [E, 1, d]."""
    *hidden, last = layers
    for weight, bias in hidden:
        task = (task @ weight + bias).relu()
    return (task @ last[0] + last[1]).sigmoid()


def conditioning(layers: Sequence[Layer], mean: Tensor) -> Tensor:
    """μ or ν of the mean of class means [E, 1, d]: not negative [E, 1, d]."""
    for weight, bias in layers:
        mean = (mean @ weight + bias + mean).relu()
    return mean


def conditioned(nets: TaskNets, base: Tensor, mean: Tensor) -> Tensor:
    """W' [E, N_b, d] of base weights [N_b, d]."""
    scale, shift = (conditioning(net, mean) for net in (nets.scale, nets.shift))
    return (1 + STRENGTH * scale) * base + STRENGTH * shift


def correlation(layers: Sequence[Layer], products: Tensor) -> Tensor:
    """ρ of the products of class means with base weights [E, N, N_b]: as many, not negative."""
    weight, bias = layers[0]
    products = (products @ weight + bias).relu()
    for weight, bias in layers[1:]:
        products = (products @ weight + bias + products).relu()
    return products


def pushed_away(references: Tensor, attention: Tensor, base: Tensor) -> Tensor:
    """R' [E, N, d] of references, attention σ [E, N, N_b] and weights W' [E, N_b, d]."""
    return references - attention @ base
