"""Meta-training: Algorithm 1 (Meta-Inc-Baseline) and Algorithm 2 (with fake unlabelled data).

Both sample incremental few-shot episodes from novel/train and base/train, build W = [W_b, W_n] and
descend on the cross-entropy of the queries. Algorithm 2 also samples an unlabelled set, whose
labels it never looks at, and refines W_n with it (Eqs. 3–4), so that the network learns features
with which refinement does not blur base and novel classes.
"""

import itertools
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fewgraft.augment import augment
from fewgraft.data.store import ImageStore
from fewgraft.draws import KeyStream
from fewgraft.episodes import Episodes, EpisodeSettings
from fewgraft.feature_bank import pixels_of
from fewgraft.methods.base import Method
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.model import CosineModel
from fewgraft.network import KeptActivations, Network, View
from fewgraft.prototypes import (
    direction_logits,
    directions,
    join_logits,
    prototypes,
    refine,
    without_columns,
)
from fewgraft.training.fake_novel import FakeNovel, episode_numbers
from fewgraft.training.phase import Phase, Shard
from fewgraft.training.recipe import Metatraining, Recipe
from fewgraft.training.validation import Validator

Algorithm = Literal[1, 2]


class Metatrain(Phase):
    """Algorithm 1 or 2, several episodes per step, the shots in turn."""

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        recipe: Recipe,
        algorithm: Algorithm,
        kept: KeptActivations | None = None,
    ) -> None:
        self.model = model
        self.name = f"algorithm-{algorithm}"
        self._config = recipe.metatraining
        self._seed = recipe.seed
        self._body = self.algorithm_2 if algorithm == 2 else self.algorithm_1
        self._fake_novel = FakeNovel(store, self._config.novel)
        self._settings = [_settings(recipe, shots, algorithm) for shots in self._config.shots]
        self._embedder = _Embedder(model, store, self._config, kept)
        self._validator = Validator(store, recipe, "s2i" if algorithm == 2 else "incremental")
        self._method: Method = (
            PrototypeRefinement(steps=recipe.validation.refinement_steps)
            if algorithm == 2
            else NearestPrototype()
        )
        self.steps = self._config.steps
        self.validate_every = self._config.validate_every
        self.optimisation = self._config.optimisation

    def loss(self, step: int, shard: Shard) -> tuple[Tensor, float]:
        """The body of the algorithm's loop; the loop and its update are `training.loop`'s."""
        return self._body(step, shard)

    def algorithm_1(self, step: int, shard: Shard) -> tuple[Tensor, float]:
        """Lines 2–7 of Algorithm 1, Meta-Inc-Baseline; line 8 is the update."""
        # Lines 2–4: S and Q_n from novel/train, Q_b from base/train, Q = Q_b ∪ Q_n
        episodes, query_labels = self._sample(step, shard)
        support, query, _ = self._features(episodes, step, shard)
        # Line 5: W = [W_b, W_n] with Eq. 2
        novel = prototypes(support, self._support_labels(episodes), episodes.settings.ways)
        # Line 6: Ŷ_q with Eq. 1, before the softmax
        novel_logits = direction_logits(query, novel, self.model.gamma)
        logits = join_logits(self._base_logits(query, episodes), novel_logits)
        # Line 7: L_cls(Ŷ_q, Y_q)
        return _classification_loss(logits, query_labels.to(logits.device))

    def algorithm_2(self, step: int, shard: Shard) -> tuple[Tensor, float]:
        """Lines 2–7 of Algorithm 2, with fake unlabelled data; line 8 is the update."""
        # Lines 2–4: S, Q_n and U_n from novel/train, Q_b and U_b from base/train, Q and U of both
        episodes, query_labels = self._sample(step, shard)
        support, query, unlabelled = self._features(episodes, step, shard)
        # Line 5: W_n refined with Eqs. 3–4 on U, whose labels are not looked at; W = [W_b, W_n]
        labels, gamma = self._support_labels(episodes), self.model.gamma
        novel = prototypes(support, labels, episodes.settings.ways)
        base_unlabelled = self._base_logits(unlabelled, episodes)
        novel = refine(
            novel, support, labels, unlabelled, base_unlabelled, gamma, self._config.refinement
        )
        # Line 6: Ŷ_q with Eq. 1, before the softmax
        novel_logits = direction_logits(query, novel, gamma)
        logits = join_logits(self._base_logits(query, episodes), novel_logits)
        # Line 7: L_cls(Ŷ_q, Y_q)
        return _classification_loss(logits, query_labels.to(logits.device))

    def _features(self, episodes: Episodes, step: int, shard: Shard) -> tuple[Tensor, ...]:
        """Directions [E, ·, d] of S, Q and U."""
        parts = [episodes.support, episodes.query, episodes.unlabelled]
        features = self._embedder(torch.cat(parts, dim=1), self._seed, step, shard)
        return torch.split(directions(features), [part.shape[1] for part in parts], 1)

    def _support_labels(self, episodes: Episodes) -> Tensor:
        """[E, S] in 0 … N−1."""
        return (episodes.support_labels - episodes.n_base).to(self.model.weight.device)

    def _base_logits(self, features: Tensor, episodes: Episodes) -> Tensor:
        """γ·cos(f, w) [E, ·, N_b]; base classes that the episode takes for novel are struck out."""
        logits = direction_logits(features, self.model.weight, self.model.gamma)
        absent = self._fake_novel.absent(episodes)
        return logits if absent is None else without_columns(logits, absent.to(logits.device))

    def _sample(self, step: int, shard: Shard) -> tuple[Episodes, Tensor]:
        """This shard of the step's episodes, and the labels [E, Q] of their queries."""
        settings = self._settings[step % len(self._settings)]
        numbers = episode_numbers(step, self._config.episodes, shard)
        return self._fake_novel.sample(settings, numbers)

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Val episodes in the setting that the algorithm rehearses."""
        features = self._embedder.plain(self._validator.pictures)
        return self._validator.figures(self._validator.scores(self.model, features, self._method))

    def moving(self) -> list[tuple[str, nn.Parameter]]:
        """θ (or its last block) and W_b."""
        fixed = {id(p) for p in self._embedder.trunk.parameters()}
        return [(n, p) for n, p in self.model.named_parameters() if id(p) not in fixed]

    def set_mode(self) -> None:
        """Normalisation statistics stay those of pre-training: episodes are no fair sample."""
        self.model.eval()


def _classification_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Cross-entropy of logits [E, Q, N_b+N] against labels [E, Q], and the accuracy."""
    accuracy = (logits.detach().argmax(-1) == labels).float().mean().item()
    return cross_entropy(logits.flatten(0, 1), labels.flatten()), accuracy


