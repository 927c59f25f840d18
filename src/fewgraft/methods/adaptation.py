"""The proposed method: refinement, and the network adapted to each task without forgetting.

The S²I-FSL paper (BMVC 2021), Sec. 4.3. From the meta-trained {θ̄, W̄_b}, for every episode anew,
descend on w_cls·L_cls + w_ctr·L_ctr + w_dst·L_dst: cross-entropy of the support over all classes,
contrast between two views of U (Eq. 5), and distillation of U's predictions from the model as it
was (Eqs. 6–7). Then compute the prototypes again, refine, and answer.

The paper distils base-class predictions only (`columns = "base"`), which holds no border between
base and novel classes; `columns = "all"` distils the refined joint classifier instead, which may
see the mean of several views of each picture (`teacher_views`) and hold novel classes back a little
(`teacher_bias`), as the student otherwise drifts towards them. Going part of the way back
(`start_share`) averages the weights before and after. With `base = "kept"` the moved network scores
novel classes only and base classes are scored as before, so that none of them can be forgotten but
by losing to a novel one. Weights, temperatures, rate and steps are ours, chosen on validation
episodes.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.methods.base import Method, MethodSpec, Task
from fewgraft.methods.losses import distillation, nt_xent
from fewgraft.methods.moving import AdaptedSolution, AdaptedWeights, batches, descend, pictures_of
from fewgraft.prototypes import Refinement, direction_logits, directions, prototypes, refine

if TYPE_CHECKING:
    from fewgraft.network import Network


@dataclass(frozen=True)
class Adaptation(Method):
    """Refinement on a network that moves."""

    uses_unlabelled = True
    moves_network = True

    refinement_steps: int = 5
    alpha: float = 1.0
    temperature: float = 1.0  # of the pseudo-labels
    w_cls: float = 0.1
    w_ctr: float = 0.1
    w_dst: float = 1.0
    tau_ctr: float = 0.1  # τ₁
    tau_dst: float = 1.0  # τ₂
    columns: Literal["base", "all"] = "all"  # what is distilled
    teacher_views: int = 0  # augmented views that the teacher sees beside the picture itself
    teacher_bias: float = 0.0  # on the teacher's novel logits
    steps: int = 10
    lr: float = 5e-3
    momentum: float = 0.9
    batch: int = 64
    views: int = 2  # kept augmented views of each picture
    start_share: float = 0.0  # of the weights before adaptation in those that answer
    base: Literal["moved", "kept"] = "moved"  # kept: old classes are scored as before

    def fit(self, task: Task) -> AdaptedSolution:
        """Every episode starts anew."""
        episodes = [self._episode(task, e) for e in range(len(task))]
        network, keeps = pictures_of(task).network, self.base == "kept"
        return AdaptedSolution(network, episodes, task.gamma, keeps_base=keeps)

    def _episode(self, task: Task, e: int) -> AdaptedWeights:
        pictures = pictures_of(task)
        network, unlabelled_pictures = pictures.network, pictures.unlabelled[e]
        support, unlabelled = task.support[e], task.unlabelled[e]  # as training left the network
        if self.teacher_views:
            support, unlabelled = (
                mean_view(network, part, own, self.teacher_views)
                for part, own in ((pictures.support[e], support), (unlabelled_pictures, unlabelled))
            )
        novel = self._refined(task, e, support, unlabelled, task.weights)
        adapted = self._start(task, novel)
        if len(unlabelled_pictures):
            self._descend(task, e, adapted, self._teacher(task, adapted, unlabelled))
        final = adapted.interpolate(self._start(task, novel), self.start_share)
        with torch.no_grad():
            support, unlabelled = (
                network.features(part, final.parameters)
                for part in (pictures.support[e], unlabelled_pictures)
            )
        answering = self._refined(task, e, support, unlabelled, final.base)
        return dataclasses.replace(final, novel=answering)

    def _start(self, task: Task, novel: Tensor) -> AdaptedWeights:
        """{θ̄, W̄_b} and the refined prototypes: all of it may move."""
        return AdaptedWeights.start(pictures_of(task).network, task.weights, novel)

    @torch.no_grad()
    def _teacher(self, task: Task, start: AdaptedWeights, unlabelled: Tensor) -> Tensor:
        """What U's features [U, d] were taken for before: logits [U, N_b+N]."""
        logits = start.logits(unlabelled, task.gamma)
        logits[:, len(task.weights) :] += self.teacher_bias
        return logits

    def _descend(self, task: Task, e: int, adapted: AdaptedWeights, teacher: Tensor) -> None:
        """Move θ, W_b and W_n; the teacher's logits [U, N_b+N] stay what they are."""
        batch = batches(len(teacher), self.batch, int(task.numbers[e]))
        descend(
            adapted,
            lambda step: self._loss(task, e, adapted, teacher, batch(step), step),
            self.steps,
            self.lr,
            self.momentum,
        )

    def _loss(
        self,
        task: Task,
        e: int,
        adapted: AdaptedWeights,
        teacher: Tensor,
        places: Tensor,
        step: int,
    ) -> Tensor:
        """w_cls·L_cls + w_ctr·L_ctr + w_dst·L_dst on one batch of U."""
        pictures = pictures_of(task)
        network, n_base = pictures.network, len(task.weights)
        chosen = pictures.unlabelled[e][places]
        one, other = (network.weak_view((step + turn) % self.views) for turn in (0, 1))
        seen = [
            network.trunk_activations(pictures.support[e]),
            network.trunk_activations(chosen, one),
            network.trunk_activations(chosen, other),
        ]
        features = network.head_features(torch.cat(seen), adapted.parameters)
        few, first, second = torch.split(features, [len(part) for part in seen])
        answers = adapted.logits(few, task.gamma)
        loss = self.w_cls * cross_entropy(answers, task.labels[e] + n_base)  # L_cls
        loss = loss + self.w_ctr * nt_xent(first, second, self.tau_ctr)  # L_ctr, Eq. 5
        width = n_base + (task.ways if self.columns == "all" else 0)
        if width:
            students = adapted.logits(torch.cat([first, second]), task.gamma)[:, :width]
            teachers = teacher[places, :width].repeat(2, 1)
            distilled = distillation(students, teachers, self.tau_dst)  # L_dst, Eq. 6
            loss = loss + self.w_dst * distilled
        return loss

    @torch.no_grad()
    def _refined(
        self, task: Task, e: int, support: Tensor, unlabelled: Tensor, weights: Tensor
    ) -> Tensor:
        """W_n [N, d] of one episode, from features [S, d] and [U, d]."""
        labels = task.labels[e : e + 1]
        novel = prototypes(support[None], labels, task.ways)
        if len(unlabelled):
            if self.base == "kept":
                base = task.base_unlabelled[e : e + 1]
            else:
                base = direction_logits(unlabelled[None], weights, task.gamma)
            config = Refinement(self.refinement_steps, self.alpha, self.temperature)
            novel = refine(novel, support[None], labels, unlabelled[None], base, task.gamma, config)
        return novel[0]


@torch.no_grad()
def mean_view(network: "Network", pictures: Tensor, features: Tensor, views: int) -> Tensor:
    """Directions [n, d] of pictures [n], as training left the network.

    The mean over the picture itself, whose direction [n, d] is known, and augmented views.
    """
    if len(pictures) == 0:
        return features
    others = (network.initial_features(pictures, network.weak_view(v)) for v in range(views))
    return directions(sum(others, features))


METHODS = (MethodSpec("proposed", "Proposed", Adaptation(), "algorithm-2", rank=8),)
