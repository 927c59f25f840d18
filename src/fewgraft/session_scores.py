"""Metrics of sessions: how right a classifier is after each, and what is left of the base classes.

A_t is the share of all test pictures of the classes seen so far that are right, in one softmax over
all of them. Base and novel accuracies are means over classes. With equally many test pictures per
class, A_t is the mean of the two, weighted by the numbers of classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SESSION_METRICS = ("acc", "base", "novel", "newest", "harmonic")
OVER_SESSIONS = ("average", "drop")


@dataclass(frozen=True)
class SessionScores:
    """Accuracies of R draws after sessions 0 … T, as shares from 0 to 1, all of shape [R, T+1].

    Attributes:
        acc: Over all test pictures of the classes seen so far.
        base: Mean over base classes, among all classes seen.
        novel: Mean over all novel classes seen; NaN in session 0.
        newest: Mean over the session's own classes; NaN in session 0.
    """

    acc: Tensor
    base: Tensor
    novel: Tensor
    newest: Tensor

    @property
    def harmonic(self) -> Tensor:
        """2·base·novel / (base + novel) [R, T+1]; NaN in session 0."""
        total = self.base + self.novel
        return torch.where(total == 0, total, 2 * self.base * self.novel / total)

    @property
    def average(self) -> Tensor:
        """Mean of A_0 … A_T [R]."""
        return self.acc.mean(1)

    @property
    def drop(self) -> Tensor:
        """A_0 − A_T [R], which papers call PD: a bad A_0 makes it small."""
        return self.acc[:, 0] - self.acc[:, -1]


def score_session(answers: Tensor, columns: Tensor, n_base: int, ways: int) -> list[float]:
    """`SessionScores` of one draw after one session.

    `answers` [Q] and `columns` [Q] are columns of classes in the order in which they came; the last
    `ways` are the session's own.
    """
    right = (answers == columns).double()
    count = torch.bincount(columns).double()
    per_class = torch.bincount(columns, right) / count  # every class seen has test pictures
    first_new = len(count) - ways
    nan = torch.tensor(float("nan"))
    parts = (
        right.mean(),
        per_class[:n_base].mean(),
        per_class[n_base:].mean() if len(count) > n_base else nan,
        per_class[first_new:].mean() if ways else nan,
    )
    return [part.item() for part in parts]
