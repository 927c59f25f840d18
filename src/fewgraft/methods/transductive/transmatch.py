"""TransMatch (head): MixMatch moves a classifier that was imprinted from the support.

Yu, Chen, Cheng, Luo, "TransMatch: a transfer-learning scheme for semi-supervised few-shot
learning", CVPR 2020. The classifier begins as the mean direction of every class's supports over
augmented views, with cosine scores s·cos. MixMatch (Berthelot et al., NeurIPS 2019) then descends
on batches of 16 supports and 16 unlabelled pictures in two views each: an unlabelled picture's
label is the sharpened mean of the answers to both views; all 48 are mixed in pairs; the labelled
part counts by cross-entropy, the other by the squared error of probabilities.

    q ∝ p^(1/T),   x ← λ x + (1 − λ) x',   y ← λ y + (1 − λ) y',   λ ≥ ½ from Beta(¾, ¾)

Ours: the classifier W and its scale s move, the network does not; directions of kept views are
mixed, not pictures. The paper moves the whole network for minutes per task, and needs its pictures
afresh in every step. Rates are for W alone, and there is no weight decay: the rows of W are
directions after every step, as in the paper. Which pictures meet in a step depends on the
episode's number, not on the order of U. Each query is answered alone, by W. It assumes no balance
of classes. There is no place for base classes in it.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewgraft.draws import KeyStream
from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.moving import pictures_of
from fewgraft.prototypes import directions, join_logits, members_of, prototypes

BETA = 0.75  # of the mixing coefficient
TRIES = 40  # draws for one mixing coefficient; nearly two in three are taken


@dataclass(frozen=True)
class TransMatch(Method):
    """MixMatch on the features of augmented views."""

    uses_unlabelled = True
    uses_pictures = True
    search: ClassVar[Search] = {
        "weight": (5.0, 15.0, 50.0, 150.0),
        "lr": (0.001, 0.003, 0.01, 0.03, 0.1),
        "steps": (200, 600),
    }
    search_by = "coordinates"

    steps: int = 200
    lr: float = 0.01
    momentum: float = 0.9
    temperature: float = 0.5  # T
    weight: float = 5.0  # of the loss on U
    batch: int = 16  # of supports, and of U
    views: int = 2  # kept augmented views of each picture, 2 or more
    mixes: bool = True

    def fit(self, task: Task) -> "ScaledWeights | NovelWeights":
        """Every episode begins anew; an empty unlabelled set leaves the prototypes."""
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        seen = Views.of(task, self.views)
        weights = prototypes(directions(seen.support.mean(0)), task.labels, task.ways)
        scale = task.support.new_full((len(task), 1, 1), task.gamma)
        draws = [self.draws(task, int(number)) for number in task.numbers]
        with torch.enable_grad():
            return self.descended(seen, draws, weights.detach(), scale)

    def draws(self, task: Task, number: int) -> "Draws":
        """What an episode of this number draws."""
        return Draws.of(
            number, self.steps, self.batch, (task.support.shape[1], task.unlabelled.shape[1])
        )

    def descended(
        self, seen: "Views", draws: "list[Draws]", weights: Tensor, scale: Tensor
    ) -> "ScaledWeights":
        """SGD with momentum from weights [E, N, d] and scale [E, 1, 1]."""
        moving = [weights.clone().requires_grad_(), scale.clone().requires_grad_()]
        speeds = [torch.zeros_like(part) for part in moving]
        for step in range(self.steps):
            loss = self.loss(seen.batch(draws, step), *moving)
            slopes = torch.autograd.grad(loss.sum(), moving)
            with torch.no_grad():
                for part, speed, slope in zip(moving, speeds, slopes, strict=True):
                    speed.mul_(self.momentum).add_(slope)
                    part.sub_(self.lr * speed)
                moving[0].copy_(directions(moving[0]))
        return ScaledWeights(moving[0].detach(), moving[1].detach())

    def loss(self, batch: "Batch", weights: Tensor, scale: Tensor) -> Tensor:
        """Of every episode [E]: labelled part by cross-entropy, unlabelled by squared error."""
        unlabelled, labelled = batch.unlabelled, batch.labelled  # [E, b, d] of two views; [E, b, d]
        guesses = [scored(view, weights, scale).softmax(-1) for view in unlabelled]
        guess = sharpened((guesses[0] + guesses[1]).detach() / 2, self.temperature)
        features = torch.cat([labelled, *unlabelled], 1)
        targets = torch.cat([batch.targets, guess, guess], 1)
        if self.mixes:
            features = directions(batch.mixed(features))
            targets = batch.mixed(targets)
        logits = scored(features, weights, scale)
        few = labelled.shape[1]
        on_support = -(targets[:, :few] * logits[:, :few].log_softmax(-1)).sum(-1).mean(-1)
        apart = logits[:, few:].softmax(-1) - targets[:, few:]
        return on_support + self.weight * apart.square().mean((1, 2))


def scored(features: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """s·cos of directions [E, n, d] and weights [E, N, d]."""
    return scale * (features @ directions(weights).transpose(1, 2))


def sharpened(shares: Tensor, temperature: float) -> Tensor:
    """p^(1/T) [..., N], which adds up to 1 again."""
    return (shares.clamp(min=torch.finfo(shares.dtype).tiny).log() / temperature).softmax(-1)


# --- batches ---


@dataclass(frozen=True)
class Draws:
    """What one episode draws beforehand, for all steps."""

    support: Tensor  # places [steps, b]
    view: Tensor  # of each of these supports [steps, b], any number
    unlabelled: Tensor  # places [steps, b]
    partners: Tensor  # who is mixed with whom [steps, 3b]
    share: Tensor  # λ [steps]

    @classmethod
    def of(cls, number: int, steps: int, size: int, counts: tuple[int, int]) -> "Draws":
        """From the episode's number alone, for so many supports and unlabelled pictures."""
        each = 6 * size + 2 * TRIES
        keys = KeyStream(number, 0).keys(steps * each).reshape(steps, each)
        parts = np.split(keys, np.cumsum([size, size, size, 3 * size]), 1)
        few, many = (
            torch.from_numpy((parts[k] % np.uint64(counts[k])).astype(np.int64)) for k in (0, 1)
        )
        view = torch.from_numpy((parts[2] >> np.uint64(33)).astype(np.int64))
        partners = torch.from_numpy(parts[3].argsort(1))
        return cls(few, view, many, partners, torch.from_numpy(_shares(parts[4])))


