"""What goes from session to session: the solutions so far, whose classes are base classes next.

A method is asked the same two verbs in every session. Its task has the weights of all classes seen
so far as base weights, and what the solutions so far say of U as base logits; its solution joins
them. A solution can go on where it names the weights that its novel classes have in later tasks
(`carried`) and leaves the columns of earlier classes that it is given as they are. One that has
refined classes of earlier sessions says how many (`grafted`): they come first among the weights it
names, and replace those of before. What a method keeps beside weights it finds in its own solution
of the session before (`Task.previous`).
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Queries, Solution, Task
from fewgraft.prototypes import direction_logits

BaseScores = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Carried:
    """A classifier that lessons have added classes to.

    Attributes:
        weights: Of all classes so far [K, d], base classes first.
        n_base: How many base classes there were in the beginning.
        gamma: γ.
        solutions: One per session so far.
        base_scores: What a method makes of features [n, d] and γ·cos(f, w) [n, N_b]; None: the
            latter.
    """

    weights: Tensor
    n_base: int
    gamma: float
    solutions: tuple[Solution, ...] = ()
    base_scores: BaseScores | None = None

    @classmethod
    def begin(
        cls, weights: Tensor, gamma: float, base_scores: BaseScores | None = None
    ) -> "Carried":
        """The base classes [N_b, d] alone."""
        return cls(weights, len(weights), gamma, base_scores=base_scores)

    def base_logits(self, features: Tensor) -> Tensor:
        """Scores [1, n, N_b] over the base classes alone, before any solution."""
        logits = direction_logits(features, self.weights[: self.n_base], self.gamma)
        return (
            logits if self.base_scores is None else self.base_scores(features[0], logits[0])[None]
        )

    def logits(self, features: Tensor) -> Tensor:
        """[1, n, K] over all classes so far, of directions [1, n, d]."""
        return answer(self.solutions, features, self.base_logits(features))

    def task(self, ways: int, support: Tensor, unlabelled: Tensor, number: int) -> Task:
        """The task of the next session: directions [N·K, d], class by class, and [U, d]."""
        labels = torch.arange(ways).repeat_interleave(len(support) // ways if ways else 0)
        return Task(
            ways=ways,
            support=support[None],
            labels=labels[None].to(support.device),
            unlabelled=unlabelled[None],
            base_unlabelled=self.logits(unlabelled[None]),
            weights=self.weights,
            gamma=self.gamma,
            numbers=torch.tensor([number]),
            grafted=len(self.weights) - self.n_base,
            previous=self.solutions[-1] if self.solutions else None,
        )

    def after(self, solution: Solution) -> "Carried":
        """With the classes of one more session, and with earlier ones as it has refined them."""
        novel = getattr(solution, "carried", None)
        if novel is None:
            raise FewgraftError(
                f"{type(solution).__name__} has no class weights that a next session could begin "
                "with",
                "Such a method learns one set of novel classes, not one after the other.",
            )
        kept = len(self.weights) - getattr(solution, "grafted", 0)
        return dataclasses.replace(
            self,
            weights=torch.cat([self.weights[:kept], novel[0]]),
            solutions=(*self.solutions, solution),
        )


def answer(solutions: Iterable[Solution], features: Tensor, base_logits: Tensor) -> Tensor:
    """Solutions one after the other: the answer of each is what the next one takes for base."""
    logits = base_logits
    for solution in solutions:
        logits = solution.logits(Queries(features, logits))
    return logits
