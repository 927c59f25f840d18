"""Tasks of novel classes alone, from features that a test makes up."""

from typing import Any

import torch
from torch import Tensor

from fewgraft.methods.base import Queries, Task


def novel_task(
    support: Tensor, labels: Tensor, unlabelled: Tensor, queries: Tensor, **more: Any
) -> tuple[Task, Queries]:
    """Support [E, S, d] with labels [S], U [E, U, d], queries [E, Q, d]; no base classes."""
    task = Task(
        ways=int(labels.max()) + 1,
        support=support,
        labels=labels.expand(len(support), -1),
        unlabelled=unlabelled,
        base_unlabelled=unlabelled[..., :0],
        weights=unlabelled[0, :0],
        gamma=10.0,
        numbers=torch.arange(len(support)),
        **more,
    )
    return task, Queries(queries, queries[..., :0])
