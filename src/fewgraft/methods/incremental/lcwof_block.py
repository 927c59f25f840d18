"""LCwoF with the last block of the network moving beside the heads, for each episode anew.

Kukleva, Kuehne, Schiele, "Generalized and incremental few-shot learning by explicit learning and
calibration without forgetting", ICCV 2021. The phases, the heads and the loss are those of `lcwof`.
In both phases the last block θ descends as well, at a tenth of the heads' rate, and L‖θ − θ⁰‖²
holds it near its start θ⁰; this pull is not scaled by 0.1 in phase 3. Statistics of normalisation
layers stay as they are.

Kept: what moves in which phase, the ratio of the rates, momentum, which is lost between the phases,
decay, and the limit on the gradient. Ours: few steps on all pictures, in the network's views in
turn (mirrored or not), instead of hundreds on augmented batches, L chosen on validation episodes,
since it multiplies a sum over as many weights as the block has, and the pull as a proximal step
after each step on the loss: a plain one overshoots where the rate times L is large.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Method, MethodSpec, Search, Task, TaskPictures
from fewgraft.methods.incremental.lcwof import CALIBRATION_SHARE
from fewgraft.methods.moving import AdaptedSolution, AdaptedWeights, pictures_of
from fewgraft.prototypes import directions, prototypes

BLOCK_RATE = 0.1  # of the heads' rate
CLIP = 100.0  # largest norm of the gradient


@dataclass(frozen=True)
class BlockCalibration(Method):
    """Phases 2 and 3 on pictures."""

    moves_network = True
    uses_base_features = True
    search: ClassVar[Search] = {
        "lr": (0.003, 0.01, 0.03, 0.1),
        "calibration_lr": (0.03, 0.1, 0.3, 1.0),
        "pull": (5.0, 50.0, 500.0, 5000.0),
        "temperature": (2.0, 4.0),
    }
    search_by = "coordinates"

    lr: float = 0.03  # of the novel head in phase 2
    calibration_lr: float = 0.1  # of both heads in phase 3
    pull: float = 5.0  # L
    temperature: float = 4.0  # of the loss
    steps: int = 10
    calibration_steps: int = 10
    momentum: float = 0.9
    decay: float = 1e-4

    def fit(self, task: Task) -> AdaptedSolution:
        """Every episode starts anew."""
        episodes = [self._episode(task, e) for e in range(len(task))]
        return AdaptedSolution(pictures_of(task).network, episodes, task.gamma)

    def _episode(self, task: Task, e: int) -> "LinearWeights":
        """Both phases on one episode."""
        pictures, rows = pictures_of(task), slice(e, e + 1)
        [novel] = prototypes(task.support[rows], task.labels[rows], task.ways)
        adapted = LinearWeights.start(pictures.network, directions(task.weights), novel)
        support, labels = pictures.support[e], task.labels[e] + len(task.weights)
        learning = LearningPhase(support, labels, 1.0, self.steps, self.lr)
        self._descend(task, adapted, [adapted.novel], learning)
        stored = stored_pictures(pictures, len(task.weights))
        classes = torch.arange(len(stored), device=labels.device)
        calibration = LearningPhase(
            torch.cat([stored, support]),
            torch.cat([classes, labels]),
            CALIBRATION_SHARE,
            self.calibration_steps,
            self.calibration_lr,
        )
        self._descend(task, adapted, [adapted.base, adapted.novel], calibration)
        return adapted.detached()

    def _descend(
        self, task: Task, adapted: "LinearWeights", heads: list[Tensor], phase: "LearningPhase"
    ) -> None:
        """SGD on these heads and the block."""
        network = pictures_of(task).network
        start, block = network.start, adapted.parameters
        rate = BLOCK_RATE * phase.lr
        groups = [{"params": [*block.values()], "lr": rate}, {"params": heads, "lr": phase.lr}]
        optimiser = torch.optim.SGD(groups, momentum=self.momentum, weight_decay=self.decay)
        moving = [*block.values(), *heads]
        with torch.enable_grad():
            for step in range(phase.steps):
                view = network.views[step % len(network.views)]
                features = network.features(phase.pictures, block, (view,))
                logits = adapted.logits(features, task.gamma / self.temperature)
                loss = phase.share * cross_entropy(logits, phase.labels)
                gradients = torch.autograd.grad(loss, moving)
                for tensor, gradient in zip(moving, clipped(gradients, CLIP), strict=True):
                    tensor.grad = gradient
                optimiser.step()
                pull_back(block, start, rate * self.pull)


@dataclass(frozen=True)
class LearningPhase:
    """What is descended on: pictures [n] with their labels [n] among all classes."""

    pictures: Tensor
    labels: Tensor
    share: float  # of the cross-entropy
    steps: int
    lr: float


class LinearWeights(AdaptedWeights):
    """Heads whose lengths count."""

    def logits(self, features: Tensor, gamma: float) -> Tensor:
        """γ · f · w: [n, d] → [n, N_b+N]."""
        return gamma * features @ torch.cat([self.base, self.novel]).T


def stored_pictures(pictures: TaskPictures, n_base: int) -> Tensor:
    """One picture per base class [N_b]."""
    if pictures.base is None:
        raise FewgraftError(
            "LCwoF needs a stored picture per base class: the task has none",
            "`fewgraft.evaluate` and `fewgraft bench run` take them from base/train.",
        )
    return pictures.base[:n_base, 0]


def clipped(gradients: Sequence[Tensor], most: float) -> list[Tensor]:
    """Gradients whose joint norm is at most so large."""
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return [gradient * (most / norm).clamp(max=1.0) for gradient in gradients]


@torch.no_grad()
def pull_back(block: dict[str, Tensor], start: dict[str, Tensor], strength: float) -> None:
    """The minimum of strength·‖θ − θ⁰‖² + ½‖θ − block‖², in place."""
    share = 2 * strength / (1 + 2 * strength)
    for name, tensor in block.items():
        tensor.lerp_(start[name], share)


METHODS = (
    MethodSpec(
        "lcwof-block",
        "LCwoF (block)",
        BlockCalibration(),
        "pre-trained",
        rank=6,
        regular=False,
        remark="sees one stored picture per base class, which no rival with learnt pieces does",
    ),
)
