"""Pre-training: f_θ and W_b on base/train with the cosine classifier (Eq. 1).

Optionally the features also have to tell by how much a picture was rotated.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from fewgraft.augment import augment
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices, KeyStream
from fewgraft.feature_bank import pixels_of
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.model import CosineModel, embed_all
from fewgraft.prototypes import cosine_logits
from fewgraft.training.phase import Phase, Shard
from fewgraft.training.recipe import Pretraining, Recipe
from fewgraft.training.validation import Validator


class Pretrain(Phase):
    """Supervised training, a batch a step."""

    name = "pretraining"

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        recipe: Recipe,
        config: Pretraining | None = None,
    ) -> None:
        self.model = model
        self._store = store
        self._config = config or recipe.pretraining
        self._seed = recipe.seed
        self._pictures = store.indices(Part.BASE_TRAIN)
        self._validator = Validator(store, recipe, "incremental")
        self._rotation_head = _rotation_head(model, self._seed) if self._config.rotation else None
        self._epoch: tuple[int, Indices] = (-1, np.empty(0, np.int64))
        self.steps = self._config.steps
        self.validate_every = self._config.validate_every
        self.optimisation = self._config.optimisation

    @property
    def learner(self) -> nn.Module:
        """The model, and the head that tells rotations."""
        if self._rotation_head is None:
            return self.model
        return nn.ModuleDict({"model": self.model, "rotation_head": self._rotation_head})

    def loss(self, step: int, shard: Shard) -> tuple[Tensor, float]:
        """Cross-entropy over the base classes, and over the rotations if asked for."""
        rng = torch.Generator().manual_seed(_mixed(self._seed, step, shard.number))
        pictures, labels = self._batch(step, shard, rng)
        rotated, quarters = self._rotated(pictures, rng)
        features = self.model.embed(torch.cat([pictures, rotated]))
        upright = features[: len(labels)]
        logits = cosine_logits(upright, self.model.weight, self.model.gamma)
        loss = self._class_loss(logits, labels, pictures)
        if self._rotation_head is not None and self._config.rotation is not None:
            guesses = self._rotation_head(features[len(labels) :])
            loss = loss + self._config.rotation.weight * cross_entropy(guesses, quarters)
        accuracy = (logits.detach().argmax(1) == labels).float().mean().item()
        return loss, accuracy

    def _class_loss(self, logits: Tensor, labels: Tensor, pictures: Tensor) -> Tensor:
        """Of logits [b, N_b] against labels [b]; the pictures are for whoever wants to look."""
        del pictures
        return cross_entropy(logits, labels)

    def _rotated(self, pictures: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The first pictures of the batch again, rotated by quarters [m] in 0 … 3; m may be 0."""
        share = self._config.rotation.share if self._config.rotation else 0.0
        again = pictures[: round(share * len(pictures))]
        quarters = torch.randint(4, (len(again),), generator=rng)
        rotated = torch.empty_like(again)
        for quarter in range(4):
            rotated[quarters == quarter] = torch.rot90(again[quarters == quarter], quarter, (2, 3))
        return rotated, quarters.to(pictures.device)

    def _batch(self, step: int, shard: Shard, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Prepared pictures [b, c, h, w] and labels [b] of this shard of the step."""
        chosen = self._chosen(step)[shard.number :: shard.of]
        pixels = torch.from_numpy(self._store.pictures[chosen])
        labels = torch.from_numpy(self._store.labels[chosen]).long()
        pictures = self.model.prepare(augment(pixels, self._config.augmentation, rng))
        if self._config.small_size and step < self._config.small_share * self.steps:
            size = self._config.small_size
            pictures = interpolate(pictures, (size, size), mode="bilinear", antialias=True)
        return pictures, labels.to(pictures.device)

    def _chosen(self, step: int) -> Indices:
        """The pictures of a step: every epoch is a permutation of its own."""
        batch = min(self._config.batch, len(self._pictures))
        steps_an_epoch = len(self._pictures) // batch
        epoch, place = divmod(step, steps_an_epoch)
        if self._epoch[0] != epoch:
            self._epoch = epoch, KeyStream(self._seed, epoch).permutation(len(self._pictures))
        return self._pictures[self._epoch[1][place * batch :][:batch]]

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Imprinting on val episodes, without unlabelled pictures."""
        pixels = pixels_of(self._store, self._validator.pictures.numpy())
        features = embed_all(self.model, pixels)
        scores = self._validator.scores(self.model, features, NearestPrototype())
        return self._validator.figures(scores, self._config.selection)


def _rotation_head(model: CosineModel, seed: int) -> nn.Linear:
    """Features [n, d] → which of four quarters [n, 4]; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(model.card.width, 4).to(model.weight.device)


def _mixed(seed: int, step: int, number: int) -> int:
    """One number for a generator out of three."""
    return int(KeyStream(seed, step).keys(number + 1)[number] >> np.uint64(1))
