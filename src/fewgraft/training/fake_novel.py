"""Episodes of training: classes that are only taken for novel, from one source for all phases.

Either the data has classes for it (novel/train), or base classes stand in: rotated by quarters,
which W_b has no row for, or as they are. In the last case an episode does without them as base
classes: their columns are struck out, of logits and of attention alike (`Task.strike`).
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fewgraft.data.store import ImageStore
from fewgraft.episodes import Episodes, EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.training.phase import Shard


class FakeNovel:
    """Where fake-novel classes come from, and the episodes that they make."""

    def __init__(self, store: ImageStore, novel: Literal["data", "rotated"]) -> None:
        self.pools = Pools.rotated(store) if novel == "rotated" else Pools.of(store, "train")

    def sample(self, settings: EpisodeSettings, numbers: Sequence[int]) -> tuple[Episodes, Tensor]:
        """Episodes of these numbers, and the labels [E, Q] of their queries."""
        drawn = [sample_episodes(self.pools, settings, 1, number) for number in numbers]
        labels = torch.cat([answers.query_labels for _, answers in drawn])
        return _join([episodes for episodes, _ in drawn]), labels

    def absent(self, episodes: Episodes) -> Tensor | None:
        """Base classes that each episode does without [E, N]; None where it has all."""
        return episodes.classes if self.pools.rehearsal else None


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
