"""From episodes to scores: features gathered by index, a method fitted, its answers scored.

This is the one way through, for the benchmark, for validation in training and for your own code:

    EpisodeFeatures → Task → Method.fit → Solution.logits → Scores
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewgraft.base_knowledge import BaseKnowledge, has_knowledge, load_knowledge
from fewgraft.base_pictures import base_knowledge, base_pictures, kept_features
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices
from fewgraft.episodes import (
    Episodes,
    EpisodeSettings,
    Pools,
    QueryLabels,
    sample_episodes,
    split_pictures,
)
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import FeatureBank, feature_bank, feature_lengths, mid_bank
from fewgraft.methods.base import LearntTensors, Method, Queries, Task, TaskPictures
from fewgraft.methods.trained import TrainedMethod, pieces_before
from fewgraft.metrics import Scores, join_scores, score
from fewgraft.model import CosineModel, weights_hash
from fewgraft.network import Network
from fewgraft.pieces import Pieces, check_pieces, check_shapes, load_pieces
from fewgraft.prototypes import direction_logits

# Episodes at a time; part of the numbers to the last bit. Without base classes episodes are small.
CHUNK, REGULAR_CHUNK, MOVING_CHUNK = 10, 150, 5
FindPieces = Callable[[Method, int], LearntTensors]  # the pieces of a method for a number of shots


def chunks(count: int, settings: EpisodeSettings, method: Method) -> list[range]:
    """Consecutive episodes, of `count` in all, that are computed together."""
    size = CHUNK if settings.kind.incremental else REGULAR_CHUNK
    size = method.at_a_time or (MOVING_CHUNK if method.moves_network else size)
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
        base_features: Callable[[], Tensor] | None = None,
        learnt: FindPieces | None = None,
        lengths: Callable[[], Tensor] | None = None,
        mid: Callable[[], FeatureBank | None] | None = None,
        knowledge: Callable[[], BaseKnowledge | None] | None = None,
    ) -> None:
        self._bank = bank
        self._lengths = lengths
        self._mid = mid
        self._knowledge = knowledge
        self._own_scores: tuple[tuple[Any, ...], Tensor] | None = None
        self._network = network
        self._base_features = base_features
        self._learnt = learnt
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

    @property
    def keeping_seconds(self) -> float:
        """How long the network has been computing what it keeps; 0 as long as nobody moved it."""
        network: Network | None = self.__dict__.get("network")
        return network.keeping_seconds if network else 0.0

    @cached_property
    def base_features(self) -> Tensor:
        """A few features of base/train per base class [N_b, m, d], for methods that use them."""
        if self._base_features is None:
            raise FewgraftError("this method uses features of base/train, and there are none here")
        return self._base_features()

    @cached_property
    def lengths(self) -> Tensor:
        """How long the bank's features were before they became directions [m]."""
        if self._lengths is None:
            raise FewgraftError("this method needs the lengths of features, and there are none")
        return self._lengths()

    def _lengths_of(self, episodes: Episodes, rows: slice) -> tuple[Tensor, Tensor]:
        support, unlabelled = episodes.support[rows], episodes.unlabelled[rows]
        return self.lengths[self.bank.row[support]], self.lengths[self.bank.row[unlabelled]]

    @cached_property
    def mid(self) -> FeatureBank | None:
        """Mid-level features of the same pictures; None: the network gives none."""
        return self._mid() if self._mid else None

    def _mid_of(self, episodes: Episodes, rows: slice) -> tuple[Tensor, Tensor] | None:
        support, unlabelled = episodes.support[rows], episodes.unlabelled[rows]
        return (self.mid[support], self.mid[unlabelled]) if self.mid else None

    @cached_property
    def knowledge(self) -> BaseKnowledge | None:
        """What is kept of base classes beside W_b; None: nothing."""
        return self._knowledge() if self._knowledge else None

    def learnt(self, method: Method, shots: int) -> LearntTensors | None:
        """What a method has learnt beforehand; None for one that learns nothing."""
        if not method.pieces:
            return None
        if self._learnt is None:
            raise FewgraftError(
                f"'{method.pieces}' needs what it has learnt beside a model",
                "Features alone are enough for methods that learn nothing beforehand.",
            )
        return self._learnt(method, shots)

    @cached_property
    def _base_scores(self) -> Tensor:
        """γ·cos(f, w) of every picture in the bank [m, N_b]."""
        return direction_logits(self.bank.features, self.weights, self.gamma)

    def base_logits(self, pictures: Tensor, n_base: int, method: Method | None = None) -> Tensor:
        """[..., n_base] of pictures [...]; a setting without base classes has none."""
        return self._scores_for(method)[self.bank.row[pictures], :n_base]

    def _scores_for(self, method: Method | None) -> Tensor:
        """What a method makes of every picture in the bank [m, N_b]; kept for one method."""
        if method is None or not method.uses_knowledge:
            return self._base_scores
        key = (type(method), *(getattr(method, name) for name in method.for_base))
        if self._own_scores is None or self._own_scores[0] != key:
            scores = method.base_scores(self.bank.features, self._base_scores, self.knowledge)
            self._own_scores = (key, scores)
        return self._own_scores[1]

    def task(self, episodes: Episodes, rows: slice, method: Method | None = None) -> Task:
        """Some of the episodes with all that a method needs; None needs features only."""
        task = self._plain_task(episodes, rows, method)
        if method is None:
            return task
        looks = method.moves_network or method.uses_pictures
        return dataclasses.replace(
            task,
            pictures=self._pictures_of(episodes, rows, method) if looks else None,
            learnt=self.learnt(method, episodes.settings.shots),
            base_features=self.base_features if method.uses_base_features else None,
            lengths=self._lengths_of(episodes, rows) if method.uses_lengths else None,
            mid=self._mid_of(episodes, rows) if method.uses_mid_features else None,
            knowledge=self.knowledge if method.uses_knowledge else None,
        )

    def _pictures_of(self, episodes: Episodes, rows: slice, method: Method) -> TaskPictures:
        support, unlabelled = episodes.support[rows], episodes.unlabelled[rows]
        base = self.base_pictures if method.uses_base_features else None
        return TaskPictures(self.network, self.places(support), self.places(unlabelled), base)

    def places(self, pictures: Tensor) -> Tensor:
        """Where the network has pictures [...]."""
        return pictures

    @cached_property
    def base_pictures(self) -> Tensor | None:
        """What `base_features` are of, as places in the network [N_b, m]; None: features alone."""
        return None

    def _plain_task(self, episodes: Episodes, rows: slice, method: Method | None) -> Task:
        support, unlabelled = episodes.support[rows], episodes.unlabelled[rows]
        return Task(
            ways=episodes.settings.ways,
            support=self.bank[support],
            labels=(episodes.support_labels[rows] - episodes.n_base).to(self.weights.device),
            unlabelled=self.bank[unlabelled],
            base_unlabelled=self.base_logits(unlabelled, episodes.n_base, method),
            weights=self.weights[: episodes.n_base],
            gamma=self.gamma,
            numbers=torch.arange(len(episodes), device="cpu")[rows],
        )

    def queries(
        self,
        episodes: Episodes,
        rows: slice,
        task: Task | None = None,
        method: Method | None = None,
    ) -> Queries:
        """The pictures to classify in these episodes; where U is Q, their task has them already."""
        query = episodes.query[rows]
        if task is not None and episodes.settings.kind.unlabelled == "query":
            return Queries(task.unlabelled, task.base_unlabelled, self.places(query))
        base_logits = self.base_logits(query, episodes.n_base, method)
        return Queries(self.bank[query], base_logits, self.places(query))

    @torch.no_grad()
    def logits(self, method: Method, episodes: Episodes, rows: slice) -> Tensor:
        """What a method answers in some of the episodes [e, Q, N_b+N]."""
        task = self.task(episodes, rows, method)
        return method.fit(task).logits(self.queries(episodes, rows, task, method))

    @torch.no_grad()
    def scores_of_each(
        self, methods: Sequence[Method], episodes: Episodes, labels: QueryLabels, some: range
    ) -> list[Scores]:
        """Scores of methods that learn the same and answer differently, in consecutive episodes."""
        rows = slice(some.start, some.stop)
        task = self.task(episodes, rows, methods[0])
        queries = self.queries(episodes, rows, task, methods[0])
        fitted: Any = methods[0].fit(task)
        answers = (dataclasses.replace(fitted, config=method).logits(queries) for method in methods)
        return [score(a.cpu(), labels.query_labels[rows], episodes.n_base) for a in answers]

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
    """A model over the pictures of a split; its features are kept on disk, in `root`.

    What methods have learnt lies beside the model, in the folder `models`, unless `learnt` has it.
    """

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        split: str = "test",
        root: Path | None = None,
        models: Path | None = None,
        learnt: FindPieces | None = None,
        views: int = 1,
    ) -> None:
        check_classes(model, store)
        self.model = model
        self.store = store
        self.split = split
        self.views = views  # of each picture, whose features are averaged
        self._models, self._root = models, root
        self._pieces: dict[tuple[str, int], Pieces] = {}
        device = model.weight.device
        super().__init__(
            lambda: feature_bank(model, store, self._pictures(), root, views).to(device),
            model.weight.detach(),
            model.gamma.item(),
            self._network_of_pictures,
            lambda: kept_features(model, store, root, views).to(device),
            learnt or (lambda method, shots: self.pieces(method, shots).tensors),
            lambda: feature_lengths(model, store, self._pictures(), root, views).to(device),
            self._mid_bank,
            self._known,
        )

    def _network_of_pictures(self) -> Network:
        if self.views > 1:
            raise FewgraftError(
                "a method that looks at pictures itself takes them as they are",
                "Leave the number of views out, or choose a method that works on features.",
            )
        return Network(self.model, self.store.pictures)

    def _mid_bank(self) -> FeatureBank | None:
        found = mid_bank(self.model, self.store, self._pictures(), self._root, self.views)
        return found.to(self.weights.device) if found else None

    def _known(self) -> BaseKnowledge:
        """Stored beside the model, else computed from base/train: it is the same either way."""
        stage, beside = self.model.card.stage, self._models
        if beside is not None and has_knowledge(beside, stage):
            found, _ = load_knowledge(beside, stage, self.weights, self.weights_hash)
        else:
            found = base_knowledge(self.model, self.store, self._root)
        return found.to(self.weights.device)

    def pieces(self, method: Method, shots: int) -> Pieces:
        """What a method has learnt on exactly this model, with its card."""
        method = method.learner
        key = (method.pieces, shots)
        if key not in self._pieces:
            if self._models is None:
                raise FewgraftError(
                    f"'{method.pieces}' needs what it has learnt beside the model",
                    "Give the folder of a training run instead of a model.",
                )
            found = load_pieces(self._models, *key)
            check_shapes(found, self._initial(method, shots))
            device = self.weights.device
            tensors = {name: tensor.to(device) for name, tensor in found.tensors.items()}
            self._pieces[key] = dataclasses.replace(found, tensors=tensors)
        hyper = dataclasses.asdict(method)  # type: ignore[call-overload]
        check_pieces(self._pieces[key], hyper, self.weights_hash, method.search)
        return self._pieces[key]

    def learnt_hash(self, method: Method, shots: int) -> str:
        """A name for exactly what a method has learnt or knows beforehand; "" for nothing."""
        if method.uses_knowledge:
            return self.knowledge.hash if self.knowledge else ""
        return self.pieces(method, shots).hash if method.pieces else ""

    def _initial(self, method: Method, shots: int) -> LearntTensors:
        """What pieces look like."""
        assert isinstance(method, TrainedMethod)
        weights, rng = self.weights.cpu(), torch.Generator()
        return pieces_before(method, weights, self.gamma, shots, rng, lambda: self.network)

    @cached_property
    def base_pictures(self) -> Tensor:
        """The same few pictures of base/train per class."""
        return self.places(torch.from_numpy(base_pictures(self.store)))

    def _pictures(self) -> Indices:
        return split_pictures(self.store, self.split)

    @property
    def data(self) -> str:
        """Name of the data."""
        return self.store.manifest.name

    @property
    def content(self) -> str:
        """A name for exactly this data."""
        return self.store.manifest.content

    @property
    def backbone(self) -> str:
        """Name of the model's backbone."""
        return self.model.card.backbone

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
