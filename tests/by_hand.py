"""Episodes answered one after the other, straight from Eqs. 1–4."""

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from fewgraft.episodes import Episodes, QueryLabels
from fewgraft.metrics import Scores, score
from fewgraft.prototypes import Refinement


def scores_by_hand(
    features: Tensor,
    weights: Tensor,
    gamma: float,
    episodes: Episodes,
    labels: QueryLabels,
    config: Refinement,
) -> Scores:
    """From features [n, d] of all pictures and W_b [N_b, d]."""
    base = normalize(weights, dim=-1)
    logits = [
        episode_logits(normalize(features, dim=-1), base, gamma, episodes, e, config)
        for e in range(len(episodes))
    ]
    return score(torch.stack(logits), labels.query_labels, episodes.n_base)


def episode_logits(
    features: Tensor, base: Tensor, gamma: float, episodes: Episodes, e: int, config: Refinement
) -> Tensor:
    """[Q, N_b+N] of one episode, from directions."""
    support, unlabelled, query = (
        features[chosen[e]] for chosen in (episodes.support, episodes.unlabelled, episodes.query)
    )
    members = one_hot(episodes.support_labels[e] - episodes.n_base, episodes.settings.ways).float()
    novel = normalize(members.T @ support, dim=-1)
    for _ in range(config.steps):
        logits = gamma * unlabelled @ torch.cat([base, novel]).T / config.temperature
        guesses = logits.softmax(-1)[:, len(base) :]
        mean = normalize(guesses.T @ unlabelled + members.T @ support, dim=-1)
        novel = normalize(config.alpha * mean + (1 - config.alpha) * novel, dim=-1)
    return gamma * query @ torch.cat([base, novel]).T
