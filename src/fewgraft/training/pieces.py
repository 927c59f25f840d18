"""The phase in which a method learns its pieces, on features of a frozen network.

An episode is one of meta-training (`fake_novel`), without U for methods that have base classes, and
with a U of the fake-novel classes for those that have none: the pieces descend on the method's loss
on its queries. Every feature is computed once, so that a step costs what the method costs. So are
the activations that a method with a block of its own takes instead.
"""

import dataclasses
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices, KeyStream
from fewgraft.episodes import SETTINGS, EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import pixels_of
from fewgraft.methods import method_spec
from fewgraft.methods.base import LearntTensors, Method, Queries
from fewgraft.methods.trained import TrainedMethod, pieces_before
from fewgraft.model import CosineModel, weights_hash
from fewgraft.network import KeptActivations, Network
from fewgraft.pieces import Pieces, PiecesCard
from fewgraft.prototypes import direction_logits, directions
from fewgraft.split_features import FindPieces, SplitFeatures
from fewgraft.training.checkpoint import Progress
from fewgraft.training.fake_novel import FakeNovel, episode_numbers
from fewgraft.training.phase import Phase, Shard
from fewgraft.training.recipe import Learning, Recipe, tuned_method
from fewgraft.training.record import data_name
from fewgraft.training.validation import Validator

# Activations below the last block, which all numbers of shots have in common.
KeptBySplit = dict[str, KeptActivations]
MOST = 100  # pictures per class: enough for a small generator, and features cost minutes


