"""Distilled adaptation with more freedom than it ships with, for adaptation_search.py.

A method file as anybody can write one (docs/benchmark.md): a teacher of base columns only, or one
that is sharper than its student; confident answers of the teacher as labels; only a part that
moves; gradients of bounded length; the step at which left-out shots are told best.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fewgraft.errors import FewgraftError
from fewgraft.methods.adaptation import Teacher
from fewgraft.methods.base import MethodSpec, Task
from fewgraft.methods.distilled_adaptation import DistilledAdaptation
from fewgraft.methods.moving import AdaptedWeights, batches, descend, pictures_of
from fewgraft.network import View
from fewgraft.prototypes import TINY, members_of


@dataclass(frozen=True)
class WiderAdaptation(DistilledAdaptation):
    """As registered, unless one of these says otherwise."""

    positive: ClassVar[tuple[str, ...]] = ()

    columns: Literal["base", "all"] = "all"  # what is distilled
    sharpness: float = 1.0  # factor on the teacher's logits
    w_pseudo: float = 0.0  # cross-entropy on what the teacher is sure of, base classes included
    threshold: float = 0.8
    part: Literal["all", "network", "norm", "weights"] = "all"  # that moves
    clip: float | None = None  # longest gradient of a step
    early: bool = False  # stop where the support's leave-one-out loss is lowest

    def _start(self, task: Task, novel: Tensor) -> AdaptedWeights:
        adapted = super()._start(task, novel)
        for parameter in adapted.parameters.values():
            scale_or_shift = parameter.ndim == 1
            parameter.requires_grad_(
                self.part in ("all", "network") or (self.part == "norm" and scale_or_shift)
            )
        for weights in (adapted.base, adapted.novel):
            weights.requires_grad_(self.part in ("all", "weights"))
        return adapted

    @torch.no_grad()
    def _teacher_logits(self, task: Task, start: AdaptedWeights, unlabelled: Tensor) -> Tensor:
        return self.sharpness * super()._teacher_logits(task, start, unlabelled)

    def _descend(self, task: Task, e: int, adapted: AdaptedWeights, teacher: Teacher) -> None:
        if not self.early:
            super()._descend(task, e, adapted, teacher)
            return
        batch = batches(task.unlabelled.shape[1], self.batch, int(task.numbers[e]))
        stops: list[AdaptedWeights] = []

        def loss(step: int) -> Tensor:
            stops.append(adapted.detached())
            return self._loss(task, e, adapted, teacher, batch(step), step)

        descend(adapted, loss, self.steps, self.lr, self.momentum)
        stops.append(adapted.detached())
        best = min(stops, key=lambda stop: left_out(task, e, stop))
        with torch.no_grad():
            for parameter, value in zip(adapted.all(), best.all(), strict=True):
                parameter.copy_(value)

    def _loss(
        self,
        task: Task,
        e: int,
        adapted: AdaptedWeights,
        teacher: Teacher,
        places: Tensor,
        step: int,
    ) -> Tensor:
        return clipped(self._wider(task, e, adapted, teacher, places, step), adapted, self.clip)

    def _wider(
        self,
        task: Task,
        e: int,
        adapted: AdaptedWeights,
        teacher: Teacher,
        places: Tensor,
        step: int,
    ) -> Tensor:
        width = len(task.weights) + (task.ways if self.columns == "all" else 0)

        def some_columns(places: Tensor, views: Sequence[View]) -> Tensor:
            return teacher(places, views)[:, :width]

        loss = super()._loss(task, e, adapted, some_columns, places, step)
        if not self.w_pseudo:
            return loss
        pictures = pictures_of(task)
        network, chosen = pictures.network, pictures.unlabelled[e][places]
        view = network.weak_view(step % self.views)
        seen = network.trunk_activations(chosen, view)
        logits = adapted.logits(network.head_features(seen, adapted.parameters), task.gamma)
        belief, answer = teacher(places, [view]).softmax(-1).max(-1)
        each = cross_entropy(logits, answer, reduction="none") * (belief >= self.threshold)
        return loss + self.w_pseudo * each.mean()


def clipped(loss: Tensor, adapted: AdaptedWeights, longest: float | None) -> Tensor:
    """The loss, scaled so that its gradient over all that moves is no longer than this."""
    if longest is None:
        return loss
    moving = [parameter for parameter in adapted.all() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, moving, retain_graph=True)
    length = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
    return loss * min(1.0, longest / max(length, TINY))


@torch.no_grad()
def left_out(task: Task, e: int, adapted: AdaptedWeights) -> float:
    """Cross-entropy of each support picture over all classes, its own prototype without it."""
    pictures, labels = pictures_of(task), task.labels[e]
    if labels.bincount(minlength=task.ways).min() < 2:
        raise FewgraftError("leaving a shot out needs at least two of every class")
    directions = normalize(
        pictures.network.features(pictures.support[e], adapted.parameters), dim=-1
    )
    sums = members_of(labels, task.ways, directions.dtype).T @ directions
    losses = []
    for direction, label in zip(directions, labels, strict=True):
        novel = sums.clone()
        novel[label] -= direction
        logits = dataclasses.replace(adapted, novel=novel).logits(direction[None], task.gamma)
        losses.append(cross_entropy(logits, label[None] + len(task.weights)))
    return float(torch.stack(losses).mean())


METHODS = (
    MethodSpec(
        "wider-adaptation",
        "Distilled adaptation, wider",
        WiderAdaptation(),
        "algorithm-2",
        rank=9,
    ),
)
