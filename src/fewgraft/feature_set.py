"""Features from any network as plain arrays: methods are compared without pictures or a store."""

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fewgraft.base_knowledge import EXEMPLARS, BaseKnowledge, knowledge_of
from fewgraft.base_pictures import kept_pictures, some_of_each
from fewgraft.data.parts import BASE_PARTS, NOVEL_PARTS, PARTS, Part
from fewgraft.draws import Indices
from fewgraft.episodes import Pools
from fewgraft.errors import FewgraftError, nearest, why
from fewgraft.feature_bank import FeatureBank
from fewgraft.prototypes import directions, prototypes
from fewgraft.split_features import EpisodeFeatures

Array = ArrayLike | Tensor


class FeatureSet:
    """Features of pictures from any network, with the labels and parts that episodes need.

    Only directions of features count, so they may have any length. Base parts hold different
    pictures of the same classes; novel parts hold disjoint classes. Episodes of a split are drawn
    from its base and novel part; "base/train" is only needed where `weights` are not given.

    Args:
        features: Array or tensor [n, d].
        labels: Class of each picture [n]: whole numbers or names.
        parts: Part of each picture [n]: "base/train", "base/val", "base/test", "novel/train",
            "novel/val" or "novel/test"; or positions in this list, as `ImageStore.parts` has them.
        weights: W_b [N_b, d], one row per base class in the ascending order of their labels. None
            takes the prototypes of "base/train".
        gamma: γ of the cosine logits; training ends near 20.
        name: What tables call the data.

    Raises:
        FewgraftError: The arrays do not fit together, hold NaN or break the rules of the parts.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(np.arange(18), 60)  # classes 0 … 9 are base classes
        >>> centres = rng.normal(size=(18, 32))
        >>> features = centres[labels] + 2 * rng.normal(size=(18 * 60, 32))
        >>> base = np.where(np.arange(18 * 60) % 60 < 10, "base/train", "base/test")
        >>> parts = np.where(labels < 10, base, "novel/test")
        >>> data = fewgraft.FeatureSet(features, labels, parts)
        >>> data.weights.shape
        torch.Size([10, 32])
        >>> found = fewgraft.evaluate("+pr", data=data, episodes=20)
        >>> found.summary()["acc"].mean > 0.5
        True
    """

    def __init__(
        self,
        features: Array,
        labels: Array,
        parts: Array,
        *,
        weights: Array | None = None,
        gamma: float = 20.0,
        name: str = "features",
    ) -> None:
        self.features = _directions(features, "features")  # [n, d], of length 1
        self.parts = _codes(parts, len(self.features))  # [n], positions in `PARTS`
        found, numbers = np.unique(_names(labels, len(self.features)), return_inverse=True)
        is_base = _base_classes(found, numbers, self.parts)
        order = np.argsort(~is_base, kind="stable")
        self.classes = tuple(map(str, found[order]))  # base classes first
        self.labels: Indices = np.argsort(order)[numbers].astype(np.int64)  # [n] in `classes`
        self.n_base = int(is_base.sum())
        if not 0 < gamma < float("inf"):
            raise FewgraftError(f"gamma must be above 0 and finite, not {gamma}")
        self.gamma = gamma
        self.name = name
        given = None if weights is None else _directions(weights, "weights")
        self.weights = self._prototypes() if given is None else self._fitting(given)  # W_b [N_b, d]

    def __len__(self) -> int:
        """How many pictures there are."""
        return len(self.features)

    def pools(self, split: str) -> Pools:
        """What episodes of a split are drawn from."""
        base, novel = (self._indices(Part(f"{kind}/{split}")) for kind in ("base", "novel"))
        labels = self.labels[novel]
        return Pools(
            novel={int(label): novel[labels == label] for label in np.unique(labels)},
            base=base,
            base_labels=self.labels[base],
            n_base=self.n_base,
            names=self.classes,
        )

    def of_split(self, split: str, device: torch.device) -> EpisodeFeatures:
        """What episodes of a split gather from, on a device."""
        kinds = ("base", "novel")
        pictures = np.concatenate([self._indices(Part(f"{kind}/{split}")) for kind in kinds])
        chosen = torch.from_numpy(pictures)
        bank = FeatureBank.of(self.features[chosen], chosen, len(self)).to(device)
        return EpisodeFeatures(
            lambda: bank,
            self.weights.to(device),
            self.gamma,
            base_features=lambda: self._kept_features().to(device),
            knowledge=lambda: self._known(device),
        )

    def _kept_features(self) -> Tensor:
        """Of a few pictures of base/train per class [N_b, m, d]."""
        return self.features[torch.from_numpy(kept_pictures(self._base_pools()))]

    def _known(self, device: torch.device) -> BaseKnowledge | None:
        """What is kept of base classes; None where one of them has no pictures in base/train."""
        pools = self._base_pools()
        if not all(map(len, pools)) or not pools:
            return None
        chosen = some_of_each(pools, EXEMPLARS)
        return knowledge_of([self.features[torch.from_numpy(own)] for own in chosen]).to(device)

    def _base_pools(self) -> list[Indices]:
        train = self._indices(Part.BASE_TRAIN)
        return [train[self.labels[train] == label] for label in range(self.n_base)]

    @cached_property
    def content(self) -> str:
        """A name for exactly these pictures as far as episodes know them: labels and parts."""
        digest = hashlib.sha256(self.name.encode())
        digest.update(np.stack([self.labels, self.parts.astype(np.int64)]).tobytes())
        return digest.hexdigest()

    def _indices(self, part: Part) -> Indices:
        return np.flatnonzero(self.parts == part.code).astype(np.int64)

    def _prototypes(self) -> Tensor:
        train = self._indices(Part.BASE_TRAIN)
        missing = sorted(set(range(self.n_base)) - set(self.labels[train].tolist()))
        if missing:
            raise FewgraftError(
                f"base class '{self.classes[missing[0]]}' has no pictures in base/train",
                "Its weight is their mean: add some, or pass weights=W_b.",
            )
        if not self.n_base:
            return self.features.new_empty(0, self.features.shape[1])
        labels = torch.from_numpy(self.labels[train])
        return prototypes(self.features[torch.from_numpy(train)][None], labels[None], self.n_base)[
            0
        ]

    def _fitting(self, weights: Tensor) -> Tensor:
        wanted = (self.n_base, self.features.shape[1])
        if weights.shape != wanted:
            raise FewgraftError(
                f"weights are {list(weights.shape)}, not {list(wanted)}",
                "They have one row per base class and as many columns as features.",
            )
        return weights


