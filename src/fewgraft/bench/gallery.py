"""A model over the pictures of a split: whatever an episode asks for is gathered by index."""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewgraft.bench.bank import FeatureBank, feature_bank, weights_hash
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.episodes import Episodes
from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Queries, Task, TaskPictures
from fewgraft.model import CosineModel
from fewgraft.network import Network
from fewgraft.prototypes import cosine_logits, inverse_length


class Gallery:
    """Features, their lengths and base scores once a picture, not once an episode."""

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        split: str = "test",
        features: Path | None = None,
    ) -> None:
        if model.card.classes != store.base_classes:
            raise FewgraftError(
                f"the model knows other base classes than {store.manifest.name} has",
                f"It was trained on {model.card.data}.",
            )
        self.model = model
        self.store = store
        self.split = split
        self._features = features
        self.gamma = model.gamma.item()
        self.weights = model.weight.detach()

    @cached_property
    def weights_hash(self) -> str:
        """A name for exactly this model's weights."""
        return weights_hash(self.model)

    @cached_property
    def bank(self) -> FeatureBank:
        """Features of the split's pictures."""
        parts = [self.store.indices(Part(f"{kind}/{self.split}")) for kind in ("base", "novel")]
        return feature_bank(self.model, self.store, np.concatenate(parts), self._features)

    @cached_property
    def _base_scores(self) -> Tensor:
        """γ·cos(f, w) of every picture in the bank [m, N_b]."""
        return cosine_logits(self.bank.features, self.weights, self.gamma, self._inverse)

    @cached_property
    def _inverse(self) -> Tensor:
        """1/‖f‖ of every picture in the bank [m, 1]."""
        return inverse_length(self.bank.features)

    @cached_property
    def network(self) -> Network:
        """For methods that move it."""
        return Network(self.model, self.store.pictures)

    def base_logits(self, pictures: Tensor, n_base: int) -> Tensor:
        """[..., n_base] of pictures [...]; a setting without base classes has none."""
        return self._base_scores[self.bank.row[pictures], :n_base]

    def task(self, episodes: Episodes, rows: slice, *, pictures: bool) -> Task:
        """Some of the episodes as a method sees them."""
        support, pile = episodes.support[rows], episodes.unlabelled[rows]
        return Task(
            ways=episodes.settings.ways,
            support=self.bank[support],
            labels=episodes.support_labels[rows] - episodes.n_base,
            unlabelled=self.bank[pile],
            base_unlabelled=self.base_logits(pile, episodes.n_base),
            weights=self.weights[: episodes.n_base],
            gamma=self.gamma,
            numbers=torch.arange(len(episodes))[rows],
            pictures=TaskPictures(self.network, support, pile) if pictures else None,
            inverse=self._inverse[self.bank.row[pile]],
        )

    def queries(self, episodes: Episodes, rows: slice, task: Task | None = None) -> Queries:
        """The pictures to classify in these episodes; where U is Q, their task has them already."""
        query = episodes.query[rows]
        if task is not None and episodes.settings.kind.unlabelled == "query":
            return Queries(task.unlabelled, task.base_unlabelled, query, task.inverse)
        return Queries(
            self.bank[query],
            self.base_logits(query, episodes.n_base),
            query,
            self._inverse[self.bank.row[query]],
        )
