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
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from fewgraft.errors import FewgraftError, nearest
from fewgraft.parsing import first_problem
from fewgraft.prototypes import direction_logits, join_logits, without_columns

if TYPE_CHECKING:
    from fewgraft.base_knowledge import BaseKnowledge
    from fewgraft.network import Network

LARGEST_VALUE = 1e6
Search = Mapping[str, tuple[Any, ...]]
LearntTensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Task:
    """What a method may see of E episodes: never a query, never its label.

    Features are directions (of length 1), those of the queries too.

    Attributes:
        ways: Novel classes (N).
        support: Features [E, S, d].
        labels: Classes of the support [E, S], in 0 … N−1. Classes may have different numbers of
            supports.
        unlabelled: Features [E, U, d]; U may be 0.
        base_unlabelled: γ·cos(f, w) of the unlabelled pictures [E, U, N_b], or
            `Method.base_scores`; N_b may be 0.
        weights: W_b [N_b, d].
        gamma: γ.
        numbers: Which episode each is [E]; all that is random depends on it alone.
        pictures: For methods that move the network or look at views of the pictures.
        learnt: What was learnt beforehand for this number of shots, by name, for methods that name
            `pieces`.
        base_features: A few features of base/train per base class [N_b, m, d], for methods that say
            `uses_base_features`; in settings without base classes, too.
        absent: Base classes that each episode does without [E, ·]; None: it has all.
        lengths: How long the features of support [E, S] and unlabelled [E, U] were before they
            became directions, for methods that say `uses_lengths`.
        grafted: How many of the base classes, the last ones, were novel in earlier sessions.
        previous: The method's own solution of the session before, for what it keeps beside weights;
            None: this is the first.
        present: Which of the unlabelled pictures are there [E, U], for methods that say
            `takes_gaps`; the others are rows of 0. None: all are.
        mid: Mid-level directions of support [E, S, c] and unlabelled [E, U, c], for methods that
            say `uses_mid_features`; None: there are none.
        knowledge: What is kept of base classes beside W_b, for methods that say `uses_knowledge`;
            None: nothing.

    Example:
        >>> import torch
        >>> from fewgraft.methods.nearest_prototype import NearestPrototype
        >>> from fewgraft.prototypes import directions
        >>> task = fewgraft.Task(
        ...     ways=5,
        ...     support=directions(torch.randn(2, 5, 16)),
        ...     labels=torch.arange(5).expand(2, 5),
        ...     unlabelled=torch.empty(2, 0, 16),
        ...     base_unlabelled=torch.empty(2, 0, 0),
        ...     weights=torch.empty(0, 16),
        ...     gamma=20.0,
        ...     numbers=torch.arange(2),
        ... )
        >>> NearestPrototype().fit(task).novel.shape
        torch.Size([2, 5, 16])
    """

    ways: int
    support: Tensor
    labels: Tensor
    unlabelled: Tensor
    base_unlabelled: Tensor
    weights: Tensor
    gamma: float
    numbers: Tensor
    pictures: "TaskPictures | None" = None
    learnt: LearntTensors | None = None
    base_features: Tensor | None = None
    absent: Tensor | None = None
    lengths: tuple[Tensor, Tensor] | None = None
    grafted: int = 0
    previous: "Solution | None" = None
    present: Tensor | None = None
    mid: tuple[Tensor, Tensor] | None = None
    knowledge: "BaseKnowledge | None" = None

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self.support)

    @property
    def first_weights(self) -> Tensor:
        """W_b without the classes of earlier sessions."""
        return self.weights[: len(self.weights) - self.grafted]

    def with_lengths(self) -> tuple[Tensor, Tensor]:
        """Features of support [E, S, d] and unlabelled [E, U, d] as the network gives them."""
        if self.lengths is None:
            raise FewgraftError("this method needs the lengths of features, and there are none")
        support, unlabelled = self.lengths
        return support[..., None] * self.support, unlabelled[..., None] * self.unlabelled

    def strike(self, scores: Tensor) -> Tensor:
        """Scores [E, n, N_b] over the base classes with −∞ for those that are absent.

        Logits and attention alike: a class that an episode takes for novel is no base class in it.
        """
        if self.absent is None or not scores.shape[-1]:
            return scores
        return without_columns(scores, self.absent)


