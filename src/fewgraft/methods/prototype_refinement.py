"""Prototype refinement (Eqs. 3–4): the unlabelled pictures join the class means, softly.

Lichtenstein et al., "TAFSSL: Task-adaptive feature sub-space learning for few-shot
classification", ECCV 2020, in the form of the S²I-FSL paper: a picture counts for a novel class by
its probability of that class among *all* classes, so that base pictures count little. On features
of Algorithm 1 this is the paper's rival "+ PR"; on features of Algorithm 2, which rehearsed it, the
proposed method without adaptation.

The rows with a bias are there for honesty: how much of the proposed method's gain does a mere shift
of the border between base and novel classes give, chosen on validation episodes, and what is left
of the gain when both have one?
"""

from dataclasses import dataclass
from typing import ClassVar

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import Refinement, prototypes, refine


@dataclass(frozen=True)
class PrototypeRefinement(Method):
    """Prototypes, refined `steps` times."""

    uses_unlabelled = True
    added = ("normalise",)
    search: ClassVar[Search] = {
        "steps": (1, 2, 3, 5, 10),
        "alpha": (0.5, 1.0),
        "temperature": (1.0, 1.5, 2.0),
    }

    steps: int = 5
    alpha: float = 1.0
    temperature: float = 1.0  # of the pseudo-labels
    unlabelled_bias: float = 0.0  # on the novel logits of U
    bias: float = 0.0  # on the novel logits of the answer
    normalise: bool = True  # features and prototypes to directions; False is the paper's letter

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
        if unlabelled.shape[1]:
            novel = refine(
                novel,
                support,
                task.labels,
                unlabelled,
                task.base_unlabelled,
                task.gamma,
                self.refinement,
            )
        return NovelWeights(novel, task.gamma, self.bias)


@dataclass(frozen=True)
class BiasedRefinement(PrototypeRefinement):
    """Refinement with both biases looked for."""

    search: ClassVar[Search] = {
        "unlabelled_bias": (-2.0, -1.5, -1.0, -0.5, 0.5),
        "bias": (-4.0, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.5),
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
