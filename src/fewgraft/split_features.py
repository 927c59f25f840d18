"""From episodes to scores: features gathered by index, a method fitted, its answers scored.

This is the one way through, for the benchmark, for validation in training and for your own code:

    EpisodeFeatures → Task → Method.fit → Solution.logits → Scores
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices
from fewgraft.episodes import Episodes, EpisodeSettings, Pools, QueryLabels, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import FeatureBank, feature_bank
from fewgraft.methods.base import Method, Queries, Task, TaskPictures
from fewgraft.metrics import Scores, join_scores, score
from fewgraft.model import CosineModel, weights_hash
from fewgraft.network import Network
from fewgraft.prototypes import direction_logits

# Episodes at a time; part of the numbers to the last bit. Without base classes episodes are small.
CHUNK, REGULAR_CHUNK, MOVING_CHUNK = 10, 150, 5


def chunks(count: int, settings: EpisodeSettings, method: Method) -> list[range]:
    """Consecutive episodes, of `count` in all, that are computed together."""
    size = CHUNK if settings.kind.incremental else REGULAR_CHUNK
    size = MOVING_CHUNK if method.moves_network else size
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


class EpisodeFeatures:
    """What episodes gather from: features and base scores once per picture, not per episode.

    Everything is computed where the features and the weights are; indices of pictures and scores
    are on the CPU.
    """

    def __init__(
        self,
        bank: Callable[[], FeatureBank],
        weights: Tensor,
        gamma: float,
        network: Callable[[], Network] | None = None,
    ) -> None:
        self._bank = bank
        self._network = network
        self.weights = weights  # W_b [N_b, d]
        self.gamma = gamma

    @cached_property
    def bank(self) -> FeatureBank:
        """Features of the pictures; they are computed when they are first asked for."""
        return self._bank()

    @cached_property
    def network(self) -> Network:
        """For methods that move it."""
        if self._network is None:
            raise FewgraftError(
                "this method moves the network: it needs the model and its pictures",
                "Features alone are enough for the other methods.",
            )
        return self._network()

    @cached_property
    def _base_scores(self) -> Tensor:
        """γ·cos(f, w) of every picture in the bank [m, N_b]."""
        return direction_logits(self.bank.features, self.weights, self.gamma)

    def base_logits(self, pictures: Tensor, n_base: int) -> Tensor:
        """[..., n_base] of pictures [...]; a setting without base classes has none."""
        return self._base_scores[self.bank.row[pictures], :n_base]

    def task(self, episodes: Episodes, rows: slice, *, pictures: bool = False) -> Task:
        """Some of the episodes as a method sees them."""
        support, unlabelled = episodes.support[rows], episodes.unlabelled[rows]
        return Task(
            ways=episodes.settings.ways,
            support=self.bank[support],
            labels=(episodes.support_labels[rows] - episodes.n_base).to(self.weights.device),
            unlabelled=self.bank[unlabelled],
            base_unlabelled=self.base_logits(unlabelled, episodes.n_base),
            weights=self.weights[: episodes.n_base],
            gamma=self.gamma,
            numbers=torch.arange(len(episodes))[rows],
            pictures=TaskPictures(self.network, support, unlabelled) if pictures else None,
        )

    def queries(self, episodes: Episodes, rows: slice, task: Task | None = None) -> Queries:
        """The pictures to classify in these episodes; where U is Q, their task has them already."""
        query = episodes.query[rows]
        if task is not None and episodes.settings.kind.unlabelled == "query":
            return Queries(task.unlabelled, task.base_unlabelled, query)
        return Queries(self.bank[query], self.base_logits(query, episodes.n_base), query)

    @torch.no_grad()
    def logits(self, method: Method, episodes: Episodes, rows: slice) -> Tensor:
        """What a method answers in some of the episodes [e, Q, N_b+N]."""
        task = self.task(episodes, rows, pictures=method.moves_network)
        return method.fit(task).logits(self.queries(episodes, rows, task))

    def scores(
        self, method: Method, episodes: Episodes, labels: QueryLabels, some: range | None = None
    ) -> Scores:
        """How right a method is, in all episodes or in `some` consecutive ones."""
        parts = [some] if some is not None else chunks(len(episodes), episodes.settings, method)
        rows = [slice(part.start, part.stop) for part in parts]
        return join_scores(
            score(self.logits(method, episodes, r).cpu(), labels.query_labels[r], episodes.n_base)
            for r in rows
        )


class SplitFeatures(EpisodeFeatures):
    """A model over the pictures of a split; its features are kept on disk, in `root`."""

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        split: str = "test",
        root: Path | None = None,
    ) -> None:
        check_classes(model, store)
        self.model = model
        self.store = store
        self.split = split
        super().__init__(
            lambda: feature_bank(model, store, self._pictures(), root).to(model.weight.device),
            model.weight.detach(),
            model.gamma.item(),
            lambda: Network(model, store.pictures),
        )

    def _pictures(self) -> Indices:
        kinds = ("base", "novel")
        return np.concatenate([self.store.indices(Part(f"{k}/{self.split}")) for k in kinds])

    @cached_property
    def weights_hash(self) -> str:
        """A name for exactly this model's weights."""
        return weights_hash(self.model)

    def evaluate(
        self, method: Method, setting: str, shots: int, episodes: int = 600, seed: int = 0
    ) -> Scores:
        """Scores of a method on the paper's episodes of a setting."""
        settings = EpisodeSettings.paper(setting, shots, split=self.split, seed=seed)
        return self.scores(
            method, *sample_episodes(Pools.of(self.store, self.split), settings, episodes)
        )

    def base_accuracy(self) -> float:
        """Share of the split's base pictures whose class is found among the base classes."""
        pictures = torch.from_numpy(self.store.indices(Part(f"base/{self.split}")))
        labels = torch.from_numpy(self.store.labels)[pictures]
        answers = self.base_logits(pictures, len(self.weights)).argmax(1).cpu()
        return (answers == labels).double().mean().item()


def check_classes(model: CosineModel, store: ImageStore) -> None:
    """A model knows the base classes of its own data only."""
    if model.card.classes != store.base_classes:
        raise FewgraftError(
            f"the model knows other base classes than {store.manifest.name} has",
            f"It was trained on {model.card.data}.",
        )
