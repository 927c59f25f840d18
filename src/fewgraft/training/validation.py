"""Validation on novel-val × base-val episodes: what decides which step is kept.

Data without novel/val classes have base/val, rotated, in their place (`Pools.of`).
"""

import math
from collections.abc import Sequence
from statistics import mean

import torch
from torch import Tensor

from fewgraft.data.store import ImageStore
from fewgraft.episodes import (
    SETTINGS,
    Episodes,
    EpisodeSettings,
    Pools,
    QueryLabels,
    sample_episodes,
    split_pictures,
)
from fewgraft.feature_bank import FeatureBank
from fewgraft.methods.base import Method
from fewgraft.metrics import Scores
from fewgraft.model import CosineModel
from fewgraft.split_features import EpisodeFeatures
from fewgraft.training.recipe import Recipe

SEED = 1  # validation has episodes of its own, whatever seed training has


class Validator:
    """Val episodes, drawn once, and where their pictures are."""

    def __init__(
        self, store: ImageStore, recipe: Recipe, setting: str, shots: Sequence[int] = ()
    ) -> None:
        self._config = recipe.validation
        self._shots = shots or self._config.shots
        self._episodes = [self._draw(store, setting, k) for k in self._shots]
        self.pictures = torch.from_numpy(split_pictures(store, "val"))
        self._total = len(store) * (4 if store.validates_on_base else 1)

    def _draw(self, store: ImageStore, setting: str, shots: int) -> tuple[Episodes, QueryLabels]:
        config, kind = self._config, SETTINGS[setting]
        changes = {"ways": config.ways, "queries": config.queries}
        if kind.incremental:
            changes["base_queries"] = config.base_queries
        if kind.unlabelled == "extra" and config.unlabelled is not None:
            changes["unlabelled"] = config.unlabelled
        settings = EpisodeSettings.paper(setting, shots, split="val", seed=SEED, **changes)
        return sample_episodes(Pools.of(store, "val"), settings, self._config.episodes)

    def scores(self, model: CosineModel, features: Tensor, method: Method) -> list[Scores]:
        """Scores at each shot, from features [len(self.pictures), d] of the val pictures."""
        bank = FeatureBank.of(features.cpu(), self.pictures, self._total)
        ready = EpisodeFeatures(lambda: bank, model.weight.detach().cpu(), model.gamma.item())
        return self.scores_on(ready, method)

    def scores_on(self, features: EpisodeFeatures, method: Method) -> list[Scores]:
        """Scores at each shot, where the features of the val pictures are there."""
        return [features.scores(method, episodes, labels) for episodes, labels in self._episodes]

    def figures(self, scores: list[Scores], selection: str = "joint") -> dict[str, float]:
        """Metrics at each shot in percent, and the score that decides.

        It is the mean Acc over the shots, or with `selection` "apart" the mean of b/b and n/n.
        What a setting without base classes does not have is left out.
        """
        found = {}
        for shots, s in zip(self._shots, scores, strict=True):
            found[f"acc_{shots}"] = 100 * s.acc.mean().item()
            found[f"delta_{shots}"] = 100 * s.delta.mean().item()
            found[f"b_all_{shots}"] = 100 * s.b_all.mean().item()
            found[f"n_all_{shots}"] = 100 * s.n_all.mean().item()
            found[f"n_n_{shots}"] = 100 * s.n_n.mean().item()
        found["b_b"] = 100 * scores[0].b_b.mean().item()
        found["score"] = mean(found[f"acc_{shots}"] for shots in self._shots)
        if selection == "apart":
            novel = mean(found[f"n_n_{shots}"] for shots in self._shots)
            found["score"] = (found["b_b"] + novel) / 2
        return {name: value for name, value in found.items() if not math.isnan(value)}