@dataclass(frozen=True)
class TaskPictures:
    """The pictures behind the features, as indices into a network that can move."""

    network: "Network"
    support: Tensor  # [E, S]
    unlabelled: Tensor  # [E, U]
    base: Tensor | None = None  # those that `base_features` are of [N_b, m]


@dataclass(frozen=True)
class Queries:
    """Pictures to classify.

    Attributes:
        features: Directions [E, Q, d].
        base_logits: γ·cos(f, w) over the base classes [E, Q, N_b], or `Method.base_scores`.
        pictures: Indices [E, Q], for solutions whose network moved.
    """

    features: Tensor
    base_logits: Tensor
    pictures: Tensor | None = None


class Solution(Protocol):
    """What was learnt."""

    def logits(self, queries: Queries) -> Tensor:
        """[E, Q, N_b+N], base classes first."""
        ...


class Method(ABC):
    """A way to learn novel classes; implementations are frozen dataclasses.

    The fields are the hyper-parameters, and `fit` keeps no state. `uses_unlabelled` says whether it
    looks at U, `moves_network` and `uses_pictures` whether it needs the pictures,
    `uses_base_features` whether it needs features of base/train, `pieces` what it has learnt
    beforehand, and `search` which values of hyper-parameters `fewgraft bench tune` tries.

    Example:
        >>> from dataclasses import dataclass
        >>> from fewgraft.methods.base import NovelWeights
        >>> from fewgraft.prototypes import prototypes
        >>> @dataclass(frozen=True)
        ... class Imprint(fewgraft.Method):
        ...     bias: float = 0.0  # on the novel logits
        ...
        ...     def fit(self, task: fewgraft.Task) -> NovelWeights:
        ...         novel = prototypes(task.support, task.labels, task.ways)
        ...         return NovelWeights(novel, task.gamma, self.bias)
        >>> found = fewgraft.evaluate(Imprint(bias=-1.0), setting="incremental", episodes=20)
        >>> found.title
        'Imprint(bias=-1.0)'
    """

    uses_unlabelled: ClassVar[bool] = False
    moves_network: ClassVar[bool] = False
    uses_pictures: ClassVar[bool] = False  # views of them, though the network stays as it is
    uses_base_features: ClassVar[bool] = False
    uses_lengths: ClassVar[bool] = False  # of features, before they became directions
    uses_mid_features: ClassVar[bool] = False  # means of what enters the last block
    uses_knowledge: ClassVar[bool] = False  # of base classes, beside their weights
    # Hyper-parameters that `base_scores` looks at.
    for_base: ClassVar[tuple[str, ...]] = ()
    changes_base: ClassVar[bool] = False  # whether base logits are others than γ·cos(f, w)
    takes_gaps: ClassVar[bool] = False  # whether episodes may have U of different sizes
    # How many episodes it is given together; 0: as many as is usual in the setting.
    at_a_time: ClassVar[int] = 0
    # What its learnt pieces are called, beside the models and in recipes; "": it has none.
    pieces: ClassVar[str] = ""
    # Values that `bench tune` tries on validation episodes, by hyper-parameter. None of them may
    # turn the method, or a part of it, off: a search chooses how strong, not whether. Pieces may be
    # used with any of them, whichever they were learnt with.
    search: ClassVar[Search] = {}
    # Those of them that `fit` does not look at but leaves to the solution, as its `config`: `bench
    # tune` fits once for all their values.
    for_answers: ClassVar[tuple[str, ...]] = ()
    # All combinations, or one hyper-parameter after the other, in the order of `search`.
    search_by: ClassVar[Literal["grid", "coordinates"]] = "grid"

    # Values that only validation sessions try, once the rest is chosen: of hyper-parameters that
    # mean nothing in one episode. They may turn a part off. Where all of `search` is among them,
    # they take its place.
    over_sessions: ClassVar[Search] = {}

    # Hyper-parameters that came later: at their defaults they are no part of a row's name, so that
    # rows of before keep theirs.
    added: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def fit(self, task: Task) -> Solution:
        """Learn from a task.

        Args:
            task: E episodes.

        Returns:
            A `Solution`, whose `logits(queries)` gives [E, Q, N_b+N], base classes first.
        """

    def base_scores(
        self, features: Tensor, logits: Tensor, knowledge: "BaseKnowledge | None"
    ) -> Tensor:
        """Scores over base classes [n, N_b] of directions [n, d], from γ·cos(f, w) [n, N_b].

        For methods that say `uses_knowledge`. They depend on the picture alone, so that they are
        computed once per picture and not once per episode.
        """
        del features, knowledge
        return logits

    @property
    def learner(self) -> "Method":
        """The method whose pieces are used: itself, or the one inside it."""
        return self

    @property
    def hyper(self) -> dict[str, Any]:
        """All hyper-parameters by name, without those that came later and are at their defaults."""
        defaults = {f.name: f.default for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()  # type: ignore[call-overload]
            if name not in self.added or value != defaults[name]
        }

    def inherited(self, hyper: dict[str, Any]) -> dict[str, Any]:
        """What is chosen for the method that this one builds on, under the names it has here."""
        return hyper

    def changed(self, **changes: Any) -> Self:
        """The same method with other hyper-parameters.

        Args:
            changes: Values by name.

        Returns:
            A new method.

        Raises:
            FewgraftError: There is no such hyper-parameter, or the value is of another kind.
        """
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
        try:
            _adapter(type(self), name).validate_python(value, strict=True)
        except ValidationError as error:
            raise FewgraftError(f"hyper-parameter '{name}': {first_problem(error)}") from None
        if isinstance(value, (int, float)) and abs(value) > LARGEST_VALUE:
            raise FewgraftError(f"hyper-parameter '{name}' is beyond ±{LARGEST_VALUE:,.0f}")


