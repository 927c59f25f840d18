"""FixMatch on the task's unlabelled set: the paper's rival "+ FixMatch".

Sohn et al., "FixMatch: simplifying semi-supervised learning with consistency and confidence",
NeurIPS 2020. Where the classifier is sure of a weakly augmented unlabelled picture, its answer
becomes the label of the strongly augmented one. Starts from the prototypes; the last block and
W = [W_b, W_n] move, and the adapted classifier itself answers.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.methods.moving import AdaptedSolution, AdaptedWeights, batches, descend, pictures_of
from fewgraft.prototypes import prototypes


@dataclass(frozen=True)
class FixMatch(Method):
    """Supervised loss on the support, pseudo-labels above a threshold on U."""

    uses_unlabelled = True
    moves_network = True
    search: ClassVar[Search] = {"lr": (3e-5, 1e-4, 3e-4, 1e-3, 5e-3), "steps": (10, 20)}

    threshold: float = 0.95
    weight: float = 1.0  # of the loss on U
    steps: int = 10
    lr: float = 5e-3
    momentum: float = 0.9
    batch: int = 64
    views: int = 2  # kept augmented views of each picture

    def fit(self, task: Task) -> AdaptedSolution | NovelWeights:
        """Every episode starts anew; an empty U gives the inductive answer."""
        novel = prototypes(task.support, task.labels, task.ways)
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(novel, task.gamma)
        pictures = pictures_of(task)
        episodes = [self._episode(task, e, novel[e]) for e in range(len(task))]
        return AdaptedSolution(pictures.network, episodes, task.gamma)

    def _episode(self, task: Task, e: int, novel: Tensor) -> AdaptedWeights:
        pictures = pictures_of(task)
        network, support, unlabelled = pictures.network, pictures.support[e], pictures.unlabelled[e]
        adapted = AdaptedWeights.start(network, task.weights, novel)
        labels = task.labels[e] + len(task.weights)
        batch = batches(len(unlabelled), self.batch, int(task.numbers[e]))

        def loss(step: int) -> Tensor:
            chosen, number = unlabelled[batch(step)], step % self.views
            weak = network.weak_view(number)
            seen = [
                network.trunk_activations(support, weak if step else network.plain),
                network.trunk_activations(chosen, weak),
                network.trunk_activations(chosen, network.strong_view(number)),
            ]
            features = network.head_features(torch.cat(seen), adapted.parameters)
            logits = adapted.logits(features, task.gamma)
            few, sure, strong = torch.split(logits, [len(part) for part in seen])
            belief, answer = sure.detach().softmax(-1).max(-1)
            on_unlabelled = cross_entropy(strong, answer, reduction="none") * (
                belief >= self.threshold
            )
            return cross_entropy(few, labels) + self.weight * on_unlabelled.mean()

        descend(adapted, loss, self.steps, self.lr, self.momentum)
        return adapted.detached()


METHODS = (
    MethodSpec("+fixmatch", "Meta-Inc-Baseline + FixMatch", FixMatch(), "algorithm-1", rank=3),
)
