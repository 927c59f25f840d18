"""Adaptation that distils the refined classifier over all classes: our variant of the paper's.

The paper distils base-class predictions only and leaves the border between base and novel classes
to the other two losses (adaptation.py). Here the teacher is the refined joint classifier, over all
N_b+N columns. It may see the mean of several views of each picture (`teacher_views`) and hold novel
classes back a little (`teacher_bias`), as the student otherwise drifts towards them. W_n moves
along. Going part of the way back (`start_share`) averages the weights before and after. With
`base = "kept"` the moved network scores novel classes only and base classes are scored as before,
so that none of them can be forgotten but by losing to a novel one. L_cls and L_ctr may weigh 0, as
they do in the recipes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fewgraft.methods.adaptation import Adaptation
from fewgraft.methods.base import MethodSpec, Search, Task
from fewgraft.methods.moving import AdaptedSolution, AdaptedWeights, pictures_of
from fewgraft.prototypes import direction_logits, directions

if TYPE_CHECKING:
    from fewgraft.network import Network, View


@dataclass(frozen=True)
class DistilledAdaptation(Adaptation):
    """The refined classifier, distilled into a network that moves."""

    search: ClassVar[Search] = {}  # looked for by hand: docs/lab-notes.md
    positive: ClassVar[tuple[str, ...]] = ("w_dst",)

    lr: float = 5e-3
    teacher_views: int = 0  # augmented views that the teacher sees beside the picture itself
    teacher_bias: float = 0.0  # on the teacher's novel logits
    start_share: float = 0.0  # of the weights before adaptation in those that answer
    base: Literal["moved", "kept"] = "moved"  # kept: base classes are scored as before

    def fit(self, task: Task) -> AdaptedSolution:
        """Every episode starts anew."""
        return replace(super().fit(task), keeps_base=self.base == "kept")

    def _episode(self, task: Task, e: int) -> AdaptedWeights:
        """The paper's, but for the teacher and the way back."""
        support, unlabelled = self._seen_by_teacher(task, e)
        kept = task.base_unlabelled[e] if self.base == "kept" else None
        base = direction_logits(unlabelled, task.weights, task.gamma) if kept is None else kept
        novel = self._refined(task, e, support, unlabelled, base)
        adapted, start = self._start(task, novel), self._start(task, novel)
        if len(unlabelled):
            teacher = self._teacher_logits(task, start, unlabelled)
            self._descend(task, e, adapted, lambda places, views: repeated(teacher[places], views))
        return self._answering(task, e, adapted.interpolate(start, self.start_share), kept)

    def _start(self, task: Task, novel: Tensor) -> AdaptedWeights:
        """{θ̄, W̄_b} and the refined prototypes: all of it may move."""
        return AdaptedWeights.start(pictures_of(task).network, task.weights, novel)

    def _seen_by_teacher(self, task: Task, e: int) -> tuple[Tensor, Tensor]:
        """Features of support [S, d] and U [U, d] as training left the network."""
        support, unlabelled = task.support[e], task.unlabelled[e]
        if not self.teacher_views:
            return support, unlabelled
        pictures, views = pictures_of(task), self.teacher_views
        return (
            mean_view(pictures.network, pictures.support[e], support, views),
            mean_view(pictures.network, pictures.unlabelled[e], unlabelled, views),
        )

    @torch.no_grad()
    def _teacher_logits(self, task: Task, start: AdaptedWeights, unlabelled: Tensor) -> Tensor:
        """What U's features [U, d] were taken for before: logits [U, N_b+N]."""
        logits = start.logits(unlabelled, task.gamma)
        logits[:, len(task.weights) :] += self.teacher_bias
        return logits


def repeated(logits: Tensor, views: "Sequence[View]") -> Tensor:
    """The same answers [B, C] for every view: [V·B, C]."""
    return logits.repeat(len(views), 1)


@torch.no_grad()
def mean_view(network: "Network", pictures: Tensor, features: Tensor, views: int) -> Tensor:
    """Directions [n, d] of pictures [n], as training left the network.

    The mean over the picture itself, whose direction [n, d] is known, and augmented views.
    """
    if len(pictures) == 0:
        return features
    others = (network.initial_features(pictures, network.weak_view(v)) for v in range(views))
    return directions(sum(others, features))


METHODS = (
    MethodSpec(
        "distilled-adaptation",
        "Proposed, distilled adaptation (ours)",
        DistilledAdaptation(),
        "algorithm-2",
        rank=9,
        builds_on="proposed-without-adaptation",
    ),
)