@cache
def _adapter(method: type[Method], name: str) -> TypeAdapter[Any]:
    """That checks a hyper-parameter."""
    any_kind = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    return TypeAdapter(get_type_hints(method)[name], config=any_kind)


@dataclass(frozen=True)
class MethodSpec:
    """A row of a table: a method, and the stage of training whose features it works on.

    Attributes:
        name: Of the method, on the command line and in `evaluate`.
        title: As tables print it.
        method: With its default hyper-parameters.
        stage: "pre-trained", "algorithm-1" or "algorithm-2".
        rank: Place in tables.
        joint: Whether it can tell base and novel classes apart.
        regular: Whether it makes sense where there are no base classes.
        balanced: Whether it assumes equally many unlabelled pictures per class.
        remark: What a reader must know beside its figures; a footnote of tables.
        builds_on: Name of the method whose tuned hyper-parameters it begins with; it is tuned after
            that one.
    """

    name: str
    title: str
    method: Method
    stage: str
    rank: int
    joint: bool = True
    regular: bool = True
    balanced: bool = False
    remark: str = ""
    builds_on: str = ""


@dataclass(frozen=True)
class NovelWeights:
    """The usual solution: a weight per novel class beside W_b, which stays as it is.

    Attributes:
        novel: W_n [E, N, d].
        gamma: γ.
        bias: On the novel logits.
        grafted: How many of the novel classes, the first ones, were novel in earlier sessions: they
            replace the last base columns.
    """

    novel: Tensor
    gamma: float
    bias: float = 0.0
    grafted: int = 0

    @property
    def carried(self) -> Tensor:
        """What the novel classes are in a next session."""
        return self.novel

    def logits(self, queries: Queries) -> Tensor:
        """Cosine logits over W = [W_b, W_n]."""
        novel = direction_logits(queries.features, self.novel, self.gamma)
        novel = novel + self.bias if self.bias else novel
        kept = queries.base_logits.shape[-1] - self.grafted
        return join_logits(queries.base_logits[..., :kept], novel)
