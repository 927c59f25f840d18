"""PT-MAP: power transform, then centres that move to where balanced transport sends U.

Hu, Gripon, Pateux, "Leveraging the feature distribution in transfer-based few-shot learning", ICANN
2021. Features are made more like a Gaussian (power.py), and support and U are centred each by its
own mean: a shift between them is gone, if both hold the same mix of classes. Then a plan P sends
every unlabelled picture to classes, equally many to each, and the centres go a part of the way to
the means of what they got, with K_c supports in class c:

    P = transport of exp(−λ‖b − μ_c‖²), rows sum to 1, columns to |U|/N
    μ_c ← μ_c + α (ē_c − μ_c),   ē_c = (Σ_S s + Σ_b P_bc b) / (K_c + Σ_b P_bc)

The method assumes that U holds equally many pictures of each class. The paper answers all queries
by one plan: `together` does. By default each query is answered alone, by −λ‖q − μ_c‖² with q
centred as U. Features below 0, which a leaky ReLU gives, have no root: power.py says what becomes
of them. There is no place for base classes in it.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.methods.transductive.nearness import class_logits
from fewgraft.methods.transductive.power import Negatives, power_transform
from fewgraft.methods.transductive.transport import (
    Centres,
    equal_shares,
    transport_plan,
)
from fewgraft.prototypes import class_sums, directions, prototypes, support_sums


@dataclass(frozen=True)
class PowerTransport(Method):
    """The authors' values are the same for all data sets and shots."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"sharpness": (5.0, 10.0, 20.0, 40.0), "power": (0.5, 0.7, 1.0)}
    search_by = "coordinates"

    steps: int = 20
    sharpness: float = 10.0  # λ
    alpha: float = 0.2
    power: float = 0.5  # β
    negatives: Negatives = "signed"
    together: bool = False

    def fit(self, task: Task) -> Centres | NovelWeights:
        """An empty unlabelled set leaves the prototypes."""
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        support, unlabelled = self._powers(task.support), self._powers(task.unlabelled)
        mean = unlabelled.mean(1, keepdim=True)
        support = directions(support - support.mean(1, keepdim=True))
        own, count = support_sums(support, task.labels, task.ways)
        found = self.moved(own, count, directions(unlabelled - mean))
        return Centres(
            lambda x: directions(self._powers(x) - mean), found, self.sharpness, self.together
        )

    def _powers(self, features: Tensor) -> Tensor:
        return power_transform(features.double(), self.power, self.negatives)

    def moved(self, own: Tensor, count: Tensor, unlabelled: Tensor) -> Tensor:
        """Centres [E, N, d] from sums [E, N, d] and counts [E, N] of the support."""
        centres = own / count[..., None]
        for _ in range(self.steps):
            logs = class_logits(unlabelled, centres, self.sharpness).transpose(1, 2)
            plan = transport_plan(logs, equal_shares(logs))
            total, size = own + class_sums(plan, unlabelled), count + plan.sum(1)
            centres = centres + self.alpha * (total / size[..., None] - centres)
        return centres


METHODS = (
    MethodSpec(
        "pt-map", "PT-MAP", PowerTransport(), "algorithm-1", rank=20, joint=False, balanced=True
    ),
)
