"""The proposed method: refinement, and the network adapted to each task without forgetting.

The S²I-FSL paper (BMVC 2021), Sec. 4.3. From the meta-trained {θ̄, W̄_b}, for every episode anew,
descend on w_cls·L_cls + w_ctr·L_ctr + w_dst·L_dst: cross-entropy of the support over all classes,
contrast between two views of the pile, and distillation of the pile's predictions from the model
as it was. Then compute the prototypes again, refine, and answer.

The paper distils base-class predictions only (`columns = "base"`), which holds no border between
base and novel classes; `columns = "all"` distils the refined joint classifier instead. Weights,
temperatures, rate and steps are ours, chosen on validation episodes.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.methods.base import Method, MethodSpec, Task
from fewgraft.methods.losses import distillation, nt_xent
from fewgraft.methods.moving import Moved, MovedSolution, batches, descend, pictures_of
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.network import View
from fewgraft.prototypes import Refinement, cosine_logits, prototypes, refine


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
    steps: int = 10
    lr: float = 5e-3
    momentum: float = 0.9
    batch: int = 64
    views: int = 2  # kept augmented views of each picture

    def fit(self, task: Task) -> MovedSolution:
        """Every episode starts anew."""
        refined = PrototypeRefinement(self.refinement_steps, self.alpha, self.temperature)
        novel = refined.fit(task).novel
        episodes = [self._episode(task, e, novel[e]) for e in range(len(task))]
        return MovedSolution(pictures_of(task).network, episodes, task.gamma)

    def _episode(self, task: Task, e: int, novel: Tensor) -> Moved:
        """`novel` [N, d] are the prototypes as refinement left them."""
        pictures = pictures_of(task)
        pile = pictures.unlabelled[e]
        moved = Moved.start(pictures.network, task.weights, novel)
        if len(pile):
            teacher = torch.cat(
                [
                    task.base_unlabelled[e],
                    cosine_logits(task.unlabelled[e], novel, task.gamma),
                ],
                dim=-1,
            )
            batch = batches(len(pile), self.batch, int(task.numbers[e]))
            descend(
                moved,
                lambda step: self._loss(task, e, moved, teacher, batch(step), step),
                self.steps,
                self.lr,
                self.momentum,
            )
        return self._answering(task, e, moved)

    def _loss(
        self, task: Task, e: int, moved: Moved, teacher: Tensor, places: Tensor, step: int
    ) -> Tensor:
        """w_cls·L_cls + w_ctr·L_ctr + w_dst·L_dst on one batch of the pile."""
        pictures = pictures_of(task)
        network, support = pictures.network, pictures.support[e]
        chosen = pictures.unlabelled[e][places]
        one, other = (View(network.weak, (step + turn) % self.views) for turn in (0, 1))
        seen = [network.below(support), network.below(chosen, one), network.below(chosen, other)]
        features = network.above(torch.cat(seen), moved.parameters)
        few, first, second = torch.split(features, [len(part) for part in seen])
        n_base = len(task.weights)
        width = n_base if self.columns == "base" else n_base + task.ways
        students = moved.logits(torch.cat([first, second]), task.gamma)[:, :width]
        teachers = teacher[places, :width].repeat(2, 1)
        loss = self.w_cls * cross_entropy(moved.logits(few, task.gamma), task.labels[e] + n_base)
        loss = loss + self.w_ctr * nt_xent(first, second, self.tau_ctr)
        if width:
            loss = loss + self.w_dst * distillation(students, teachers, self.tau_dst)
        return loss

    @torch.no_grad()
    def _answering(self, task: Task, e: int, moved: Moved) -> Moved:
        """Prototypes and refinement on the adapted features."""
        pictures = pictures_of(task)
        network = pictures.network
        support = network.features(pictures.support[e], moved.parameters)[None]
        labels = task.labels[e : e + 1]
        novel = prototypes(support, labels, task.ways)
        if pictures.unlabelled.shape[1]:
            pile = network.features(pictures.unlabelled[e], moved.parameters)[None]
            base = cosine_logits(pile, moved.base, task.gamma)
            novel = refine(novel, support, labels, pile, base, task.gamma, self._how())
        return dataclasses.replace(moved.settled(), novel=novel[0])

    def _how(self) -> Refinement:
        return Refinement(
            steps=self.refinement_steps, alpha=self.alpha, temperature=self.temperature
        )


METHODS = (MethodSpec("proposed", "Proposed", Adaptation(), "algorithm-2", rank=7),)
