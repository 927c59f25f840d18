"""TapNet: distances to learnt references, in a space where these agree with the class means.

Yoon, Seo, Moon, "TapNet: neural network augmented with task-adaptive projection for few-shot
learning", ICML 2019. References Φ are the same in all tasks. A task chooses the projection P, by
linear algebra, in which the class means c point where the references do:

    φ̃_k = N φ_k − Σ_l φ_l,   ε_k = φ̃_k/‖φ̃_k‖ − c_k/‖c_k‖,   P = I − εᵀ(εεᵀ)⁺ε
    logit_k = −(q − φ_k)ᵀ P (q − φ_k) + 2 bias_k

The paper has no base classes, and the code of its incremental form is not public. Here base classes
have their weights W_b as centres beside Φ, and ε comes from the novel classes alone. On a cosine
network all is of length 1 but Φ, and a learnt scale takes the place of γ. Φ, bias and scale are all
that is learnt; network and W_b stay as they are. A class takes its reference by the paper's rule
for testing, closest first, but the closest *pair* chooses first: the answer does not depend on the
order of classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import MethodSpec, Queries, Task
from fewgraft.methods.incremental.projection import Projection
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import directions, join_logits, prototypes


@dataclass(frozen=True)
class TapNet(TrainedMethod):
    """Base weights and learnt references in the task's projection."""

    pieces = "tapnet"

    references: int = 5  # R, at least the number of novel classes

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """Φ as the authors draw it; the scale at which distances to W_b are the model's logits."""
        del shots
        points = torch.randn(self.references, weights.shape[1], generator=rng)
        return {
            "references": points / weights.shape[1] ** 0.5,
            "bias": torch.zeros(self.references),
            "scale": torch.tensor(gamma / 2),
        }

    def fit(self, task: Task) -> "ProjectedCentres":
        """Choose references, and the projection in which they agree with the class means."""
        learnt = self.learnt(task)
        means = prototypes(task.support, task.labels, task.ways, normalise=False)
        references = References(learnt["references"], learnt["bias"])
        chosen = references.chosen(matched(closeness(references, means)))
        return ProjectedCentres(
            task,
            Projection.aligning(told_apart(chosen.points), means),
            directions(task.weights).expand(len(task), -1, -1),
            chosen.points,
            learnt["scale"],
            chosen.bias,
        )


@dataclass(frozen=True)
class ProjectedCentres:
    """Centres of base and novel classes; logits are scaled distances in a projection."""

    task: Task
    projection: Projection
    base: Tensor  # [E, N_b, d]
    novel: Tensor  # [E, N, d]
    scale: Tensor
    bias: Tensor | None = None  # [E, N]

    def logits(self, queries: Queries) -> Tensor:
        """Of queries as they are."""
        return self.of(queries.features)

    def of(self, features: Tensor) -> Tensor:
        """Features [E, Q, d] in the space of the centres → [E, Q, N_b+N]."""
        base = self.projection.closeness(features, self.base)
        novel = self.projection.closeness(features, self.novel)
        if self.bias is not None:
            novel = novel + 2 * self.bias[:, None]
        return join_logits(self.task.strike(self.scale * base), self.scale * novel)


@dataclass(frozen=True)
class References:
    """What was learnt of novel classes: points [..., N, d], each with a bias [..., N]."""

    points: Tensor
    bias: Tensor

    def chosen(self, places: Tensor) -> "References":
        """Those of the classes: R references in the order of places [E, N]."""
        return References(self.points[places], self.bias[places])


def closeness(references: References, means: Tensor) -> Tensor:
    """How well R references fit class means [E, N, d], without a projection: [E, N, R]."""
    points = references.points
    squares = means.square().sum(-1)[..., None] + points.square().sum(-1)
    return 2 * (means @ points.T + references.bias) - squares


def matched(fit: Tensor) -> Tensor:
    """A reference of its own for every class, the best pair first: fit [E, N, R] → places [E, N].

    There are at least as many references as classes.
    """
    n_episodes, n_classes, n_references = fit.shape
    if n_references < n_classes:
        raise FewgraftError(
            f"there are {n_references} references for {n_classes} novel classes",
            "Learn more of them: hyper-parameter `references`.",
        )
    fit, every = fit.detach().clone(), torch.arange(n_episodes, device=fit.device)
    places = torch.zeros(n_episodes, n_classes, dtype=torch.int64, device=fit.device)
    for _ in range(n_classes):
        best = fit.flatten(1).argmax(1)
        row, column = best // n_references, best % n_references
        places[every, row] = column
        fit[every, row] = fit[every, :, column] = float("-inf")
    return places


def told_apart(points: Tensor) -> Tensor:
    """φ̃ of references [E, N, d]: each against the others."""
    return points.shape[-2] * points - points.sum(-2, keepdim=True)


METHODS = (MethodSpec("tapnet", "TapNet", TapNet(), "pre-trained", rank=4, regular=False),)
