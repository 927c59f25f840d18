"""Pre-training: f_θ and W_b on base/train with the cosine classifier (Eq. 1).

Optionally the features also have to tell by how much a picture was turned.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from fewgraft.augment import augment
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices, KeyStream
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.model import CosineModel, embed_all
from fewgraft.prototypes import cosine_logits
from fewgraft.training.phase import Phase, Share
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
        how: Pretraining | None = None,
    ) -> None:
        self.model = model
        self._store = store
        self._how = how or recipe.pretraining
        self._seed = recipe.seed
        self._pictures = store.indices(Part.BASE_TRAIN)
        self._validator = Validator(store, recipe, "incremental")
        self._turn_head = _turn_head(model, self._seed) if self._how.rotation else None
        self._epoch: tuple[int, Indices] = (-1, np.empty(0, np.int64))
        self.steps = self._how.steps
        self.validate_every = self._how.validate_every
        self.optimisation = self._how.optimisation

    @property
    def learner(self) -> nn.Module:
        """The model, and the head that tells turns."""
        if self._turn_head is None:
            return self.model
        return nn.ModuleDict({"model": self.model, "turn_head": self._turn_head})

    def loss(self, step: int, share: Share) -> tuple[Tensor, float]:
        """Cross-entropy over the base classes, and over the turns if asked for."""
        rng = torch.Generator().manual_seed(_mixed(self._seed, step, share.number))
        pictures, labels = self._batch(step, share, rng)
        turned, turns = self._turned(pictures, rng)
        features = self.model.embed(torch.cat([pictures, turned]))
        upright = features[: len(labels)]
        logits = cosine_logits(upright, self.model.weight, self.model.gamma)
        loss = self._class_loss(logits, labels, pictures)
        if self._turn_head is not None and self._how.rotation is not None:
            guesses = self._turn_head(features[len(labels) :])
            loss = loss + self._how.rotation.weight * cross_entropy(guesses, turns)
        accuracy = (logits.detach().argmax(1) == labels).float().mean().item()
        return loss, accuracy

    def _class_loss(self, logits: Tensor, labels: Tensor, pictures: Tensor) -> Tensor:
        """Of logits [b, N_b] against labels [b]; the pictures are for whoever wants to look."""
        del pictures
        return cross_entropy(logits, labels)

    def _turned(self, pictures: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The first pictures of the batch again, by quarter turns [m] in 0 … 3; m may be 0."""
        share = self._how.rotation.share if self._how.rotation else 0.0
        again = pictures[: round(share * len(pictures))]
        turns = torch.randint(4, (len(again),), generator=rng)
        turned = torch.empty_like(again)
        for quarter in range(4):
            turned[turns == quarter] = torch.rot90(again[turns == quarter], quarter, (2, 3))
        return turned, turns.to(pictures.device)

    def _batch(self, step: int, share: Share, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Prepared pictures [b, c, h, w] and labels [b] of this share of the step."""
        chosen = self._chosen(step)[share.number :: share.of]
        pixels = torch.from_numpy(self._store.pictures[chosen])
        labels = torch.from_numpy(self._store.labels[chosen]).long()
        pictures = self.model.prepare(augment(pixels, self._how.augmentation, rng))
        if self._how.small_size and step < self._how.small_share * self.steps:
            size = self._how.small_size
            pictures = interpolate(pictures, (size, size), mode="bilinear", antialias=True)
        return pictures, labels.to(pictures.device)

    def _chosen(self, step: int) -> Indices:
        """The pictures of a step: every epoch is a permutation of its own."""
        batch = min(self._how.batch, len(self._pictures))
        steps_an_epoch = len(self._pictures) // batch
        epoch, place = divmod(step, steps_an_epoch)
        if self._epoch[0] != epoch:
            self._epoch = epoch, KeyStream(self._seed, epoch).permutation(len(self._pictures))
        return self._pictures[self._epoch[1][place * batch :][:batch]]

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Imprinting on val episodes, without unlabelled pictures."""
        pixels = self._store.pictures[self._validator.pictures.numpy()]
        features = embed_all(self.model, pixels)
        scores = self._validator.scores(self.model, features, NearestPrototype())
        return self._validator.figures(scores, self._how.selection)


def _turn_head(model: CosineModel, seed: int) -> nn.Linear:
    """Features [n, d] → which of four turns [n, 4]; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(model.card.width, 4).to(model.weight.device)


def _mixed(seed: int, step: int, number: int) -> int:
    """One number for a generator out of three."""
    return int(KeyStream(seed, step).keys(number + 1)[number] >> np.uint64(1))
