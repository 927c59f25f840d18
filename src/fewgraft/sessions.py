"""Sessions: lessons one after the other, each with a few new classes, as indices only.

Tao et al., "Few-shot class-incremental learning", CVPR 2020. Session 0 has the base classes.
Session t ≥ 1 brings N new classes with K pictures of each, and with an unlabelled set U. After each
session the test pictures of all classes seen so far are to be told apart.

Draw r depends on (seed, r) alone. At one seed, a class has the same shots in draw r whatever the
order of classes, the number of sessions or the unlabelled sets are.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from fewgraft.data.parts import Part, Role
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices, KeyStream
from fewgraft.errors import FewgraftError, nearest

# What unlabelled sets show.
MIXES = {
    "seen": "as many pictures of classes seen before, base and novel, as of the new ones",
    "new": "the new classes only",
    "uniform": "all classes seen so far, the new ones among them, in equal numbers",
}
ORDERS = {"fixed": "classes in the order of the data", "drawn": "a random order in every draw"}
FIXED_SEED = 0  # of what is the same in all draws


@dataclass(frozen=True)
class SessionSettings:
    """All that determines the draws of sessions.

    Args:
        sessions: How many, after session 0.
        ways: New classes per session (N).
        shots: Labelled pictures per new class (K).
        unlabelled: Unlabelled pictures per new class (u); 0 for no unlabelled sets.
        mix: "seen": N·u of the new classes and N·u of classes seen before; "new": N·u of the new
            classes; "uniform": 2·N·u of all classes seen so far.
        order: "fixed" or "drawn": which classes come in which session.
        split: "test" or "val".
        queries: Pictures per novel class that test, where the data does not say which.
        listed: Whether the shots are the published ones.
        seed: Names the sequence of draws.

    Raises:
        FewgraftError: No draw can satisfy these settings.
    """

    sessions: int = 8
    ways: int = 5
    shots: int = 5
    unlabelled: int = 50
    mix: str = "seen"
    order: str = "fixed"
    split: str = "test"
    queries: int = 20
    listed: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no draw can satisfy."""
        for name, known in (("mix", MIXES), ("order", ORDERS), ("split", ("test", "val"))):
            if getattr(self, name) not in known:
                raise FewgraftError(
                    f"there is no {name} '{getattr(self, name)}'",
                    nearest(getattr(self, name), list(known)),
                )
        for name in ("sessions", "ways", "shots", "queries"):
            if getattr(self, name) < 1:
                raise FewgraftError(f"sessions need {name} ≥ 1, not {getattr(self, name)}")
        if self.unlabelled < 0 or not 0 <= self.seed < 2**64:
            raise FewgraftError("unlabelled must not be negative, and a seed is from 0 to 2⁶⁴ − 1")

    @property
    def size_of_u(self) -> int:
        """|U| of every session."""
        return self.ways * self.unlabelled * (1 if self.mix == "new" else 2)

    def record(self) -> dict[str, Any]:
        """All of them by name."""
        return asdict(self)

    @property
    def hash(self) -> str:
        """A short name for exactly these settings."""
        text = json.dumps(self.record(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __str__(self) -> str:
        """One line that a person can read, the hash last."""
        shots = "the published shots" if self.listed else f"{self.shots} shots"
        u = f"U {self.size_of_u} ({self.mix})" if self.unlabelled else "no U"
        return (
            f"{self.sessions} sessions of {self.ways} classes ({self.split}, order {self.order}), "
            f"{shots}, {u}, seed {self.seed} [{self.hash}]"
        )


@dataclass(frozen=True)
class SessionPools:
    """The pictures that sessions are drawn from; the roles of pictures never mix."""

    lessons: Mapping[int, Indices]  # {novel class: pictures for shots and U}
    queries: Mapping[int, Indices]  # {novel class: pictures that test}
    listed: Mapping[int, Indices]  # {novel class: published shots}; empty where there are none
    base_queries: Mapping[int, Indices]
    base_unlabelled: Mapping[int, Indices]  # what U may show of base classes
    names: tuple[str, ...] = ()

    @property
    def n_base(self) -> int:
        """How many base classes there are."""
        return len(self.base_queries)

    @property
    def pictures(self) -> Indices:
        """All of them, ascending."""
        groups = (self.lessons, self.queries, self.base_queries, self.base_unlabelled)
        return np.unique(np.concatenate([p for group in groups for p in group.values()]))

    @classmethod
    def of(cls, store: ImageStore, split: str = "test", queries: int = 20) -> Self:
        """The pools of a store's test or val parts.

        In testing, base/test tests and U shows base classes by base/val, which no network was
        trained on. In validation, one half of base/val does each. Without novel/val classes, base
        classes rotated by one, two or three quarters, each by a fixed number of them, are the novel
        ones of validation.
        """
        novel: Mapping[int, Indices]
        if split == "test":
            base_queries, base_unlabelled = (
                dict(store.by_class(part)) for part in (Part.BASE_TEST, Part.BASE_VAL)
            )
            novel = store.by_class(Part.NOVEL_TEST)
        else:
            halves = {k: _halves(p, k) for k, p in store.by_class(Part.BASE_VAL).items()}
            base_queries = {k: first for k, (first, _) in halves.items()}
            base_unlabelled = {k: second for k, (_, second) in halves.items()}
            novel = _rotated(store) if store.validates_on_base else store.by_class(Part.NOVEL_VAL)
        parted = {k: _parted(store, p, k, queries) for k, p in novel.items()}
        return cls(
            lessons={k: lessons for k, (lessons, _) in parted.items()},
            queries={k: asked for k, (_, asked) in parted.items()},
            listed=_listed(store, novel) if split == "test" else {},
            base_queries=base_queries,
            base_unlabelled=base_unlabelled,
            names=store.classes,
        )


def _halves(pictures: Indices, label: int) -> tuple[Indices, Indices]:
    """Two fixed halves of a class's pictures."""
    order = KeyStream(FIXED_SEED, label).permutation(len(pictures))
    return pictures[order[: len(order) // 2]], pictures[order[len(order) // 2 :]]


def _rotated(store: ImageStore) -> dict[int, Indices]:
    """base/val as novel classes: class k, rotated by 1 + k mod 3 quarters, is n_classes + k."""
    return {
        len(store.classes) + label: pictures + (1 + label % 3) * len(store)
        for label, pictures in store.by_class(Part.BASE_VAL).items()
    }


def _parted(
    store: ImageStore, pictures: Indices, label: int, queries: int
) -> tuple[Indices, Indices]:
    """What teaches a novel class and what tests it: as the data says, else by a fixed draw."""
    if store.roles is not None and pictures.max() < len(store):
        tests = store.roles[pictures] == Role.QUERY
        if tests.any():
            return pictures[~tests], pictures[tests]
    order = KeyStream(FIXED_SEED, label).permutation(len(pictures))
    return pictures[np.sort(order[queries:])], pictures[np.sort(order[:queries])]


def _listed(store: ImageStore, novel: Mapping[int, Indices]) -> dict[int, Indices]:
    if store.roles is None or not (store.roles == Role.LISTED).any():
        return {}
    return {k: p[store.roles[p] == Role.LISTED] for k, p in novel.items()}


@dataclass(frozen=True)
class SessionDraws:
    """What a method may see of R draws of T sessions: indices of pictures, and what tests."""

    settings: SessionSettings
    n_base: int
    classes: Indices  # [R, T, N] which class of the data each new class is
    support: Indices  # [R, T, N·K], class by class
    unlabelled: Indices  # [R, T, U] in random order
    tests: Mapping[int, Indices]  # {class of the data: pictures that test it}, base classes first

    def __len__(self) -> int:
        """How many draws there are."""
        return len(self.classes)

    def queries(self, number: int) -> tuple[Indices, Indices]:
        """Test pictures [Q] of all classes of a draw, and their columns [Q], those of base first.

        Columns are in the order in which classes come.
        """
        order = [*range(self.n_base), *self.classes[number].flatten().tolist()]
        pictures = [self.tests[label] for label in order]
        columns = np.repeat(np.arange(len(order)), [len(some) for some in pictures])
        return np.concatenate(pictures), columns

    @property
    def hash(self) -> str:
        """A name for exactly these draws, the same on every machine."""
        digest = hashlib.sha256()
        for array in (self.classes, self.support, self.unlabelled, *self.tests.values()):
            digest.update(str(array.shape).encode())
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


def draw_sessions(
    pools: SessionPools, settings: SessionSettings, count: int = 100, first: int = 0
) -> SessionDraws:
    """Draws number `first` … `first + count − 1`."""
    check_sessions(pools, settings)
    drawn = [_draw(pools, settings, first + r) for r in range(count)]
    classes, support, unlabelled = (np.stack(part) for part in zip(*drawn, strict=True))
    base = {label: pools.base_queries[label] for label in range(pools.n_base)}
    return SessionDraws(
        settings, pools.n_base, classes, support, unlabelled, {**base, **pools.queries}
    )


def _draw(
    pools: SessionPools, settings: SessionSettings, number: int
) -> tuple[Indices, Indices, Indices]:
    """Classes [T, N], support [T, N·K] and unlabelled [T, U] of one draw."""
    stream = KeyStream(settings.seed, number)
    labels = np.array(sorted(pools.lessons), np.int64)
    drawn = labels[stream.permutation(len(labels))]
    order = drawn if settings.order == "drawn" else labels
    classes = order[: settings.sessions * settings.ways].reshape(settings.sessions, settings.ways)
    queues = {
        label: _shuffled(pools, settings, label, stream)
        for label in [*labels.tolist(), *range(pools.n_base)]
    }
    left = _Left(queues)
    support, unlabelled = [], []
    for session in classes.tolist():
        support.append(np.concatenate([left.take(label, settings.shots) for label in session]))
    for t, session in enumerate(classes.tolist()):
        seen = [*range(pools.n_base), *classes[:t].flatten().tolist()]
        pictures = _unlabelled_set(settings, session, seen, left, stream)
        unlabelled.append(pictures[stream.permutation(len(pictures))])
    return classes, np.stack(support), np.stack(unlabelled)


def _shuffled(
    pools: SessionPools, settings: SessionSettings, label: int, stream: KeyStream
) -> Indices:
    """The pictures of a class in the order in which a draw uses them."""
    pictures = pools.base_unlabelled[label] if label < pools.n_base else pools.lessons[label]
    shuffled = pictures[stream.permutation(len(pictures))]
    if not settings.listed or label < pools.n_base:
        return shuffled
    listed = pools.listed[label]
    return np.concatenate([listed, shuffled[~np.isin(shuffled, listed)]])


class _Left:
    """Pictures of each class that a draw has not used yet: none is used twice."""

    def __init__(self, queues: Mapping[int, Indices]) -> None:
        self._queues = queues
        self._used = dict.fromkeys(queues, 0)

    def count(self, label: int) -> int:
        return len(self._queues[label]) - self._used[label]

    def take(self, label: int, count: int) -> Indices:
        start = self._used[label]
        self._used[label] = start + count
        return self._queues[label][start : start + count]


def _unlabelled_set(
    settings: SessionSettings,
    new: Sequence[int],
    seen: Sequence[int],
    left: _Left,
    stream: KeyStream,
) -> Indices:
    """U of one session, class by class."""
    count = settings.ways * settings.unlabelled
    if settings.mix == "uniform":
        return _even(2 * count, [*seen, *new], left, stream)
    parts = [left.take(label, settings.unlabelled) for label in new]
    if settings.mix == "seen":
        parts.append(_even(count, seen, left, stream))
    return np.concatenate(parts)


def _even(count: int, classes: Sequence[int], left: _Left, stream: KeyStream) -> Indices:
    """Pictures of classes in numbers that differ by one at most; a class without pictures is passed
    over, and others give more.
    """
    order = [classes[place] for place in stream.permutation(len(classes)).tolist()]
    wanted = dict.fromkeys(order, 0)
    while count:
        open_classes = [k for k in order if wanted[k] < left.count(k)]
        if not open_classes:
            raise FewgraftError(
                f"U lacks {count} pictures: the classes seen so far have none left",
                "Use fewer sessions, or a smaller number of unlabelled pictures.",
            )
        for label in open_classes[:count]:
            wanted[label] += 1
        count -= len(open_classes[:count])
    return np.concatenate([left.take(label, n) for label, n in wanted.items()])


def check_sessions(pools: SessionPools, settings: SessionSettings) -> None:
    """Enough classes, and enough pictures of each."""
    there, wanted = len(pools.lessons), settings.sessions * settings.ways
    if there < wanted:
        raise FewgraftError(
            f"{settings.sessions} sessions of {settings.ways} classes need {wanted} novel classes; "
            f"novel/{settings.split} has {there}",
            f"Use {there // settings.ways} sessions, or fewer classes in each.",
        )
    own = settings.unlabelled if settings.mix != "uniform" else 0
    for label, pictures in pools.lessons.items():
        if len(pictures) < settings.shots + own or not len(pools.queries[label]):
            raise FewgraftError(
                f"novel class number {label} has {len(pictures)} pictures beside those that test; "
                f"{settings.shots} shots and {own} unlabelled pictures need {settings.shots + own}",
                "Use fewer shots, queries or unlabelled pictures.",
            )
    if settings.listed and set(map(len, pools.listed.values())) != {settings.shots}:
        raise FewgraftError(
            f"this data has no published list of {settings.shots} shots per class",
            "CIFAR-100 has one where it was added from the original cifar-100-python files.",
        )
