"""CEC: weights of all classes and the query look at each other before they are compared.

Zhang et al., "Few-shot incremental learning with continually evolved classifiers", CVPR 2021. The
weights of all classes and *one* query are the rows of X. One attention with a residual adapts them:

    O = LayerNorm(X + F softmax(X A (X B)ᵀ / √d) X C + f)

and a class scores s · cos(O_query, O_class). The attention is learnt on episodes whose novel
classes are base classes rotated by quarters.

A set differs from query to query by one row only. A class's attention to the other classes is the
same in all sets, so that with c_i = σ(score of the query − log-sum-exp of the scores of classes)
its row before the LayerNorm is G_i + c_i (v_q − P_i): every cosine comes from products of queries
and classes, and no set is ever written out. Matrices are multiplied with each other and with rows
of classes first, so that a query meets two of them only: F C and Aᵀ B.

Kept: the equations, initial values, s = 16. Ours: rows are directions times √d, since features are
directions here; base weights are those of the classifier, where the authors have class means; the
network stays as it is, and episodes have all base classes beside N rotated ones, where the authors
have 15 beside 15. The authors' dropouts never act, because their model is in evaluation mode.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fewgraft.methods.base import LearntTensors, MethodSpec, Queries, Task
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import directions, join_logits, prototypes

SCALE = 16.0
EPS = 1e-5  # of the LayerNorm
AT_A_TIME = 1000  # queries
Struck = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Cec(TrainedMethod):
    """Class weights adapted to each query."""

    pieces = "cec"
    changes_base = True

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The authors' initial values."""
        del gamma, shots
        d = weights.shape[1]
        bound = math.sqrt(6 / (d + d))  # Xavier's, for F
        return {
            "asks": torch.randn(d, d, generator=rng) / math.sqrt(d),  # A, as rows of outputs
            "keys": torch.randn(d, d, generator=rng) / math.sqrt(d),  # B
            "values": torch.randn(d, d, generator=rng) / math.sqrt(d),  # C
            "join": bound * (2 * torch.rand(d, d, generator=rng) - 1),  # F
            "join_bias": torch.zeros(d),  # f
            "norm": torch.ones(d),
            "norm_bias": torch.zeros(d),
        }

    def fit(self, task: Task) -> "EvolvedClassifier":
        """Prototypes beside the weights of all classes so far."""
        novel = prototypes(task.support, task.labels, task.ways)
        return EvolvedClassifier(task, novel, self.learnt(task))


@dataclass(frozen=True)
class EvolvedClassifier:
    """Weights of all classes, and the attention that adapts them."""

    task: Task
    novel: Tensor  # [E, N, d]
    learnt: LearntTensors

    @property
    def carried(self) -> Tensor:
        """What the novel classes are in a next session."""
        return self.novel

    @cached_property
    def rows(self) -> Tensor:
        """[E, K, d] of all classes."""
        base = directions(self.task.weights).expand(len(self.novel), -1, -1)
        return math.sqrt(base.shape[-1]) * torch.cat([base, directions(self.novel)], 1)

    def _struck(self, scores: Tensor) -> Tensor:
        """Scores [E, n, K] without the base classes that an episode does without."""
        n_base = len(self.task.weights)
        return join_logits(self.task.strike(scores[..., :n_base]), scores[..., n_base:])

    def logits(self, queries: Queries) -> Tensor:
        """[E, Q, K]; base logits are made anew."""
        attention = _Attention.of(self.rows, self.learnt, self._struck)
        rows = math.sqrt(self.rows.shape[-1]) * queries.features
        parts = [attention.cosines(some) for some in torch.split(rows, AT_A_TIME, 1)]
        return self._struck(SCALE * torch.cat(parts, 1))


