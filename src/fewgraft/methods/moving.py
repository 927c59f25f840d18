"""What methods share that move the network for each episode anew: the descent and its result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fewgraft.draws import KeyStream
from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Queries, Task, TaskPictures
from fewgraft.prototypes import cosine_logits, join_logits

if TYPE_CHECKING:
    from fewgraft.network import Network


@dataclass(frozen=True)
class AdaptedWeights:
    """θ (its moving part), W_b and W_n of one episode."""

    parameters: dict[str, Tensor]
    base: Tensor  # [N_b, d]
    novel: Tensor  # [N, d]

    @classmethod
    def start(cls, network: "Network", base: Tensor, novel: Tensor) -> Self:
        """Where every episode begins: copies that may move."""
        copied = {name: p.clone().requires_grad_() for name, p in network.start.items()}
        return cls(copied, *(w.detach().clone().requires_grad_() for w in (base, novel)))

    def all(self) -> list[Tensor]:
        """Everything that moves."""
        return [*self.parameters.values(), self.base, self.novel]

    def detached(self) -> Self:
        """As they are now, for good."""
        return self.interpolate(self, 0.0)

    def interpolate(self, start: "AdaptedWeights", share: float) -> Self:
        """`share` of the way back to the start, for good."""
        parameters = {
            name: torch.lerp(p.detach(), start.parameters[name].detach(), share)
            for name, p in self.parameters.items()
        }
        ends = zip((self.base, self.novel), (start.base, start.novel), strict=True)
        base, novel = (torch.lerp(own.detach(), other.detach(), share) for own, other in ends)
        return replace(self, parameters=parameters, base=base, novel=novel)

    def logits(self, features: Tensor, gamma: float) -> Tensor:
        """Cosine logits over W = [W_b, W_n]: [n, d] → [n, N_b+N]."""
        return cosine_logits(features, torch.cat([self.base, self.novel]), gamma)


@dataclass(frozen=True)
class AdaptedSolution:
    """One network an episode."""

    network: "Network"
    episodes: Sequence[AdaptedWeights]
    gamma: float
    keeps_base: bool = False  # base classes are scored as if nothing had moved

    @torch.no_grad()
    def logits(self, queries: Queries) -> Tensor:
        """Queries through the network of their own episode."""
        if queries.pictures is None:
            raise FewgraftError("this solution moved the network: it needs pictures, not features")
        rows = [
            adapted.logits(self.network.features(pictures, adapted.parameters), self.gamma)
            for adapted, pictures in zip(self.episodes, queries.pictures, strict=True)
        ]
        logits = torch.stack(rows)
        if self.keeps_base:
            logits = join_logits(queries.base_logits, logits[..., queries.base_logits.shape[-1] :])
        return logits


def pictures_of(task: Task) -> TaskPictures:
    """The task's pictures, or an error that says what is missing."""
    if task.pictures is None:
        raise FewgraftError(
            "this method moves the network: it needs the model and its pictures",
            "Features alone are enough for the other methods.",
        )
    return task.pictures


def descend(
    adapted: AdaptedWeights, loss: Callable[[int], Tensor], steps: int, lr: float, momentum: float
) -> None:
    """Plain SGD with momentum; `loss` is a function of the step."""
    optimiser = torch.optim.SGD(adapted.all(), lr=lr, momentum=momentum)
    with torch.enable_grad():
        for step in range(steps):
            optimiser.zero_grad()
            torch.autograd.backward(loss(step))
            optimiser.step()


def batches(total: int, size: int, number: int) -> Callable[[int], Tensor]:
    """step → places [size] in a set of `total`: every epoch is a permutation of its own."""
    size = min(size, total)
    each = total // size if size else 1

    def batch(step: int) -> Tensor:
        epoch, place = divmod(step, each)
        order = KeyStream(number, epoch).permutation(total)
        return torch.from_numpy(order[place * size :][:size])

    return batch