def _shares(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """λ ≥ ½ [steps] from keys [steps, 2·TRIES], by Jöhnk's rule: the first pair within 1."""
    uniform = (keys >> np.uint64(11)) / 2.0**53
    a, b = np.split(uniform ** (1 / BETA), 2, 1)
    first = (a + b <= 1).argmax(1)[:, None]
    a, b = (np.take_along_axis(part, first, 1)[:, 0] for part in (a, b))
    found: NDArray[np.float64] = np.maximum(a, b) / np.maximum(a + b, 1e-300)
    return found


@dataclass(frozen=True)
class Views:
    """Directions of augmented views of support [V, E, S, d] and U [V, E, U, d]."""

    support: Tensor
    unlabelled: Tensor
    targets: Tensor  # of the supports [E, S, N]

    @classmethod
    def of(cls, task: Task, count: int) -> "Views":
        """Kept views of the task's pictures; U in the order of the data set."""
        pictures = pictures_of(task)
        network = pictures.network

        def seen(chosen: Tensor) -> Tensor:
            views = [
                network.initial_features(chosen.flatten(), network.weak_view(number))
                for number in range(count)
            ]
            return torch.stack(views).view(count, *chosen.shape, -1)

        targets = members_of(task.labels, task.ways, task.support.dtype)
        return cls(seen(pictures.support), seen(pictures.unlabelled.sort(1).values), targets)

    def batch(self, draws: list[Draws], step: int) -> "Batch":
        """What all episodes see in a step."""
        device = self.support.device
        every = torch.arange(len(draws), device=device)[:, None]
        few, view, many, partners = (
            torch.stack([getattr(draw, name)[step] for draw in draws]).to(device)
            for name in ("support", "view", "unlabelled", "partners")
        )
        share = torch.stack([draw.share[step] for draw in draws]).to(self.support)[:, None, None]
        return Batch(
            self.support[view % len(self.support), every, few],
            self.targets[every, few],
            [self.unlabelled[view, every, many] for view in (0, 1)],
            partners,
            share,
        )


@dataclass(frozen=True)
class Batch:
    """b supports and b pictures of U in two views."""

    labelled: Tensor  # [E, b, d]
    targets: Tensor  # [E, b, N]
    unlabelled: list[Tensor]  # of each view [E, b, d]
    partners: Tensor  # [E, 3b]
    share: Tensor  # λ [E, 1, 1]

    def mixed(self, values: Tensor) -> Tensor:
        """λ x + (1 − λ) x' of values [E, 3b, ...]."""
        others = values.gather(1, self.partners[..., None].expand_as(values))
        return self.share * values + (1 - self.share) * others


@dataclass(frozen=True)
class ScaledWeights:
    """A cosine classifier with a scale per episode."""

    weights: Tensor  # [E, N, d]
    scale: Tensor  # [E, 1, 1]

    def logits(self, queries: Queries) -> Tensor:
        """s·cos(q, w), each query alone."""
        found = scored(queries.features, self.weights, self.scale)
        return join_logits(queries.base_logits, found)


METHODS = (
    MethodSpec(
        "transmatch", "TransMatch (head)", TransMatch(), "algorithm-1", rank=28, joint=False
    ),
)
