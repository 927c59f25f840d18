"""Prototype refinement (Eqs. 3–4): the unlabelled pictures join the class means, softly.

Lichtenstein et al., "TAFSSL: Task-adaptive feature sub-space learning for few-shot
classification", ECCV 2020, in the form of the S²I-FSL paper: a picture counts for a novel class by
its probability of that class among *all* classes, so that base pictures count little. On features
of Algorithm 1 this is the paper's rival "+ PR"; on features of Algorithm 2, which rehearsed it, the
proposed method without adaptation.

The rows with a bias are there for honesty: how much of the proposed method's gain does a mere shift
of the border between base and novel classes give, chosen on validation episodes, and what is left
of the gain when both have one?

Over sessions, a later U may refine the novel classes of earlier sessions as well (`earlier`, ours):
they are novel again, and since their supports are gone, each is given some at its prototype. Base
classes never move.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import Refinement, prototypes, refine


@dataclass(frozen=True)
class PrototypeRefinement(Method):
    """Prototypes, refined `steps` times."""

    uses_unlabelled = True
    added = ("normalise", "earlier")
    search: ClassVar[Search] = {
        "steps": (1, 2, 3, 5, 10),
        "alpha": (0.5, 1.0),
        "temperature": (1.0, 1.5, 2.0),
    }
    over_sessions: ClassVar[Search] = {"earlier": (0, 5, 15, 50)}

    steps: int = 5
    alpha: float = 1.0
    temperature: float = 1.0  # of the pseudo-labels
    unlabelled_bias: float = 0.0  # on the novel logits of U
    bias: float = 0.0  # on the novel logits of the answer
    normalise: bool = True  # features and prototypes to directions; False is the paper's letter
    earlier: int = 0  # supports that a class of an earlier session counts for; 0: it stays

    @property
    def uses_lengths(self) -> bool:  # type: ignore[override]
        """Eqs. 2–4 to the letter average features as the network gives them."""
        return not self.normalise

    @property
    def refinement(self) -> Refinement:
        """How Eqs. 3–4 are applied."""
        return Refinement(
            self.steps, self.alpha, self.temperature, self.unlabelled_bias, self.normalise
        )

    def fit(self, task: Task) -> NovelWeights:
        """Eq. 2, then Eqs. 3–4; an empty U leaves the prototypes."""
        grafted, refinement = 0, self.refinement
        if self.earlier and task.grafted and task.unlabelled.shape[1]:
            grafted, new = task.grafted, task.ways
            task = novel_again(task, self.earlier)
            # Of earlier classes, U is what the classifier so far answers.
            biases = [self.bias] * grafted + [self.unlabelled_bias] * new
            refinement = replace(refinement, novel_bias=task.support.new_tensor(biases))
        support, unlabelled = task.support, task.unlabelled
        if not self.normalise:
            support, unlabelled = task.with_lengths()
        novel = prototypes(support, task.labels, task.ways, normalise=self.normalise)
        if unlabelled.shape[1]:
            novel = refine(
                novel,
                support,
                task.labels,
                unlabelled,
                task.base_unlabelled,
                task.gamma,
                refinement,
            )
        return NovelWeights(novel, task.gamma, self.bias, grafted)


def novel_again(task: Task, count: int) -> Task:
    """The task with the classes of earlier sessions among its novel ones, as the first of them.

    Their supports are gone: each has `count` at its prototype instead.
    """
    kept, again = len(task.first_weights), task.grafted * count
    earlier = task.weights[kept:].repeat_interleave(count, 0).expand(len(task), -1, -1)
    labels = torch.arange(task.grafted, device=task.labels.device).repeat_interleave(count)
    return replace(
        task,
        ways=task.grafted + task.ways,
        support=torch.cat([earlier, task.support], 1),
        labels=torch.cat([labels.expand(len(task), again), task.grafted + task.labels], 1),
        base_unlabelled=task.base_unlabelled[..., :kept],
        weights=task.first_weights,
        grafted=0,
    )


@dataclass(frozen=True)
class BiasedRefinement(PrototypeRefinement):
    """Refinement with both biases looked for."""

    search: ClassVar[Search] = {
        "unlabelled_bias": (-2.0, -1.5, -1.0, -0.5, 0.5),
        "bias": (-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.5),
    }


METHODS = (
    MethodSpec("+pr", "Meta-Inc-Baseline + PR", PrototypeRefinement(), "algorithm-1", rank=4),
    MethodSpec(
        "+pr+bias",
        "Meta-Inc-Baseline + PR + bias (val)",
        BiasedRefinement(),
        "algorithm-1",
        rank=5,
        regular=False,
        builds_on="+pr",
    ),
    MethodSpec(
        "proposed-without-adaptation",
        "Proposed, no adaptation",
        PrototypeRefinement(),
        "algorithm-2",
        rank=6,
    ),
    MethodSpec(
        "proposed-without-adaptation+bias",
        "Proposed, no adaptation + bias (val)",
        BiasedRefinement(),
        "algorithm-2",
        rank=7,
        regular=False,
        builds_on="proposed-without-adaptation",
    ),
)