def _settings(recipe: Recipe, shots: int, algorithm: Algorithm) -> EpisodeSettings:
    config = recipe.metatraining
    return EpisodeSettings.paper(
        "s2i" if algorithm == 2 else "incremental",
        shots,
        split="train",
        ways=config.ways,
        queries=config.queries,
        base_queries=config.base_queries,
        unlabelled=config.unlabelled if algorithm == 2 else 0,
        seed=recipe.seed,
    )


class _Embedder:
    """Features of pictures by index; with `moves = "last-block"` what lies below it is kept.

    Kept activations can be those of the mirrored picture; any other augmentation needs "all".
    """

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        config: Metatraining,
        kept: KeptActivations | None,
    ) -> None:
        self._model = model
        self._store = store
        self._config = config
        self._network = Network(model, store.pictures, config.moves, kept)
        self.trunk = self._network.trunk

    def __call__(self, pictures: Tensor, seed: int, step: int, shard: Shard) -> Tensor:
        """Features [E, n, d] of augmented pictures [E, n]; each episode has its own randomness."""
        below = []
        for row, indices in enumerate(pictures):
            number = step * self._config.episodes + row * shard.of + shard.number
            key = int(KeyStream(seed, number).keys(1)[0] >> 1)
            below.append(self._below(indices, torch.Generator().manual_seed(key)))
        return self._network.head_features(torch.cat(below)).view(*pictures.shape, -1)

    def _below(self, indices: Tensor, rng: torch.Generator) -> Tensor:
        """What enters the moving part."""
        quarters, indices = indices // len(self._store), indices % len(self._store)
        if self._config.moves == "all":
            pixels = torch.from_numpy(self._store.pictures[indices.numpy()])
            pixels = augment(pixels, self._config.augmentation, rng)
            for turn in (1, 2, 3):
                chosen = quarters == turn
                pixels[chosen] = torch.rot90(pixels[chosen], turn, (1, 2))
            return self._model.prepare(pixels)
        mirrored = torch.rand(len(indices), generator=rng) < 0.5
        return self._kept(indices, quarters, mirrored & self._config.augmentation.mirror)

    def _kept(self, indices: Tensor, quarters: Tensor, mirrored: Tensor) -> Tensor:
        """Kept activations of pictures [n], each rotated by its quarters and mirrored or not."""
        groups = []
        for turn, mirror in itertools.product(range(4), (False, True)):
            places = torch.nonzero((quarters == turn) & (mirrored == mirror)).flatten()
            if len(places):
                view = View(mirrored=mirror, quarters=turn)
                groups.append((places, self._network.trunk_activations(indices[places], view)))
        order = torch.cat([places for places, _ in groups]).argsort()
        return torch.cat([below for _, below in groups])[order]

    def plain(self, indices: Tensor, batch: int = 256) -> Tensor:
        """Features [n, d] without augmentation."""
        return torch.cat([self._fixed(some) for some in torch.split(indices, batch)])

    def _fixed(self, indices: Tensor) -> Tensor:
        if self._config.moves == "last-block":
            return self._rotated(indices)
        pixels = torch.from_numpy(pixels_of(self._store, indices.numpy()))
        return self._model.embed(self._model.prepare(pixels))

    def _rotated(self, indices: Tensor) -> Tensor:
        """Features of pictures that may be rotated, as of any other picture."""
        quarters, indices = indices // len(self._store), indices % len(self._store)
        if not quarters.any():
            return self._network.features(indices)
        found = self._model.weight.new_empty(len(indices), self._model.card.width)
        for turn in sorted(set(quarters.tolist())):
            # A rotated picture's mirror image is the mirror image, rotated the other way.
            views = [
                View(mirrored=view.mirrored, quarters=-turn % 4 if view.mirrored else turn)
                for view in self._network.views
            ]
            found[quarters == turn] = self._network.features(indices[quarters == turn], views=views)
        return found
