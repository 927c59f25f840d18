"""TEEN: prototypes of novel classes are pulled towards base classes that resemble them.

Wang et al., "Few-shot class-incremental learning via training-free prototype calibration", NeurIPS
2023. The mean of a few pictures is off, and novel pictures are mistaken for similar base classes;
base classes are well known, so they lend their semantics. On directions p of novel prototypes and
ŵ of base weights:

    p_k ← (1 − α) p_k + α · normalise(Σ_j softmax_j(τ p_k·ŵ_j) ŵ_j)

Nothing is trained, and W_b stays as it is. The paper has τ = 16 and α of 0.1 (CIFAR-100) or 0.5
(mini-ImageNet), on networks whose base weights are class means; here base weights are those of the
classifier, and both values are chosen on validation episodes. Classes of earlier sessions lend
nothing, as in the authors' code.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import direction_logits, directions, prototypes


@dataclass(frozen=True)
class Teen(Method):
    """Prototypes, calibrated once."""

    search: ClassVar[Search] = {
        "alpha": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
        "temperature": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    }

    alpha: float = 0.5  # how far a prototype moves
    temperature: float = 16.0  # τ, which multiplies the cosines

    def fit(self, task: Task) -> NovelWeights:
        """Calibrated prototypes beside W_b."""
        novel = prototypes(task.support, task.labels, task.ways)
        novel = calibrated(novel, task.first_weights, self.alpha, self.temperature)
        return NovelWeights(novel, task.gamma)


def calibrated(novel: Tensor, base: Tensor, alpha: float, temperature: float) -> Tensor:
    """Prototypes [..., N, d], of any length, by weights [N_b, d] → [..., N, d], not normalised."""
    novel, base = directions(novel), directions(base)
    share = direction_logits(novel, base, temperature).softmax(-1)
    return (1 - alpha) * novel + alpha * directions(share @ base)


METHODS = (MethodSpec("teen", "TEEN", Teen(), "pre-trained", rank=7, regular=False),)
