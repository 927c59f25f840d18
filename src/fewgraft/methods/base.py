"""What every method is given, and what it gives back.

A method is a frozen dataclass of its hyper-parameters and keeps no state: `fit(task)` looks at the
support, its labels and U, and returns a `Solution`, which answers queries. Everything has a
leading episode dimension, so that many episodes are a few large matrix products. E episodes, S
support, U unlabelled and Q query pictures, N novel and N_b base classes, d features.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from fewgraft.errors import FewgraftError, nearest
from fewgraft.parsing import first_problem
from fewgraft.prototypes import direction_logits, join_logits

if TYPE_CHECKING:
    from fewgraft.network import Network

LARGEST_VALUE = 1e6
Search = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Task:
    """What a method may see of E episodes: never a query, never its label.

    Features are directions (of length 1), those of the queries too.
    """

    ways: int  # N
    support: Tensor  # features [E, S, d]
    labels: Tensor  # [E, S] in 0 … N−1; classes may have different numbers of supports
    unlabelled: Tensor  # features [E, U, d]; U may be 0
    base_unlabelled: Tensor  # γ·cos(f, w) [E, U, N_b]; N_b may be 0
    weights: Tensor  # W_b [N_b, d]
    gamma: float  # γ
    numbers: Tensor  # [E] which episode each is: all that is random depends on it alone
    pictures: "TaskPictures | None" = None  # for methods that move the network

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self.support)


@dataclass(frozen=True)
class TaskPictures:
    """The pictures behind the features, as indices into a network that can move."""

    network: "Network"
    support: Tensor  # [E, S]
    unlabelled: Tensor  # [E, U]


@dataclass(frozen=True)
class Queries:
    """Pictures to classify."""

    features: Tensor  # [E, Q, d]
    base_logits: Tensor  # γ·cos(f, w) [E, Q, N_b]
    pictures: Tensor | None = None  # [E, Q] for solutions whose network moved


class Solution(Protocol):
    """What was learnt."""

    def logits(self, queries: Queries) -> Tensor:
        """[E, Q, N_b+N], base classes first."""
        ...


class Method(ABC):
    """A way to learn novel classes; implementations are frozen dataclasses."""

    uses_unlabelled: ClassVar[bool] = False
    moves_network: ClassVar[bool] = False
    # Values that `bench tune` tries on validation episodes, by hyper-parameter. None of them may
    # turn the method, or a part of it, off: a search chooses how strong, not whether.
    search: ClassVar[Search] = {}
    # All combinations, or one hyper-parameter after the other, in the order of `search`.
    search_by: ClassVar[Literal["grid", "coordinates"]] = "grid"

    @abstractmethod
    def fit(self, task: Task) -> Solution:
        """Learn from a task."""

    def changed(self, **changes: Any) -> Self:
        """The same method with other hyper-parameters."""
        known = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        for name, value in changes.items():
            if name not in known:
                raise FewgraftError(
                    f"{type(self).__name__} has no hyper-parameter '{name}'", nearest(name, known)
                )
            self._check_value(name, value)
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def _check_value(self, name: str, value: Any) -> None:
        """Of the right kind, and a number that is one."""
        kind = get_type_hints(type(self))[name]
        any_kind = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
        try:
            TypeAdapter(kind, config=any_kind).validate_python(value, strict=True)
        except ValidationError as error:
            raise FewgraftError(f"hyper-parameter '{name}': {first_problem(error)}") from None
        if isinstance(value, (int, float)) and abs(value) > LARGEST_VALUE:
            raise FewgraftError(f"hyper-parameter '{name}': {value:.3g} is beyond measure")


@dataclass(frozen=True)
class MethodSpec:
    """A row of a table: a method, and the stage of training whose features it works on."""

    name: str
    title: str  # as tables print it
    method: Method
    stage: str  # pre-trained, algorithm-1 or algorithm-2
    rank: int  # place in tables
    joint: bool = True  # can tell base and novel classes apart
    regular: bool = True  # makes sense where there are no base classes


@dataclass(frozen=True)
class NovelWeights:
    """The usual solution: a weight a novel class beside W_b, which stays as it is."""

    novel: Tensor  # W_n [E, N, d]
    gamma: float
    bias: float = 0.0  # on the novel logits

    def logits(self, queries: Queries) -> Tensor:
        """Cosine logits over W = [W_b, W_n]."""
        novel = direction_logits(queries.features, self.novel, self.gamma)
        novel = novel + self.bias if self.bias else novel
        return join_logits(queries.base_logits, novel)
