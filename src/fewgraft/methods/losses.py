"""The losses of test-time adaptation (the paper's Sec. 4.3), each standing alone."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """L_ctr, Eq. 5: features [B, d] of two views of the same B pictures; the mean over 2B anchors.

    Each anchor has one positive (its other view) and 2B − 2 negatives; itself it does not see.
    Chen et al., "A simple framework for contrastive learning of visual representations", ICML 2020.
    """
    views = normalize(torch.cat([first, second]), dim=-1)
    similar = views @ views.T / temperature
    itself = torch.eye(len(views), dtype=torch.bool, device=views.device)
    similar = similar.masked_fill(itself, float("-inf"))
    positives = torch.arange(len(views), device=views.device).roll(len(first))
    return cross_entropy(similar, positives)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """L_dst, Eq. 6: soft cross-entropy between logits [B, C] of both; no factor τ².

    Logits γ·cos(f, w) over temperature τ₂, then a softmax over the C columns, are Eq. 7's z and z̄.
    Hinton et al., "Distilling the knowledge in a neural network", 2015.
    """
    return cross_entropy(student / temperature, (teacher / temperature).softmax(-1))
