"""A phase of training: what a step's loss is, what moves, how it is validated."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from fewgraft.model import CosineModel
from fewgraft.training.recipe import Optimisation


@dataclass(frozen=True)
class Shard:
    """Which part of a step this process does: every `of`-th item, from `number` on."""

    number: int = 0
    of: int = 1


class Phase(ABC):
    """Everything random in `loss` is a function of the recipe's seed and the step."""

    name: str
    steps: int
    validate_every: int
    optimisation: Optimisation
    model: CosineModel

    @property
    def learner(self) -> nn.Module:
        """All that training changes: the model, and whatever helps it until it is trained."""
        return self.model

    @abstractmethod
    def loss(self, step: int, shard: Shard) -> tuple[Tensor, float]:
        """Mean loss of this process's shard of the step, and its accuracy."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Figures on validation episodes; `score` decides which step is kept."""

    def result(self) -> dict[str, Tensor]:
        """What is kept if training ended now, and what `validate` looks at: the model's weights."""
        return self.model.state_dict()

    def restore(self, result: dict[str, Tensor]) -> None:
        """Go back to what `result` gave."""
        self.model.load_state_dict(result)

    def moving(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that training changes, by name."""
        return list(self.learner.named_parameters())

    def set_mode(self) -> None:
        """Put everything into the mode it trains in."""
        self.learner.train()


class StepLoss(nn.Module):
    """The loss as a module's forward pass, which is where gradients of processes are joined."""

    def __init__(self, phase: Phase, shard: Shard) -> None:
        super().__init__()
        self.learner = phase.learner
        self._loss = phase.loss
        self._shard = shard

    def forward(self, step: int) -> tuple[Tensor, float]:
        """Loss and accuracy of a step."""
        return self._loss(step, self._shard)
