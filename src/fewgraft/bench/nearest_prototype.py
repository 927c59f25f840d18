"""The simplest thing that answers: class means as weights, the nearest by angle wins."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.episodes import Answers, Episodes
from fewgraft.metrics import Scores, join_scores, score
from fewgraft.prototypes import cosine_logits, join_logits, prototypes

CHUNK = 50  # episodes at a time: large enough for large matrix products, small enough for the cache


def base_weights(features: Tensor, store: ImageStore) -> Tensor:
    """W_b [N_b, d] without training: the class means over base/train."""
    chosen = torch.from_numpy(store.indices(Part.BASE_TRAIN))
    labels = torch.from_numpy(store.labels).long()[chosen]
    return prototypes(features[chosen][None], labels[None], len(store.base_classes))[0]


def episode_logits(
    features: Tensor, weights: Tensor, episodes: Episodes
) -> Iterator[tuple[slice, Tensor]]:
    """Logits [e, Q, N_b+N] of consecutive episodes, from features [n, d] of all pictures."""
    base = weights[: episodes.n_base]
    for start in range(0, len(episodes), CHUNK):
        rows = slice(start, start + CHUNK)
        labels = episodes.support_labels[rows] - episodes.n_base
        novel = prototypes(features[episodes.support[rows]], labels, episodes.settings.ways)
        query = features[episodes.query[rows]]
        yield rows, join_logits(cosine_logits(query, base), cosine_logits(query, novel))


def evaluate(features: Tensor, weights: Tensor, episodes: Episodes, answers: Answers) -> Scores:
    """Scores of nearest-prototype classification over all episodes."""
    return join_scores(
        score(logits, answers.query_labels[rows], episodes.n_base)
        for rows, logits in episode_logits(features, weights, episodes)
    )
