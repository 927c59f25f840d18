"""Episodes of training: classes that are only taken for novel, from one source for all phases.

Either the data has classes for it (novel/train), or base classes stand in: rotated by quarters,
which W_b has no row for, or as they are. In the last case an episode does without them as base
classes: their columns are struck out, of logits and of attention alike (`Task.strike`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices, KeyStream
from fewgraft.episodes import Episodes, EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.training.phase import Shard


class FakeNovel:
    """Where fake-novel classes come from, and the episodes that they make.

    `most` bounds the pictures per class, base or novel; they are the same in every run.
    """

    def __init__(
        self, store: ImageStore, novel: Literal["data", "rotated"], most: int | None = None
    ) -> None:
        pools = Pools.rotated(store) if novel == "rotated" else Pools.of(store, "train")
        self.pools = pools if most is None else _reduced(pools, most)

    def sample(self, settings: EpisodeSettings, numbers: Sequence[int]) -> tuple[Episodes, Tensor]:
        """Episodes of these numbers, and the labels [E, Q] of their queries."""
        drawn = [sample_episodes(self.pools, settings, 1, number) for number in numbers]
        labels = torch.cat([answers.query_labels for _, answers in drawn])
        return _join([episodes for episodes, _ in drawn]), labels

    def absent(self, episodes: Episodes) -> Tensor | None:
        """Base classes that each episode does without [E, N]; None where it has all."""
        return episodes.classes if self.pools.rehearsal else None


def _reduced(pools: Pools, most: int) -> Pools:
    """At most so many pictures per class."""
    first = np.concatenate(
        [_some(np.flatnonzero(pools.base_labels == k), most, k) for k in range(pools.n_base)]
    )
    return dataclasses.replace(
        pools,
        novel={label: _some(pictures, most, label) for label, pictures in pools.novel.items()},
        base=pools.base[first],
        base_labels=pools.base_labels[first],
    )


def _some(pictures: Indices, most: int, stream: int) -> Indices:
    return pictures[np.sort(KeyStream(0, stream).choose(len(pictures), min(most, len(pictures))))]


def episode_numbers(step: int, episodes: int, shard: Shard) -> list[int]:
    """This shard of a step's episodes; all processes together do all of them."""
    numbers = range(step * episodes, (step + 1) * episodes)[shard.number :: shard.of]
    if not numbers:
        raise FewgraftError(
            f"{shard.of} processes cannot share {episodes} episodes per step",
            "Raise the number of episodes in the recipe or use fewer processes.",
        )
    return list(numbers)


def _join(parts: Sequence[Episodes]) -> Episodes:
    names = ("classes", "support", "support_labels", "query", "unlabelled")
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Episodes(settings=parts[0].settings, n_base=parts[0].n_base, **joined)
