"""Methods with pieces that are learnt before any task: on features of a frozen network, once.

Such a method is one file, too: what its pieces are before training (`initial`), how it answers with
them (`fit`), and what training descends on (`loss`). The loop, the episodes, validation and files
are `training.pieces`'s. In testing the pieces come with the task, so that a method keeps no state.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import LearntTensors, Method, Queries, Task

if TYPE_CHECKING:
    from fewgraft.network import Network

BLOCK = "block/"  # begins the names of pieces that are a block of the network


class TrainedMethod(Method):
    """A method that learns pieces, one set of them per number of shots."""

    @abstractmethod
    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The pieces before training, by name, beside W_b `weights` [N_b, d] and γ."""

    def loss(
        self, task: Task, queries: Queries, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """What training descends on, and the logits [E, Q, N_b+N]; `labels` [E, Q].

        The mean cross-entropy of the queries. All that is random comes from `rng`.
        """
        del rng
        logits = self.fit(task).logits(queries)
        return cross_entropy(logits.flatten(0, 1), labels.flatten()), logits

    def learnt(self, task: Task) -> LearntTensors:
        """The pieces that came with a task."""
        if task.learnt is None:
            raise FewgraftError(
                f"{type(self).__name__} needs what it has learnt: the task has no pieces",
                "`fewgraft.evaluate` and `fewgraft bench run` find them beside the models.",
            )
        return task.learnt


def pieces_before(
    method: TrainedMethod,
    weights: Tensor,
    gamma: float,
    shots: int,
    rng: torch.Generator,
    network: "Callable[[], Network]",
) -> dict[str, Tensor]:
    """All pieces before training.

    A method that moves the network learns a last block of its own, which begins as the network's.
    """
    found = method.initial(weights, gamma, shots, rng)
    if method.moves_network:
        start = network().start.items()
        found |= {BLOCK + name.replace(".", "/"): p.cpu().clone() for name, p in start}
    return found


def learnt_block(learnt: LearntTensors) -> dict[str, Tensor]:
    """The block among the pieces, named as in the network."""
    return {
        name.removeprefix(BLOCK).replace("/", "."): tensor
        for name, tensor in learnt.items()
        if name.startswith(BLOCK)
    }
