"""Imprinting: the mean direction of a class's few pictures becomes its weight (Eq. 2).

Qi et al., "Low-shot learning with imprinted weights", CVPR 2018. It needs no training for novel
classes at all, and no U. The same answer on features of Algorithm 1 is the paper's
Meta-Inc-Baseline.

The row with a bias is there for honesty: how much of what incremental rivals gain does a mere shift
of the border between base and novel classes give, chosen on validation episodes?
"""

from dataclasses import dataclass
from typing import ClassVar

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import prototypes


@dataclass(frozen=True)
class NearestPrototype(Method):
    """W = [W_b, class means of the support]."""

    bias: float = 0.0  # on the novel logits

    def fit(self, task: Task) -> NovelWeights:
        """Prototypes; U is not looked at."""
        novel = prototypes(task.support, task.labels, task.ways)
        return NovelWeights(novel, task.gamma, self.bias)


@dataclass(frozen=True)
class BiasedPrototype(NearestPrototype):
    """Imprinting with the bias looked for."""

    search: ClassVar[Search] = {
        "bias": (-5.0, -4.0, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0),
    }


METHODS = (
    MethodSpec("nearest-prototype", "Imprint", NearestPrototype(), "pre-trained", rank=0),
    MethodSpec(
        "nearest-prototype+bias",
        "Imprint + bias (val)",
        BiasedPrototype(),
        "pre-trained",
        rank=0,
        regular=False,
    ),
    MethodSpec("meta-inc-baseline", "Meta-Inc-Baseline", NearestPrototype(), "algorithm-1", rank=1),
)
