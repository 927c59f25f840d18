"""α-TIM: TIM whose demand that all classes be used equally is softened by α-entropies.

Veilleux, Boudiaf, Piantanida, Ben Ayed, "Realistic evaluation of transductive few-shot learning",
NeurIPS 2021. Both entropies of TIM's loss (tim.py) become H_α(p) = (1 − Σ_c p_c^α) / (α − 1); the
cross-entropy of the support stays Shannon's. With a larger α it costs less to use classes
unequally, as a U with unequal numbers of pictures per class needs. The authors take α = 2 at 1 shot
and 7 at 5 shots. Each query is answered alone. There is no place for base classes in it.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fewgraft.methods.base import MethodSpec, NovelWeights, Search, Task
from fewgraft.methods.transductive.tim import DistanceWeights, InformationMaximisation

FEW_SHOTS, ALPHA_OF_FEW, ALPHA_OF_MORE = 5, 2.0, 7.0


@dataclass(frozen=True)
class AlphaTIM(InformationMaximisation):
    """Tsallis entropies instead of Shannon's, to which α → 1 leads."""

    search: ClassVar[Search] = {
        "temperature": (2.5, 5.0, 10.0, 15.0, 30.0),
        "alpha": (2.0, 4.0, 7.0),
    }

    w_support: float = 1.0
    w_conditional: float = 1.0
    alpha: float | None = None  # the authors' value for so many shots

    def fit(self, task: Task) -> DistanceWeights | NovelWeights:
        """With the authors' α unless one is given."""
        if self.alpha is not None:
            return super().fit(task)
        few = task.support.shape[1] < FEW_SHOTS * task.ways
        return replace(self, alpha=ALPHA_OF_FEW if few else ALPHA_OF_MORE).fit(task)

    def slope(self, logs: Tensor) -> Tensor:
        """−dH_α/dp = α p^(α−1) / (α − 1), by log p."""
        if self.alpha is None or self.alpha == 1:
            return super().slope(logs)
        return self.alpha / (self.alpha - 1) * ((self.alpha - 1) * logs).exp()


METHODS = (MethodSpec("alpha-tim", "α-TIM", AlphaTIM(), "algorithm-1", rank=23, joint=False),)
