"""A trained model on episodes: features once, then any setting; and the models that ship."""

from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError, nearest
from fewgraft.evaluation import evaluate
from fewgraft.metrics import Scores
from fewgraft.model import CosineModel, embed_all, load_model
from fewgraft.prototypes import Refinement, cosine_logits

ZOO = Path(str(resources.files("fewgraft") / "zoo"))


def shipped_model(name: str, stage: str) -> CosineModel:
    """A model inside the package, such as ("icons", "algorithm-2")."""
    folder = ZOO / name / stage
    if not folder.is_dir():
        known = [f"{path.parent.name}/{path.name}" for path in ZOO.glob("*/*")]
        raise FewgraftError(
            f"no model '{name}/{stage}' ships with this version", nearest(f"{name}/{stage}", known)
        )
    return load_model(folder)


class ModelOnData:
    """A model with the features of a split's pictures, computed once."""

    def __init__(self, model: CosineModel, store: ImageStore, split: str = "test") -> None:
        if model.card.classes != store.base_classes:
            raise FewgraftError(
                f"the model knows other base classes than {store.manifest.name} has",
                f"It was trained on {model.card.data}.",
            )
        self._model = model
        self._pools = Pools.of(store, split)
        self._split = split
        parts = (Part(f"base/{split}"), Part(f"novel/{split}"))
        chosen = torch.cat([torch.from_numpy(store.indices(part)) for part in parts])
        self._features = torch.zeros(len(store), model.card.width)
        self._features[chosen] = embed_all(model, store.pictures[chosen.numpy()])
        self._base = torch.from_numpy(store.indices(parts[0]))
        self._base_labels = torch.from_numpy(self._pools.base_labels)

    @torch.inference_mode()
    def scores(
        self,
        setting: str,
        shots: int,
        refinement: Refinement | None = None,
        episodes: int = 600,
        seed: int = 0,
    ) -> Scores:
        """Scores on the paper's episodes of a setting."""
        settings = EpisodeSettings.paper(setting, shots, split=self._split, seed=seed)
        drawn, answers = sample_episodes(self._pools, settings, episodes)
        weights: Tensor = self._model.weight
        return evaluate(self._features, weights, drawn, answers, self._model.gamma, refinement)

    @torch.inference_mode()
    def base_accuracy(self) -> float:
        """Share of the split's base pictures whose class is found among the base classes."""
        answers = cosine_logits(self._features[self._base], self._model.weight).argmax(1)
        return (answers == self._base_labels).double().mean().item()
