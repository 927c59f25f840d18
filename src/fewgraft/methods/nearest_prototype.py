"""Imprinting: the mean direction of a class's few pictures becomes its weight (Eq. 2).

Qi et al., "Low-shot learning with imprinted weights", CVPR 2018. It needs no training for novel
classes at all, and no U. The same answer on features of Algorithm 1 is the paper's
Meta-Inc-Baseline.
"""

from dataclasses import dataclass

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Task
from fewgraft.prototypes import prototypes


@dataclass(frozen=True)
class NearestPrototype(Method):
    """W = [W_b, class means of the support]."""

    bias: float = 0.0  # on the novel logits

    def fit(self, task: Task) -> NovelWeights:
        """Prototypes; U is not looked at."""
        novel = prototypes(task.support, task.labels, task.ways)
        return NovelWeights(novel, task.gamma, self.bias)


METHODS = (
    MethodSpec("nearest-prototype", "Imprint", NearestPrototype(), "pre-trained", rank=0),
    MethodSpec("meta-inc-baseline", "Meta-Inc-Baseline", NearestPrototype(), "algorithm-1", rank=1),
)