def _directions(values: Array, what: str) -> Tensor:
    """Rows [n, d] as directions; they are scaled first, so that no length is too large or small."""
    rows = _floats(values, what)
    if rows.ndim != 2 or 0 in rows.shape:
        raise FewgraftError(f"{what} are {list(rows.shape)}, not [n, d]")
    if not torch.isfinite(rows).all():
        row = int((~torch.isfinite(rows)).any(1).nonzero()[0])
        raise FewgraftError(f"{what} hold NaN or infinity, first in row {row}")
    longest = rows.abs().amax(1, keepdim=True)
    return directions(rows / longest.clamp(min=torch.finfo(rows.dtype).tiny))


def _floats(values: Array, what: str) -> Tensor:
    """In single precision, on the CPU, whatever they came as."""
    if isinstance(values, Tensor) and not values.is_complex():
        return values.detach().cpu().float()
    try:
        given = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise FewgraftError(f"{what} are not an array of numbers: {why(error)}") from None
    if given.dtype.kind not in "fiub":
        raise FewgraftError(f"{what} are {given.dtype}, not an array of real numbers")
    with np.errstate(over="ignore"):  # infinity, which is refused later
        return torch.from_numpy(np.array(given, np.float32, order="C"))


def _codes(parts: Array, n: int) -> NDArray[np.uint8]:
    """[n] positions in `PARTS`, of names or of such positions."""
    given = _column(parts, "parts", n)
    found, inverse = np.unique(given.astype(str), return_inverse=True)
    known = {str(part): part.code for part in PARTS}
    if given.dtype.kind in "iu":
        known = {str(part.code): part.code for part in PARTS}
    for name in found.tolist():
        if name not in known:
            raise FewgraftError(f"there is no part '{name}'", nearest(name, known))
    return np.array([known[name] for name in found.tolist()], np.uint8)[inverse]


def _names(labels: Array, n: int) -> NDArray[Any]:
    """[n] whole numbers or text."""
    given = _column(labels, "labels", n)
    given = given.astype(str) if given.dtype.kind == "O" else given
    if given.dtype.kind not in "iuU":
        raise FewgraftError(f"labels are {given.dtype}, not whole numbers or names")
    return given


def _column(values: Array, what: str, n: int) -> NDArray[Any]:
    try:
        column = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise FewgraftError(f"{what} are not an array: {why(error)}") from None
    if column.shape != (n,):
        raise FewgraftError(f"{what} are {list(column.shape)}, not [{n}], one per feature")
    return column


def _base_classes(
    classes: NDArray[Any], labels: NDArray[np.int64], parts: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Which classes [K] are base; a novel class is in one part only."""
    base = np.isin(parts, [part.code for part in BASE_PARTS])
    groups = {"a base part": base} | {str(p): parts == p.code for p in NOVEL_PARTS}
    home: dict[int, str] = {}
    for part, members in groups.items():
        for label in np.unique(labels[members]).tolist():
            if label in home:
                raise FewgraftError(
                    f"class '{classes[label]}' is in {part} and in {home[label]}",
                    "Novel parts hold classes of their own.",
                )
            home[label] = part
    return np.isin(np.arange(len(classes)), labels[base])
