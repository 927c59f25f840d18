"""LST (features): a classifier trains itself, and a network says how much each guess counts.

Li, Sun, Liu, Zhou, Zheng, Chua, Schiele, "Learning to self-train for semi-supervised few-shot
classification", NeurIPS 2019. A linear classifier descends on the support and labels U. The surest
pictures of each class, equally many, then count as labelled, and it descends again from the start;
so a few stages long. A soft-weighting network that is meta-learnt compares a picture u with the
class means f̄_c. Its softmax over classes ω multiplies the *logits* of u, as the authors' code has
it:

    loss = CE(S) + CE of softmax over c of (ω_uc z_uc) against the pseudo-labels,   z = γ f·w_c

for the first steps of a stage; the others are on S alone. After the last stage the classifier goes
on descending on S, and answers.

Meta-training descends on the queries' cross-entropy after the steps with U, and after all steps;
through all of them, with 5 and 15 of them. Ours: features of the frozen network, whereas the paper
also learns scales and shifts of its filters, on pictures; the network sees f_u, f̄_c and |f_u − f̄_c|
instead of maps; the start is a learnt multiple of the class means, the same for all classes,
instead of one learnt row per place of a class; both losses move all that is learnt; every stage
sees the whole of U instead of another window of 100 pictures a class. Each query is answered alone.
It assumes as many unlabelled pictures of each class: equally many are chosen. There is no place for
base classes in it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, leaky_relu, linear

from fewgraft.methods.base import LearntTensors, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import class_sums, join_logits, members_of, prototypes

FIRST_STEPS, LAST_STEPS = 10, 60  # on the support: before the first stage, and after the last
STEPS = (10, 30)  # of a stage: with U, and on the support alone
TRAINING_STEPS = (5, 15)  # the same in meta-training
WIDTHS = (64, 8)  # of the soft-weighting network


@dataclass(frozen=True)
class SelfTraining(TrainedMethod):
    """How often, with how many pictures per class, and how fast."""

    uses_unlabelled = True
    pieces = "lst"
    search: ClassVar[Search] = {
        "lr": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        "per_class": (5, 10, 20),
        "stages": (1, 3, 6),
    }
    search_by = "coordinates"

    per_class: int = 20  # pictures of U that count, of each predicted class
    stages: int = 6
    lr: float = 0.01

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The class means as the start, and a network that weighs all classes the same."""
        del gamma, shots
        wide, narrow = WIDTHS
        ends = 3 * weights.shape[1]
        return {
            "start": torch.tensor(1.0),
            "first": torch.randn(wide, ends, generator=rng) * math.sqrt(2 / ends),
            "first_bias": torch.zeros(wide),
            "second": torch.randn(narrow, wide, generator=rng) * math.sqrt(2 / wide),
            "second_bias": torch.zeros(narrow),
            "out": torch.zeros(1, narrow),
        }

    def fit(self, task: Task) -> "SelfTrainedWeights | NovelWeights":
        """An empty unlabelled set leaves the prototypes."""
        learnt = self.learnt(task)
        means = prototypes(task.support, task.labels, task.ways)
        if not task.unlabelled.shape[1]:
            return NovelWeights(means, task.gamma)
        given = OwnTeaching.of(task, soft_weights(task.unlabelled, means, learnt), self.lr)
        start = learnt["start"] * means
        weights = given.descended(start, FIRST_STEPS)
        for _ in range(self.stages):
            guesses = self.guesses(given.scores(task.unlabelled, weights))
            weights = given.descended(start, STEPS[0], guesses)
            weights = given.descended(weights, STEPS[1])
        return SelfTrainedWeights(given.descended(weights, LAST_STEPS), task.gamma)

    def guesses(self, logits: Tensor) -> Tensor:
        """Pseudo-labels [E, U, N] of logits [E, U, N]: 1 for the surest of each class, else 0."""
        sure, label = logits.softmax(-1).max(-1)
        alike = label[:, :, None] == label[:, None]
        rank = (alike & (sure[:, None] > sure[:, :, None])).sum(-1)
        chosen = (rank < self.per_class).to(logits.dtype)
        return members_of(label, logits.shape[-1], logits.dtype) * chosen[..., None]

    def loss(
        self, task: Task, queries: Queries, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """After the steps with U and after all, of one stage."""
        del rng
        learnt = self.learnt(task)
        means = prototypes(task.support, task.labels, task.ways)
        given = OwnTeaching.of(task, soft_weights(task.unlabelled, means, learnt), self.lr)
        start = learnt["start"] * means
        first = given.descended(start, FIRST_STEPS).detach()
        guesses = self.guesses(given.scores(task.unlabelled, first))
        middle = given.descended(start, TRAINING_STEPS[0], guesses)
        last = given.descended(middle, TRAINING_STEPS[1])
        answers = [given.scores(queries.features, weights) for weights in (middle, last)]
        both = [cross_entropy(logits.flatten(0, 1), labels.flatten()) for logits in answers]
        return both[0] + both[1], answers[1]


def soft_weights(unlabelled: Tensor, means: Tensor, learnt: LearntTensors) -> Tensor:
    """ω [E, U, N] of pictures [E, U, d] and class means [E, N, d]; it adds up to 1 over classes."""
    of_picture, of_class, of_both = learnt["first"].chunk(3, 1)
    apart = (unlabelled[:, :, None] - means[:, None]).abs()
    hidden = (unlabelled @ of_picture.T)[:, :, None] + (means @ of_class.T)[:, None]
    hidden = leaky_relu(hidden + linear(apart, of_both, learnt["first_bias"]))
    hidden = leaky_relu(linear(hidden, learnt["second"], learnt["second_bias"]))
    return linear(hidden, learnt["out"])[..., 0].softmax(-1)


@dataclass(frozen=True)
class OwnTeaching:
    """What a classifier descends on."""

    support: Tensor  # [E, S, d]
    members: Tensor  # [E, S, N]
    unlabelled: Tensor  # [E, U, d]
    soft: Tensor  # ω [E, U, N]
    gamma: float
    lr: float

    @classmethod
    def of(cls, task: Task, soft: Tensor, lr: float) -> "OwnTeaching":
        """A task's support and U."""
        members = members_of(task.labels, task.ways, task.support.dtype)
        return cls(task.support, members, task.unlabelled, soft, task.gamma, lr)

    def scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """z = γ f·w of features [E, n, d] and weights [E, N, d]."""
        return self.gamma * features @ weights.transpose(1, 2)

    def descended(self, weights: Tensor, steps: int, guesses: Tensor | None = None) -> Tensor:
        """Weights [E, N, d] after so many steps, with `guesses` [E, U, N] on U as well."""
        for _ in range(steps):
            slope = self._slope(weights)
            if guesses is not None:
                slope = slope + self._slope_on_unlabelled(weights, guesses)
            weights = weights - self.lr * slope
        return weights

    def _slope(self, weights: Tensor) -> Tensor:
        apart = self.scores(self.support, weights).softmax(-1) - self.members
        return self.gamma / self.support.shape[1] * class_sums(apart, self.support)

    def _slope_on_unlabelled(self, weights: Tensor, guesses: Tensor) -> Tensor:
        counts = guesses.sum(-1, keepdim=True)  # [E, U, 1]
        answers = (self.soft * self.scores(self.unlabelled, weights)).softmax(-1)
        apart = self.soft * counts * (answers - guesses) / counts.sum(1, keepdim=True)
        return self.gamma * class_sums(apart, self.unlabelled)


@dataclass(frozen=True)
class SelfTrainedWeights:
    """A linear classifier."""

    weights: Tensor  # [E, N, d]
    gamma: float

    def logits(self, queries: Queries) -> Tensor:
        """γ q·w, each query alone."""
        found = self.gamma * queries.features @ self.weights.transpose(1, 2)
        return join_logits(queries.base_logits, found)


METHODS = (
    MethodSpec(
        "lst",
        "LST (features)",
        SelfTraining(),
        "algorithm-1",
        rank=28,
        joint=False,
        balanced=True,
    ),
)
