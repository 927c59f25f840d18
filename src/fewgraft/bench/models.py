"""A trained model on episodes: features once, then any setting; and the models that ship."""

from dataclasses import dataclass
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
CHECKOUT_ZOO = ZOO.parents[2] / "zoo"  # models that are too large for the package


def models_folder(name: str) -> Path:
    """Where the trained models of a recipe are: in the package, else in this checkout's zoo."""
    places = [ZOO / name, CHECKOUT_ZOO / name]
    for place in places:
        if place.is_dir():
            return place
    raise FewgraftError(
        f"no trained models for '{name}' are at {' or '.join(map(str, places))}",
        f"Train them (fewgraft train {name}) and pass --models runs/{name}.",
    )


def stage_model(folder: Path, stage: str) -> CosineModel:
    """One of the models of a folder that holds a stage each."""
    if not (folder / stage / "model.json").is_file():
        raise FewgraftError(
            f"{folder} has no model '{stage}'", "It is the folder of a `fewgraft train` run."
        )
    return load_model(folder / stage)


def shipped_model(name: str, stage: str) -> CosineModel:
    """A model inside the package, such as ("icons", "algorithm-2")."""
    folder = ZOO / name / stage
    if not folder.is_dir():
        known = [f"{path.parent.name}/{path.name}" for path in ZOO.glob("*/*")]
        raise FewgraftError(
            f"no model '{name}/{stage}' ships with this version", nearest(f"{name}/{stage}", known)
        )
    return load_model(folder)


@dataclass(frozen=True)
class FeaturesOnData:
    """Features [n, d] of a data set's pictures, base weights W_b and γ: ready for any setting."""

    features: Tensor
    weights: Tensor
    store: ImageStore
    gamma: float = 1.0
    split: str = "test"

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
        settings = EpisodeSettings.paper(setting, shots, split=self.split, seed=seed)
        drawn, answers = sample_episodes(Pools.of(self.store, self.split), settings, episodes)
        return evaluate(self.features, self.weights, drawn, answers, self.gamma, refinement)

    @torch.inference_mode()
    def base_accuracy(self) -> float:
        """Share of the split's base pictures whose class is found among the base classes."""
        pictures = torch.from_numpy(self.store.indices(Part(f"base/{self.split}")))
        labels = torch.from_numpy(self.store.labels)[pictures]
        answers = cosine_logits(self.features[pictures], self.weights).argmax(1)
        return (answers == labels).double().mean().item()


def model_on_data(model: CosineModel, store: ImageStore, split: str = "test") -> FeaturesOnData:
    """A model with the features of a split's pictures, computed once; others stay zero."""
    if model.card.classes != store.base_classes:
        raise FewgraftError(
            f"the model knows other base classes than {store.manifest.name} has",
            f"It was trained on {model.card.data}.",
        )
    parts = (Part(f"base/{split}"), Part(f"novel/{split}"))
    chosen = torch.cat([torch.from_numpy(store.indices(part)) for part in parts])
    features = torch.zeros(len(store), model.card.width)
    features[chosen] = embed_all(model, store.pictures[chosen.numpy()])
    return FeaturesOnData(features, model.weight.detach(), store, model.gamma.item(), split)
