"""Episodes answered in feature space: prototypes, refinement if asked for, cosine logits."""

from collections.abc import Iterator

from torch import Tensor

from fewgraft.episodes import Answers, Episodes
from fewgraft.metrics import Scores, join_scores, score
from fewgraft.prototypes import Refinement, cosine_logits, joint_logits

CHUNK = 10  # episodes at a time: large enough for large matrix products, small enough for the cache


def episode_logits(
    features: Tensor,
    weights: Tensor,
    episodes: Episodes,
    gamma: float | Tensor = 1.0,
    refinement: Refinement | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """Logits [e, Q, N_b+N] of consecutive chunks of episodes.

    features [n, d] of all pictures of the data, weights W_b [N_b, d]. Base logits are computed once
    a picture, not once an episode: pictures recur, W_b stays.
    """
    base = cosine_logits(features, weights[: episodes.n_base], gamma)
    for start in range(0, len(episodes), CHUNK):
        rows = slice(start, start + CHUNK)
        labels = episodes.support_labels[rows] - episodes.n_base
        query, pile = episodes.query[rows], episodes.unlabelled[rows]
        yield (
            rows,
            joint_logits(
                features[episodes.support[rows]],
                labels,
                episodes.settings.ways,
                features[query],
                base[query],
                features[pile],
                base[pile],
                gamma,
                refinement,
            ),
        )


def evaluate(
    features: Tensor,
    weights: Tensor,
    episodes: Episodes,
    answers: Answers,
    gamma: float | Tensor = 1.0,
    refinement: Refinement | None = None,
) -> Scores:
    """Scores over all episodes."""
    return join_scores(
        score(logits, answers.query_labels[rows], episodes.n_base)
        for rows, logits in episode_logits(features, weights, episodes, gamma, refinement)
    )