class LearnPieces(Phase):
    """A method learns for one number of shots; the model stays as it is."""

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        recipe: Recipe,
        method: str,
        shots: int,
        root: Path | None = None,
        kept: KeptBySplit | None = None,
    ) -> None:
        self.model = model.eval()
        self._store, self._seed = store, recipe.seed
        self._method = trained_method(recipe, method, shots)
        self._config = learning_of(recipe, self._method.pieces)
        self.name = f"{self._method.pieces}-{shots}-shot"
        self._shots = shots
        self._fake_novel = FakeNovel(store, self._config.novel, MOST)
        setting = "incremental" if method_spec(method).joint else "semi-fsl"
        self._settings = _settings(self._config, setting, shots, recipe.seed)
        self._train = _TrainFeatures(model, store, root, self._learnt, self._fake_novel)
        self._val = _SomeFeatures(model, store, "val", root, learnt=self._learnt)
        for features in (self._train, self._val):
            features.kept = {} if kept is None else kept.setdefault(features.split, {})
        self._validator = Validator(store, recipe, setting, (shots,))
        rng = torch.Generator().manual_seed(recipe.seed)
        weights, gamma = model.weight.detach().cpu(), model.gamma.item()
        initial = pieces_before(
            self._method, weights, gamma, shots, rng, lambda: self._train.network
        )
        self._pieces = nn.Module()
        for name, tensor in initial.items():
            self._pieces.register_parameter(name, nn.Parameter(tensor.to(model.weight.device)))
        self.steps = self._config.steps
        self.validate_every = self._config.validate_every
        self.optimisation = self._config.optimisation

    @property
    def learner(self) -> nn.Module:
        """The pieces."""
        return self._pieces

    def _learnt(self, method: Method, shots: int) -> LearntTensors:
        del method, shots
        return dict(self._pieces.named_parameters())

    def loss(self, step: int, shard: Shard) -> tuple[Tensor, float]:
        """The method's loss on the queries of this shard's episodes."""
        numbers = episode_numbers(step, self._config.episodes, shard)
        episodes, answers = self._fake_novel.sample(self._settings, numbers)
        everything, device = slice(None), self.model.weight.device
        absent = self._fake_novel.absent(episodes)
        rng = torch.Generator().manual_seed(int(KeyStream(self._seed, numbers[0]).keys(1)[0] >> 1))
        task = self._train.task(episodes, everything, self._method)
        task = dataclasses.replace(
            task,
            support=self._dropped(task.support, rng),
            unlabelled=self._dropped(task.unlabelled, rng),
            absent=None if absent is None else absent.to(device),
        )
        asked, labels = self._train.queries(episodes, everything), answers.to(device)
        query = self._dropped(asked.features, rng)
        base_logits = direction_logits(query, task.weights, task.gamma)
        queries = Queries(query, task.strike(base_logits), asked.pictures)
        loss, logits = self._method.loss(task, queries, labels, rng)
        return loss, (logits.detach().argmax(-1) == labels).float().mean().item()

    def _dropped(self, features: Tensor, rng: torch.Generator) -> Tensor:
        """Directions [E, n, d] without some of their entries."""
        if not self._config.dropout:
            return features
        kept = torch.rand(features.shape, generator=rng) >= self._config.dropout
        return directions(features * kept.to(features.device))

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Val episodes at this number of shots."""
        return self._validator.figures(self._validator.scores_on(self._val, self._method))

    def result(self) -> dict[str, Tensor]:
        """The pieces as they are."""
        return self._pieces.state_dict()

    def restore(self, result: dict[str, Tensor]) -> None:
        """Pieces of an earlier step."""
        self._pieces.load_state_dict(result)

    def pieces(self, progress: Progress) -> Pieces:
        """What was learnt, with its card."""
        best = next(row for row in progress.history if row["step"] == progress.best_step)
        card = PiecesCard(
            method=self._method.pieces,
            shots=self._shots,
            hyper=dataclasses.asdict(self._method),  # type: ignore[call-overload]
            stage=self.model.card.stage,
            weights=weights_hash(self.model),
            data=data_name(self._store),
            settings={**self._config.model_dump(mode="json"), "seed": self._seed},
            metrics={f"val_{name}": value for name, value in best.items()},
        )
        return Pieces(card, self.result())


class _SomeFeatures(SplitFeatures):
    """The model over the pictures of a split; its network has no others, so none are computed."""

    kept: KeptActivations

    @cached_property
    def network(self) -> Network:
        """Over the pictures in the bank, each rotated by its quarters."""
        return Network(self.model, pixels_of(self.store, self._pictures()), kept=self.kept)

    def places(self, pictures: Tensor) -> Tensor:
        """Rows in the bank."""
        return self.bank.row[pictures]


class _TrainFeatures(_SomeFeatures):
    """The model over all pictures that training episodes may draw."""

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        root: Path | None,
        learnt: FindPieces,
        fake_novel: FakeNovel,
    ) -> None:
        self._pools = fake_novel.pools
        super().__init__(model, store, "train", root, learnt=learnt)

    def _pictures(self) -> Indices:
        return np.unique(np.concatenate([self._pools.base, *self._pools.novel.values()]))


def trained_method(recipe: Recipe, name: str, shots: int) -> TrainedMethod:
    """A method that learns pieces, with the hyper-parameters that the recipe has chosen."""
    method = tuned_method(recipe, name, shots)
    if not isinstance(method, TrainedMethod):
        raise FewgraftError(f"'{name}' has nothing to learn", "It is a method without pieces.")
    return method


def learning_of(recipe: Recipe, pieces: str) -> Learning:
    """The recipe's section for a method."""
    if pieces not in recipe.learning:
        raise FewgraftError(
            f"the recipe '{recipe.name}' does not say how '{pieces}' learns",
            f"Add a section [learning.{pieces}]; the recipes of the package have examples.",
        )
    return recipe.learning[pieces]


def _settings(config: Learning, setting: str, shots: int, seed: int) -> EpisodeSettings:
    sizes = {"ways": config.ways, "queries": config.queries}
    if SETTINGS[setting].incremental:
        sizes["base_queries"] = config.base_queries
    else:
        sizes["unlabelled"] = config.unlabelled
    return EpisodeSettings.paper(setting, shots, split="train", seed=seed, **sizes)
