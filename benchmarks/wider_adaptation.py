"""The proposed method with more freedom than it ships with, for adaptation_search.py.

A method file as anybody can write one (docs/benchmark.md): a teacher that is sharper than its
student, or holds novel classes back; confident answers of the teacher as labels; only a part that
moves.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.methods.adaptation import Adaptation
from fewgraft.methods.base import MethodSpec, Task
from fewgraft.methods.moving import Moved, pictures_of
from fewgraft.network import View


@dataclass(frozen=True)
class WiderAdaptation(Adaptation):
    """As registered, unless one of these says otherwise."""

    sharpness: float = 1.0  # factor on the teacher's logits
    teacher_bias: float = 0.0  # on its novel logits
    w_pseudo: float = 0.0  # cross-entropy on what the teacher is sure of, base classes included
    threshold: float = 0.8
    part: Literal["all", "network", "norm", "weights"] = "all"  # that moves

    def _start(self, task: Task, novel: Tensor) -> Moved:
        moved = super()._start(task, novel)
        for parameter in moved.parameters.values():
            scale_or_shift = parameter.ndim == 1
            parameter.requires_grad_(
                self.part in ("all", "network") or (self.part == "norm" and scale_or_shift)
            )
        for weights in (moved.base, moved.novel):
            weights.requires_grad_(self.part in ("all", "weights"))
        return moved

    @torch.no_grad()
    def _teacher(self, task: Task, start: Moved, unlabelled: Tensor) -> Tensor:
        logits = super()._teacher(task, start, unlabelled)
        logits[:, len(task.weights) :] += self.teacher_bias
        return self.sharpness * logits

    def _loss(
        self, task: Task, e: int, moved: Moved, teacher: Tensor, places: Tensor, step: int
    ) -> Tensor:
        loss = super()._loss(task, e, moved, teacher, places, step)
        if not self.w_pseudo:
            return loss
        pictures = pictures_of(task)
        network, chosen = pictures.network, pictures.unlabelled[e][places]
        seen = network.below(chosen, View(network.weak, step % self.views))
        logits = moved.logits(network.above(seen, moved.parameters), task.gamma)
        belief, answer = teacher[places].softmax(-1).max(-1)
        each = cross_entropy(logits, answer, reduction="none") * (belief >= self.threshold)
        return loss + self.w_pseudo * each.mean()


METHODS = (
    MethodSpec("proposed-wider", "Proposed, wider", WiderAdaptation(), "algorithm-2", rank=8),
)
