"""LCwoF: novel weights learn against base logits, then both are calibrated on balanced pictures.

Kukleva, Kuehne, Schiele, "Generalized and incremental few-shot learning by explicit learning and
calibration without forgetting", ICCV 2021. Nothing is meta-learnt; every episode descends anew.
After base training come two phases of SGD on the cross-entropy over all classes:

    phase 2: novel weights move, on the support
    phase 3: base and novel weights move, on the support and one stored picture per base class,
             with 0.1 of the loss and an optimiser of its own

Kept: linear heads without bias, momentum, decay and the factor of phase 3. The paper's last stage
of the network moves as well, held near its start; here only the heads do (`lcwof_block` moves it),
and its augmented batches are whole sets of features. On a cosine network the heads are γ·w with w
of length 1 at first, prototypes for novel classes. The support then fits its own prototypes with a
probability of nearly 1, and there would be nothing to learn: so the loss is that of logits over a
temperature. All rates and the temperature are chosen on validation episodes. Over sessions the
heads go on from where they are, and one support per class of earlier sessions is kept as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Method, MethodSpec, Queries, Search, Task
from fewgraft.prototypes import directions, members_of, prototypes

CALIBRATION_SHARE = 0.1  # of the loss that phase 3 descends on


@dataclass(frozen=True)
class HeadCalibration(Method):
    """Phases 2 and 3 on features."""

    uses_base_features = True
    search: ClassVar[Search] = {
        "temperature": (2.0, 4.0, 8.0),
        "lr": (0.001, 0.003, 0.01, 0.03),
        "calibration_lr": (0.001, 0.003, 0.01, 0.03),
    }
    # In one episode a wider search by coordinates ends in a worse place.
    over_sessions: ClassVar[Search] = {
        "temperature": (0.5, 1.0, 2.0, 4.0, 8.0),
        "lr": (1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03),
        "calibration_lr": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    }
    search_by = "coordinates"

    lr: float = 0.01
    calibration_lr: float = 0.01
    temperature: float = 4.0  # of the loss
    steps: int = 100
    calibration_steps: int = 100
    momentum: float = 0.9
    decay: float = 1e-4

    def fit(self, task: Task) -> "LinearHeads":
        """Both phases, all episodes at once."""
        gamma = task.gamma / self.temperature
        novel = prototypes(task.support, task.labels, task.ways)
        known = task.previous if isinstance(task.previous, LinearHeads) else None
        base = known.weights if known else directions(task.weights).expand(len(task), -1, -1)
        learning = Descent(self.steps, self.lr, self.momentum, self.decay)
        novel = learnt_novel(novel, base, task.support, task.labels, gamma, learning)
        calibration = Descent(
            self.calibration_steps, self.calibration_lr, self.momentum, self.decay
        )
        features, labels = calibration_set(task)
        heads = calibrated_heads(torch.cat([base, novel], 1), features, labels, gamma, calibration)
        return LinearHeads(heads, task.gamma, kept_supports(task), task.grafted)


@dataclass(frozen=True)
class LinearHeads:
    """Weights of all classes [E, N_b+N, d], whose lengths count."""

    weights: Tensor
    gamma: float
    kept: Tensor  # a support per novel class, of earlier sessions first [E, ·, d]
    grafted: int = 0  # how many of the novel classes are of earlier sessions

    @property
    def carried(self) -> Tensor:
        """Heads of all novel classes; a next session begins with those of base classes, too."""
        return self.weights[:, self.weights.shape[1] - self.kept.shape[1] :]

    def logits(self, queries: Queries) -> Tensor:
        """γ · f · w."""
        return queries.features @ (self.gamma * self.weights).transpose(1, 2)


@dataclass(frozen=True)
class Descent:
    """Plain SGD with momentum and decay, each episode on its own."""

    steps: int
    lr: float
    momentum: float
    decay: float

    def __call__(
        self, weights: Tensor, features: Tensor, error: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Weights [E, C, d] after all steps on features [E, n, d].

        `error` gives the gradient with respect to the products [E, n, C] of features and weights.
        Weights never leave the span of their start and the features: they are `share` of the start
        and a sum of features, so that steps are taken on coefficients, of which there are fewer.
        """
        products = features @ weights.transpose(1, 2)
        gram = features @ features.transpose(1, 2)
        share, share_velocity = 1.0, 0.0
        coefficients, velocity = torch.zeros_like(products), torch.zeros_like(products)
        for _ in range(self.steps):
            gradient = error(share * products + gram @ coefficients)
            velocity = self.momentum * velocity + gradient + self.decay * coefficients
            share_velocity = self.momentum * share_velocity + self.decay * share
            coefficients = coefficients - self.lr * velocity
            share = share - self.lr * share_velocity
        return share * weights + coefficients.transpose(1, 2) @ features


def learnt_novel(
    novel: Tensor, base: Tensor, support: Tensor, labels: Tensor, gamma: float, descent: Descent
) -> Tensor:
    """Phase 2: novel weights [E, N, d] against the logits of base weights [E, N_b, d]."""
    fixed = gamma * support @ base.transpose(1, 2)
    answers = members_of(labels, novel.shape[1], support.dtype)

    def error(products: Tensor) -> Tensor:
        found = torch.cat([fixed, gamma * products], -1).softmax(-1)[..., fixed.shape[-1] :]
        return gamma / support.shape[1] * (found - answers)

    return descent(novel, support, error)


def calibrated_heads(
    heads: Tensor, features: Tensor, labels: Tensor, gamma: float, descent: Descent
) -> Tensor:
    """Phase 3: all weights [E, N_b+N, d] on features [E, n, d] of all classes."""
    answers = members_of(labels, heads.shape[1], features.dtype)

    def error(products: Tensor) -> Tensor:
        found = (gamma * products).softmax(-1)
        return CALIBRATION_SHARE * gamma / features.shape[1] * (found - answers)

    return descent(heads, features, error)


def kept_supports(task: Task) -> Tensor:
    """The first support of each novel class, below those of earlier sessions [E, ·, d]."""
    members = members_of(task.labels, task.ways, task.support.dtype)  # [E, S, N]
    first = members.argmax(1)[..., None].expand(-1, -1, task.support.shape[-1])
    return torch.cat([_kept(task), task.support.gather(1, first)], 1)


def _kept(task: Task) -> Tensor:
    """Of earlier sessions [E, ·, d]."""
    previous = task.previous
    return previous.kept if isinstance(previous, LinearHeads) else task.support[:, :0]


def calibration_set(task: Task) -> tuple[Tensor, Tensor]:
    """One stored picture per base class, then the support: features [E, n, d], labels [E, n]."""
    if task.base_features is None:
        raise FewgraftError(
            "LCwoF needs a stored picture per base class: the task has none",
            "`fewgraft.evaluate` and `fewgraft bench run` take them from base/train.",
        )
    n_base = len(task.weights)
    stored = task.base_features[: len(task.first_weights), 0].expand(len(task), -1, -1)
    classes = torch.arange(n_base, device=task.labels.device).expand(len(task), -1)
    features = torch.cat([stored, _kept(task), task.support], 1)
    return features, torch.cat([classes, task.labels + n_base], 1)


METHODS = (
    MethodSpec(
        "lcwof",
        "LCwoF (heads)",
        HeadCalibration(),
        "pre-trained",
        rank=6,
        regular=False,
        remark="sees one stored picture per base class, which no rival with learnt pieces does",
    ),
)
