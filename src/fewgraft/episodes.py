"""Episodes: which pictures are support, query and unlabelled, as indices only.

An episode of S²I-FSL picks N novel classes; K pictures of each are the support set S, and 15 of
each together with 75 base pictures are the query set Q. The unlabelled set U is empty (inductive),
is exactly Q (transductive), or holds further pictures of novel and base classes (semi-supervised).
Labels in an episode: base classes keep 0 … N_b−1, the novel classes are N_b … N_b+N−1.

Labels of queries live apart, in `QueryLabels`: a method cannot leak what it never holds.

Episode e depends on (seed, e) alone, and the settings share their draws: at one seed, episode e has
the same classes and the same queries in every setting and at every shot, and the 1-shot support is
part of the 5-shot support. What differs between two rows of a table is then the setting, not luck.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices, KeyStream, smallest
from fewgraft.errors import FewgraftError, nearest

UNEQUAL = 1 << 40  # streams from here on share U out
DISTRACTOR = -1  # the label of an unlabelled picture whose class the episode does not have


@dataclass(frozen=True)
class Setting:
    """One of the task's settings: are there base classes, and where does U come from?"""

    incremental: bool
    unlabelled: str  # "none", "query" or "extra"
    summary: str


SETTINGS = {
    "fsl": Setting(False, "none", "standard few-shot learning: novel classes only"),
    "transductive-fsl": Setting(False, "query", "novel classes only, U is the query set"),
    "semi-fsl": Setting(False, "extra", "novel classes only, U holds more of their pictures"),
    "incremental": Setting(True, "none", "base and novel classes, no U"),
    "s2i-transductive": Setting(True, "query", "base and novel classes, U is the query set"),
    "s2i": Setting(True, "extra", "base and novel classes, U mixes more pictures of both"),
}


