"""Methods with pieces that are learnt before any task: on features of a frozen network, once.

Such a method is one file, too: what its pieces are before training (`initial`), how it answers with
them (`fit`), and what training descends on (`loss`). The loop, the episodes, validation and files
are `training.pieces`'s. In testing the pieces come with the task, so that a method keeps no state.
"""

import math
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

BLOCK = "block/"  # begins the names of pieces that make a block of the network


class TrainedMethod(Method):
    """A method that learns pieces, one set of them per number of shots."""

    block_rank: int = 0  # of a block's difference, where it has a block of its own

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
    """All pieces before training; a method that moves the network has a block of its own."""
    found = method.initial(weights, gamma, shots, rng)
    if method.moves_network:
        start = {name: p.cpu() for name, p in network().start.items()}
        found |= initial_block(start, method.block_rank, rng)
    return found


def initial_block(start: LearntTensors, rank: int, rng: torch.Generator) -> dict[str, Tensor]:
    """A block's difference from the network's own, which begins at 0.

    That of a convolution is of low rank: a whole one is larger than the rest of what is learnt.
    """
    found = {}
    for name, tensor in start.items():
        piece, columns = BLOCK + name.replace(".", "/"), tensor[0].numel()
        if tensor.ndim == 1:
            found[piece] = torch.zeros_like(tensor)
        else:
            rows = torch.randn(rank, columns, generator=rng) / math.sqrt(columns)
            found |= {f"{piece}_in": rows, f"{piece}_out": torch.zeros(len(tensor), rank)}
    return found


def learnt_block(learnt: LearntTensors, start: LearntTensors) -> dict[str, Tensor]:
    """The block among the pieces, named as in the network, which has `start`."""
    found = {}
    for name, tensor in start.items():
        piece = BLOCK + name.replace(".", "/")
        change = learnt.get(piece)
        if change is None:
            change = (learnt[f"{piece}_out"] @ learnt[f"{piece}_in"]).view_as(tensor)
        found[name] = tensor + change
    return found
