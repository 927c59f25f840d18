"""Prototype refinement (Eqs. 3–4): the unlabelled pictures join the class means, softly.

Lichtenstein et al., "TAFSSL: Task-adaptive feature sub-space learning for few-shot
classification", ECCV 2020, in the form of the S²I-FSL paper: a picture counts for a novel class by
its probability of that class among *all* classes, so that base pictures count little. On features
of Algorithm 1 this is the paper's rival "+ PR"; on features of Algorithm 2, which rehearsed it, the
proposed method without adaptation.

The rows with a bias are there for honesty: how much of the proposed method's gain does a mere shift
of the border between base and novel classes give, chosen on validation episodes, and what is left
of the gain when both have one?

Over sessions, a later U may refine the novel classes of earlier sessions as well (`earlier`, ours).
Base classes never move.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import Refinement, cosine_logits, join_logits, prototypes, refine


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
        support, unlabelled = task.support, task.unlabelled
        if not self.normalise:
            support, unlabelled = task.with_lengths()
        novel = prototypes(support, task.labels, task.ways, normalise=self.normalise)
        if not unlabelled.shape[1]:
            return NovelWeights(novel, task.gamma, self.bias)
        config, base = self.refinement, task.base_unlabelled
        novel = refine(novel, support, task.labels, unlabelled, base, task.gamma, config)
        if not self.earlier or not task.grafted:
            return NovelWeights(novel, task.gamma, self.bias)
        again = torch.cat([self._earlier(task, unlabelled, novel), novel], 1)
        return NovelWeights(again, task.gamma, self.bias, task.grafted)

    def _earlier(self, task: Task, unlabelled: Tensor, novel: Tensor) -> Tensor:
        """Novel classes of earlier sessions [E, G, d], refined after the session's own [E, N, d].

        U counts by what the classifier with all of them answers. The supports of earlier sessions
        are gone: each class has some at its prototype instead.
        """
        kept, classes = len(task.first_weights), torch.arange(task.grafted)
        earlier = task.weights[kept:].expand(len(task), -1, -1)
        labels = classes.repeat_interleave(self.earlier).expand(len(task), -1).to(novel.device)
        new = cosine_logits(unlabelled, novel, task.gamma) + self.bias
        return refine(
            earlier,
            earlier.repeat_interleave(self.earlier, 1),
            labels,
            unlabelled,
            join_logits(task.base_unlabelled[..., :kept], new),
            task.gamma,
            replace(self.refinement, novel_bias=self.bias),
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