@dataclass(frozen=True)
class EpisodeSettings:
    """All that determines the episodes of a pool; `paper` fills in the paper's numbers.

    Args:
        setting: "s2i", "s2i-transductive", "incremental", "semi-fsl", "transductive-fsl" or "fsl".
        split: "test", "val" or "train": which base and novel parts are drawn from.
        ways: Novel classes per episode (N).
        shots: Support pictures per novel class (K).
        queries: Query pictures per novel class.
        base_queries: Query pictures of base classes, all classes together.
        unlabelled: |U| without distractors.
        novel_share: Share of U that shows novel classes.
        distractors: Classes in U that are neither base nor novel in this episode.
        distractor_pictures: Pictures of each of them, on top of `unlabelled`.
        dirichlet: Concentration of the Dirichlet distribution that shares U out among the novel
            classes; the smaller, the more unequal. 0 gives all classes the same number.
        seed: Names the sequence of episodes.

    Raises:
        FewgraftError: No episode can satisfy these settings.

    Example:
        >>> settings = fewgraft.EpisodeSettings.paper("s2i", shots=5, ways=10)
        >>> settings.novel_unlabelled, settings.base_unlabelled
        (500, 500)
    """

    setting: str = "s2i"
    split: str = "test"
    ways: int = 5
    shots: int = 1
    queries: int = 15
    base_queries: int = 75
    unlabelled: int = 300
    novel_share: float = 0.5
    distractors: int = 0
    distractor_pictures: int = 30
    seed: int = 0
    dirichlet: int = 0

    def __post_init__(self) -> None:
        """Refuse what no episode can satisfy."""
        if self.setting not in SETTINGS:
            raise FewgraftError(
                f"there is no setting '{self.setting}'", nearest(self.setting, SETTINGS)
            )
        if self.split not in ("train", "val", "test"):
            raise FewgraftError(f"there is no split '{self.split}'", "Known: train, val, test")
        for name in ("ways", "shots", "queries"):
            if getattr(self, name) < 1:
                raise FewgraftError(f"an episode needs {name} ≥ 1, not {getattr(self, name)}")
        counts = ("base_queries", "unlabelled", "distractors", "distractor_pictures", "dirichlet")
        for name in (*counts, "seed"):
            if getattr(self, name) < 0:
                raise FewgraftError(f"{name} must not be negative, as {getattr(self, name)} is")
        if self.seed >= 2**64:
            raise FewgraftError(f"a seed must be below 2⁶⁴, as {self.seed} is not")
        if not 0 <= self.novel_share <= 1:
            raise FewgraftError(f"novel_share is a share from 0 to 1, not {self.novel_share}")
        if not self.kind.incremental and (self.base_queries or self.base_unlabelled):
            raise FewgraftError(
                f"'{self.setting}' has no base classes: base_queries must be 0 and novel_share 1",
                "EpisodeSettings.paper(setting, shots) fills in what fits.",
            )
        if (self.distractors or self.dirichlet) and self.kind.unlabelled != "extra":
            raise FewgraftError(
                f"'{self.setting}' has no unlabelled set of its own to put distractors into or to "
                "share out",
                "Use s2i or semi-fsl, or leave distractors and dirichlet at 0.",
            )

    @classmethod
    def paper(cls, setting: str = "s2i", shots: int = 1, **changes: Any) -> Self:
        """The paper's numbers for a setting, with `changes`.

        U holds 30 pictures per novel class at 1 shot and 50 at more, and in S²I-FSL as many base
        pictures. What a setting does not have is 0.

        Args:
            setting: Name of a setting.
            shots: Support pictures per novel class.
            changes: Any other arguments of `EpisodeSettings`.

        Returns:
            The settings.
        """
        if setting not in SETTINGS:
            raise FewgraftError(f"there is no setting '{setting}'", nearest(setting, SETTINGS))
        kind = SETTINGS[setting]
        a_class = 30 if shots == 1 else 50
        novel = changes.get("ways", cls.ways) * a_class
        numbers: dict[str, Any] = {
            "base_queries": 75 if kind.incremental else 0,
            "unlabelled": 0,
            "novel_share": 0.5 if kind.incremental else 1.0,
            "distractor_pictures": a_class,
        }
        if kind.unlabelled == "extra":
            numbers["unlabelled"] = 2 * novel if kind.incremental else novel
        return cls(setting=setting, shots=shots, **{**numbers, **changes})

    @property
    def kind(self) -> Setting:
        """What the setting's name stands for."""
        return SETTINGS[self.setting]

    @property
    def novel_unlabelled(self) -> int:
        """How many pictures of U show novel classes."""
        if self.kind.unlabelled != "extra":
            return 0
        return round(self.unlabelled * self.novel_share)

    @property
    def base_unlabelled(self) -> int:
        """How many pictures of U show base classes."""
        if self.kind.unlabelled != "extra":
            return 0
        return self.unlabelled - self.novel_unlabelled

    def unlabelled_of_way(self, way: int) -> int:
        """How many pictures of U show novel class number `way`: equal shares, the rest in turn."""
        return len(range(way, self.novel_unlabelled, self.ways))

    def record(self) -> dict[str, Any]:
        """All of them by name; `dirichlet`, which older records do not have, where it is used."""
        found = dataclasses.asdict(self)
        return found if self.dirichlet else {k: v for k, v in found.items() if k != "dirichlet"}

    @property
    def hash(self) -> str:
        """A short name for exactly these settings."""
        text = json.dumps(self.record(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __str__(self) -> str:
        """One line that a person can read, the hash last."""
        unlabelled = {
            "none": "no U",
            "query": "U = Q",
            "extra": f"U {self.novel_unlabelled} novel + {self.base_unlabelled} base"
            + (f", shared out by Dirichlet({self.dirichlet})" if self.dirichlet else "")
            + (
                f" + {self.distractors}×{self.distractor_pictures} of other classes"
                if self.distractors
                else ""
            ),
        }[self.kind.unlabelled]
        return (
            f"{self.setting} ({self.split}): {self.ways}-way {self.shots}-shot, "
            f"Q {self.ways}×{self.queries} novel + {self.base_queries} base, "
            f"{unlabelled}, seed {self.seed} [{self.hash}]"
        )


@dataclass(frozen=True)
class Pools:
    """The pictures that episodes are drawn from."""

    novel: Mapping[int, Indices]  # {class: pictures}
    base: Indices
    base_labels: Indices  # of every picture in `base`
    n_base: int
    names: tuple[str, ...] = ()
    rehearsal: bool = False  # novel classes are base classes, which the episode then does without

    @classmethod
    def of(cls, store: ImageStore, split: str = "test") -> Self:
        """The pools of a store's val, test or train parts.

        A store without novel/train classes rehearses: each training episode takes some base classes
        for novel ones, and draws its base pictures from the other classes. One without novel/val
        classes validates on base/val rotated.
        """
        if split == "val" and store.validates_on_base:
            return cls.rotated(store, split)
        return cls._of_parts(store, split)

    @classmethod
    def _of_parts(cls, store: ImageStore, split: str) -> Self:
        rehearsal = split == "train" and store.rehearses_on_base
        base = store.indices(Part(f"base/{split}"))
        return cls(
            novel=store.by_class(Part.BASE_TRAIN if rehearsal else Part(f"novel/{split}")),
            base=base,
            base_labels=store.labels[base].astype(np.int64),
            n_base=len(store.base_classes),
            names=store.classes,
            rehearsal=rehearsal,
        )

    @classmethod
    def rotated(cls, store: ImageStore, split: str = "train") -> Self:
        """Pools of train or val whose novel classes are the base classes, rotated.

        Each base class, rotated by one, two or three quarters, is a class that W_b has no row for.
        Picture i rotated by q quarters has the index q·n + i, n pictures being in the store.
        """
        whole = cls._of_parts(store, split)
        upright = store.by_class(Part(f"base/{split}"))
        first, n = len(store.classes), len(store)
        novel = {
            first + (quarters - 1) * whole.n_base + label: pictures + quarters * n
            for quarters in (1, 2, 3)
            for label, pictures in upright.items()
        }
        return dataclasses.replace(whole, novel=novel, names=(), rehearsal=False)

    def name(self, label: int) -> str:
        """A class for a message."""
        return f"'{self.names[label]}'" if self.names else f"number {label}"


def split_pictures(store: ImageStore, split: str) -> Indices:
    """All pictures that the val or test episodes of a store may draw, those of base first."""
    base, novel = (store.indices(Part(f"{kind}/{split}")) for kind in ("base", "novel"))
    if split == "val" and store.validates_on_base:
        return np.concatenate([base + quarters * len(store) for quarters in range(4)])
    return np.concatenate([base, novel])


@dataclass(frozen=True)
class Episodes:
    """What a method may see of E episodes: indices of pictures, labels of the support only."""

    settings: EpisodeSettings
    n_base: int  # 0 where the setting has no base classes
    classes: Tensor  # [E, N] which class of the data each novel class is
    support: Tensor  # [E, S]
    support_labels: Tensor  # [E, S] in N_b … N_b+N−1
    query: Tensor  # [E, Q] in random order
    unlabelled: Tensor  # [E, U] in random order

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self.support)

    @property
    def n_classes(self) -> int:
        """N_b + N."""
        return self.n_base + self.settings.ways

    def to(self, device: torch.device) -> "Episodes":
        """The same episodes with their tensors on a device."""
        tensors = {
            field.name: getattr(self, field.name).to(device)
            for field in dataclasses.fields(self)
            if isinstance(getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, **tensors)

    @property
    def hash(self) -> str:
        """A name for exactly these episodes, the same on every machine."""
        return _hash_tensors(
            self.classes, self.support, self.support_labels, self.query, self.unlabelled
        )


@dataclass(frozen=True)
class QueryLabels:
    """The ground truth, which no method may see: labels of the queries and of U."""

    query_labels: Tensor  # [E, Q]
    unlabelled_labels: Tensor  # [E, U]; DISTRACTOR where the episode lacks the class

    @property
    def hash(self) -> str:
        """A name for exactly these labels."""
        return _hash_tensors(self.query_labels, self.unlabelled_labels)


def _hash_tensors(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.numpy().astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def sample_episodes(
    pools: Pools, settings: EpisodeSettings, count: int = 600, first: int = 0
) -> tuple[Episodes, QueryLabels]:
    """Episodes number `first` … `first + count − 1`, and their labels."""
    check_pools(pools, settings)
    n_base = pools.n_base if settings.kind.incremental else 0
    drawn = [_draw_episode(pools, settings, n_base, first + e) for e in range(count)]

    def stacked(name: str) -> Tensor:
        rows = [getattr(episode, name) for episode in drawn]
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty((0, 0), dtype=torch.int64)

    episodes = Episodes(
        settings=settings,
        n_base=n_base,
        classes=stacked("classes"),
        support=stacked("support"),
        support_labels=stacked("support_labels"),
        query=stacked("query"),
        unlabelled=stacked("unlabelled"),
    )
    return episodes, QueryLabels(stacked("query_labels"), stacked("unlabelled_labels"))


@dataclass(frozen=True)
class _Drawn:
    """One episode with its labels, before the two are parted."""

    classes: Indices
    support: Indices
    support_labels: Indices
    query: Indices
    query_labels: Indices
    unlabelled: Indices
    unlabelled_labels: Indices


def _draw_episode(pools: Pools, settings: EpisodeSettings, n_base: int, number: int) -> _Drawn:
    stream = KeyStream(settings.seed, number)
    names = np.fromiter(pools.novel, np.int64)
    order = names[stream.permutation(len(names))]
    classes, others = order[: settings.ways], order[settings.ways :]
    query, support, unlabelled = _Group(), _Group(), _Group()
    shares = _shares_of_u(pools, settings, classes, number)
    for way, name in enumerate(classes.tolist()):
        pool = pools.novel[name]
        shuffled = pool[stream.permutation(len(pool))]
        counts = (settings.queries, settings.shots, shares[way])
        for group, part in zip((query, support, unlabelled), _cut(shuffled, counts), strict=True):
            group.add(part, n_base + way)
    n_query, n_unlabelled = settings.base_queries if n_base else 0, settings.base_unlabelled
    base = _choose_base(pools, classes, stream, n_query + n_unlabelled)
    for group, part in zip((query, unlabelled), _cut(base, (n_query, n_unlabelled)), strict=True):
        group.add(pools.base[part], pools.base_labels[part])
    query_pictures, query_labels = query.shuffled(stream)
    # From here on the draws depend on the setting: nothing shared may come after this line.
    for name in others[: settings.distractors].tolist():
        pool = pools.novel[name]
        chosen = stream.choose(len(pool), settings.distractor_pictures)
        unlabelled.add(pool[chosen], DISTRACTOR)
    if settings.kind.unlabelled == "query":
        unlabelled_pictures, unlabelled_labels = query_pictures, query_labels
    else:
        unlabelled_pictures, unlabelled_labels = unlabelled.shuffled(stream)
    return _Drawn(
        classes,
        *support.joined(),
        query_pictures,
        query_labels,
        unlabelled_pictures,
        unlabelled_labels,
    )


def _shares_of_u(
    pools: Pools, settings: EpisodeSettings, classes: Indices, number: int
) -> list[int]:
    """How many pictures of U each novel class has.

    A stream of its own decides, so that classes, support and queries are the same however U is
    shared out. What a class has no pictures for goes to the others in turn, the largest first.
    """
    equal = [settings.unlabelled_of_way(way) for way in range(settings.ways)]
    if not settings.dirichlet:
        return equal
    keys = KeyStream(settings.seed, UNEQUAL + number).keys(settings.ways * settings.dirichlet)
    waits = -np.log((keys.astype(np.float64) + 0.5) / 2.0**64)  # exponentially distributed
    parts = waits.reshape(settings.ways, -1).sum(1)  # Gamma(dirichlet)
    wanted = settings.novel_unlabelled * parts / parts.sum()
    used = settings.queries + settings.shots
    room = np.array([len(pools.novel[name]) - used for name in classes.tolist()])
    counts = np.minimum(np.floor(wanted), room).astype(np.int64)
    order = np.argsort(-parts, kind="stable")
    while (missing := settings.novel_unlabelled - counts.sum()) > 0:
        free = order[(counts < room)[order]][:missing]
        counts[free] += 1
    return [int(count) for count in counts]


def _choose_base(pools: Pools, classes: Indices, stream: KeyStream, count: int) -> Indices:
    """Places in the base pool, without those of classes that this episode takes for novel."""
    keys = stream.keys(len(pools.base))
    if not pools.rehearsal:
        return smallest(keys, count)
    allowed = np.flatnonzero(~np.isin(pools.base_labels, classes))
    return allowed[smallest(keys[allowed], count)]


class _Group:
    """Pictures of one role with their labels, gathered class by class."""

    def __init__(self) -> None:
        self._pictures: list[Indices] = [np.empty(0, np.int64)]
        self._labels: list[Indices] = [np.empty(0, np.int64)]

    def add(self, pictures: Indices, labels: Indices | int) -> None:
        self._pictures.append(pictures)
        self._labels.append(np.broadcast_to(np.asarray(labels, np.int64), pictures.shape))

    def joined(self) -> tuple[Indices, Indices]:
        return np.concatenate(self._pictures), np.concatenate(self._labels)

    def shuffled(self, stream: KeyStream) -> tuple[Indices, Indices]:
        """In random order: the place of a picture must not tell its class."""
        pictures, labels = self.joined()
        order = stream.permutation(len(pictures))
        return pictures[order], labels[order]


def _cut(values: Indices, counts: tuple[int, ...]) -> list[Indices]:
    """Consecutive pieces of the given lengths; what is left over is dropped."""
    return np.split(values, np.cumsum(counts))[: len(counts)]


def check_pools(pools: Pools, settings: EpisodeSettings) -> None:
    """Every class must have enough pictures for any role, whichever episode draws it."""
    wanted = settings.ways + settings.distractors
    if len(pools.novel) < wanted:
        raise FewgraftError(
            f"novel/{settings.split} has {len(pools.novel)} classes; {settings.ways} ways and "
            f"{settings.distractors} distractors need {wanted}"
        )
    unlabelled = settings.unlabelled_of_way(0)
    needed = settings.shots + settings.queries + unlabelled
    if settings.distractors:
        needed = max(needed, settings.distractor_pictures)
    for label, pictures in pools.novel.items():
        if len(pictures) < needed:
            raise FewgraftError(
                f"class {pools.name(label)} has {len(pictures)} pictures in "
                f"novel/{settings.split}; {needed} are needed ({settings.shots} support + "
                f"{settings.queries} query + {unlabelled} unlabelled)",
                "Use fewer shots, queries or unlabelled pictures, or leave this class out.",
            )
    if not settings.kind.incremental:
        return
    needed = settings.base_queries + settings.base_unlabelled
    there = len(pools.base)
    if pools.rehearsal:
        there -= sum(sorted(map(len, pools.novel.values()))[-settings.ways :])
    if there < needed:
        raise FewgraftError(
            f"base/{settings.split} has {there} pictures; {needed} are needed "
            f"({settings.base_queries} query + {settings.base_unlabelled} unlabelled)",
            "Use fewer base queries or unlabelled pictures.",
        )