@dataclass(frozen=True)
class _Attention:
    """What all queries have in common: rows of classes [E, K, d] after they saw each other."""

    learnt: LearntTensors
    rows: Tensor
    asking: Tensor  # Bᵀ A x / √d [E, K, d]: times a query, what a class asks of it
    asked: Tensor  # Aᵀ B x / √d [E, K, d]: times a query, what it asks of a class
    evidence: Tensor  # [E, K] log-sum-exp of a class's scores over classes
    seen: Tensor  # P [E, K, d]
    values: Tensor  # F C x [E, K, d]
    struck: Struck

    @classmethod
    def of(cls, rows: Tensor, learnt: LearntTensors, struck: Struck) -> "_Attention":
        asks, keys, values = learnt["asks"], learnt["keys"], _values(rows, learnt)
        size = math.sqrt(rows.shape[-1])
        asking, asked = rows @ asks.T @ keys / size, rows @ keys.T @ asks / size
        scores = struck(asking @ rows.transpose(-2, -1))
        evidence, seen = scores.logsumexp(-1), scores.softmax(-1) @ values
        return cls(learnt, rows, asking, asked, evidence, seen, values, struck)

    def cosines(self, queries: Tensor) -> Tensor:
        """cos(O_query, O_class) [E, Q, K] of rows [E, Q, d]."""
        norm, bias = self.learnt["norm"], self.learnt["norm_bias"]
        values = _values(queries, self.learnt)
        answer = directions(self.adapted_queries(queries, values))
        values = _centred(values)
        share = self.share_of_query(queries)
        start = _centred(self.rows + self.learnt["join_bias"] + self.seen)  # G
        seen = _centred(self.seen)

        def dots(weights: Tensor, left: Tensor, same: Tensor) -> Tensor:
            """⟨y, left⟩ [E, Q, K] under weights [d], y = G + c (v − P); `same` is ⟨v, left⟩."""
            to_start, to_seen = (
                left @ (weights * part).transpose(-2, -1) for part in (start, seen)
            )
            return to_start + share * (same - to_seen)

        def squares(weights: Tensor) -> Tensor:
            """⟨y, y⟩ [E, Q, K] under weights [d]."""
            moved = values @ (weights * start).transpose(-2, -1)
            pairs = ((start, start), (start, seen), (seen, seen))
            own = [(weights * a * b).sum(-1)[:, None] for a, b in pairs]
            across = values @ (weights * seen).transpose(-2, -1)
            length = (weights * values * values).sum(-1, keepdim=True)
            first = 2 * share * (moved - own[1])
            return own[0] + first + share * share * (length - 2 * across + own[2])

        one = torch.ones_like(norm)
        deviation = (squares(one) / len(norm) + EPS).sqrt()
        product = dots(norm, answer, (norm * values * answer).sum(-1, keepdim=True)) / deviation
        product = product + (answer @ bias)[..., None]
        tilted = bias.expand_as(values)
        leaning = dots(norm, tilted, (norm * values * tilted).sum(-1, keepdim=True)) / deviation
        length = squares(norm * norm) / deviation.square() + 2 * leaning + bias.square().sum()
        return product / length.clamp(min=EPS).sqrt()

    def share_of_query(self, queries: Tensor) -> Tensor:
        """How much each class looks at the query, not at classes [E, Q, K]."""
        scores = queries @ self.asking.transpose(-2, -1)
        return (scores - self.evidence[:, None]).sigmoid()

    def adapted_queries(self, queries: Tensor, values: Tensor) -> Tensor:
        """O_query [E, Q, d] of rows and their values [E, Q, d]."""
        others = self.struck(queries @ self.asked.transpose(-2, -1))
        towards = self.learnt["asks"].T @ self.learnt["keys"] / math.sqrt(queries.shape[-1])
        own = ((queries @ towards) * queries).sum(-1, keepdim=True)
        shares = torch.cat([others, own], -1).softmax(-1)
        seen = shares[..., :-1] @ self.values + shares[..., -1:] * values
        centred = _centred(queries + seen + self.learnt["join_bias"])
        deviation = (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
        return self.learnt["norm"] * centred / deviation + self.learnt["norm_bias"]


def _values(rows: Tensor, learnt: LearntTensors) -> Tensor:
    """F C x."""
    return rows @ (learnt["join"] @ learnt["values"]).T


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(-1, keepdim=True)


METHODS = (MethodSpec("cec", "CEC", Cec(), "pre-trained", rank=2, regular=False),)
