"""Features of any network as a benchmark of their own: kept by name, evaluated like the others.

An import is a folder below `$FEWGRAFT_HOME/imports`: the features as directions, labels, parts and
W_b, a card, and a recipe, which names no training that was done but holds what `bench tune` finds.
"""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fewgraft.data.parts import Part
from fewgraft.devices import CPU
from fewgraft.draws import KeyStream
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.feature_set import FeatureSet
from fewgraft.files import replacing_folder
from fewgraft.home import imports_root
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.parsing import read_json, validated
from fewgraft.split_features import EpisodeFeatures, SplitFeatures

CARD, ARRAYS, RECIPE = "import.json", "features.npz", "recipe.toml"
NAME = r"^[A-Za-z0-9][\w.-]{0,79}$"
GAMMAS = (5.0, 10.0, 20.0, 40.0, 80.0)
EPISODES, SEED = 100, 3  # of validation, to choose γ
SHARES = (0.6, 0.8)  # base pictures up to the first are train, up to the second val, then test
_RECIPE = """\
# {name}: imported. Nothing is trained; `fewgraft bench tune {name} --write` adds what it finds for
# methods.
name = "{name}"
data = {data}
backbone = {backbone}

[pretraining]
steps = 1
optimisation = {{ lr = 0.1 }}

[metatraining]
steps = 1
optimisation = {{ lr = 0.1 }}
"""


class _Card(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(pattern=NAME)
    backbone: str  # as tables name it
    gamma: float = Field(gt=0, allow_inf_nan=False)
    classes: tuple[str, ...]  # base classes first


def import_features(features: FeatureSet, name: str, backbone: str = "imported") -> Path:
    """Keep features under a name, for all commands of `fewgraft bench`; replaces what was there.

    Returns:
        The folder.
    """
    try:
        card = validated(
            _Card,
            {
                "name": name,
                "backbone": backbone,
                "gamma": features.gamma,
                "classes": features.classes,
            },
        )
    except ValueError as error:
        raise FewgraftError(f"'{name}' cannot be the name of an import: {error}") from None
    folder, packed = imports_root() / name, io.BytesIO()
    np.savez(
        packed,
        features=features.features.numpy(),
        labels=features.labels,
        parts=features.parts,
        weights=features.weights.numpy(),
    )
    with writing(folder), replacing_folder(folder) as work:
        (work / ARRAYS).write_bytes(packed.getvalue())
        (work / CARD).write_text(card.model_dump_json(indent=1))
        (work / RECIPE).write_text(import_recipe(name, name, "resnet12"))
    return folder


def import_recipe(name: str, data: str, backbone: str) -> str:
    """A recipe in which nothing is trained."""
    return _RECIPE.format(name=name, data=json.dumps(data), backbone=json.dumps(backbone))


def is_import(folder: Path) -> bool:
    """Whether a folder holds imported features rather than models."""
    return (folder / CARD).is_file()


def open_import(folder: Path) -> tuple[FeatureSet, str]:
    """What `import_features` kept, and the name of the backbone."""
    with reading(folder, "readable import", "Import it again: `fewgraft bench import`."):
        card = validated(_Card, read_json(folder / CARD))
        given = _arrays(folder / ARRAYS)
        weights = given["weights"] if len(given["weights"]) else None
        found = FeatureSet(
            given["features"],
            given["labels"],
            given["parts"],
            weights=weights,
            gamma=card.gamma,
            name=card.name,
        )
        if len(card.classes) != len(found.classes):
            raise ValueError(f"it names {len(card.classes)} classes and has {len(found.classes)}")
    found.classes = card.classes
    return found, card.backbone


class ImportedFeatures(SplitFeatures):
    """A split of imported features: methods that need pictures or learnt pieces are refused."""

    def __init__(
        self, features: FeatureSet, backbone: str, split: str, device: torch.device = CPU
    ) -> None:
        self.split, self.views = split, 1
        self._set, self._backbone = features, backbone
        there = features.of_split(split, device)
        EpisodeFeatures.__init__(
            self,
            lambda: there.bank,
            there.weights,
            there.gamma,
            base_features=lambda: there.base_features,
            knowledge=lambda: there.knowledge,
        )

    @property
    def data(self) -> str:
        """Name of the import."""
        return self._set.name

    @property
    def content(self) -> str:
        """A name for exactly these labels and parts."""
        return self._set.content

    @property
    def backbone(self) -> str:
        """As tables name it."""
        return self._backbone

    @cached_property
    def weights_hash(self) -> str:
        """A name for exactly these features, W_b and γ."""
        digest = hashlib.sha256(json.dumps(self._set.gamma).encode())
        for tensor in (self._set.features, self._set.weights):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def base_pictures(self) -> Any:
        """There are none."""
        raise FewgraftError("these features were imported: there are no pictures")


def read_features(path: Path, gamma: float = 20.0, name: str = "features") -> FeatureSet:
    """Features of an .npz file with arrays `features` [n, d], `labels` [n] and `parts` [n].

    Instead of `parts`, lists of classes may say what is novel: `novel_val`, `novel_test` and
    `novel_train`. All other classes are base, each divided into train, val and test. `weights`
    [N_b, d] is W_b; without it, W_b is the class means of base/train.
    """
    with reading(path, "readable .npz file of features"):
        given = _arrays(path)
    for wanted in ("features", "labels"):
        if wanted not in given:
            raise FewgraftError(
                f"{path} has no array '{wanted}'", f"It has {', '.join(given) or 'none'}."
            )
    lists = {split: given[f"novel_{split}"] for split in SPLITS if f"novel_{split}" in given}
    if "parts" in given:
        parts = given["parts"]
    elif lists:
        parts = parts_of(given["labels"], lists)
    else:
        raise FewgraftError(
            f"{path} does not say which classes are novel",
            "Add an array `parts`, such as base/train, or lists of classes `novel_val`, "
            "`novel_test`.",
        )
    weights = given.get("weights")
    return FeatureSet(
        given["features"], given["labels"], parts, weights=weights, gamma=gamma, name=name
    )


SPLITS = ("train", "val", "test")


def parts_of(labels: NDArray[Any], novel: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Parts [n] from labels [n] and lists of novel classes by split; the other classes are base.

    Pictures of a base class are divided at random, the same in every run.
    """
    if labels.ndim != 1:
        raise FewgraftError(f"labels are {list(labels.shape)}, not [n]")
    found = np.full(len(labels), "", dtype="U16")
    for split, classes in novel.items():
        missing = sorted(set(np.ravel(classes).tolist()) - set(labels.tolist()), key=str)
        if missing:
            raise FewgraftError(f"novel_{split} names '{missing[0]}', which no label is")
        found[np.isin(labels, classes)] = str(Part(f"novel/{split}"))
    for number, label in enumerate(np.unique(labels[found == ""])):
        members = np.flatnonzero((labels == label) & (found == ""))
        order = KeyStream(0, number).choose(len(members), len(members))
        ends = [round(share * len(members)) for share in SHARES]
        for split, some in zip(SPLITS, np.split(members[order], ends), strict=True):
            found[some] = str(Part(f"base/{split}"))
    return found


def choose_gamma(features: FeatureSet, shots: Sequence[int] = (1, 5)) -> dict[float, float]:
    """Joint accuracy of refinement on validation episodes by γ; the best becomes the features'."""

    def with_gamma(gamma: float) -> EpisodeFeatures:
        features.gamma = gamma
        return features.of_split("val", CPU)

    found = accuracy_by_gamma(features.pools("val"), with_gamma, shots)
    features.gamma = max(found, key=lambda gamma: found[gamma])
    return found


def accuracy_by_gamma(
    pools: Pools, with_gamma: Callable[[float], EpisodeFeatures], shots: Sequence[int] = (1, 5)
) -> dict[float, float]:
    """Joint accuracy of refinement on validation episodes by γ.

    Foreign features may have any scale: how far apart cosines are differs from network to network.
    """
    settings = [EpisodeSettings.paper("s2i", k, split="val", seed=SEED) for k in shots]
    try:
        drawn = [sample_episodes(pools, one, EPISODES) for one in settings]
    except FewgraftError as error:
        raise FewgraftError(
            f"γ cannot be chosen on validation episodes: {error.problem}", "Give it with --gamma."
        ) from None
    found = {}
    for gamma in GAMMAS:
        there = with_gamma(gamma)
        scores = [there.scores(PrototypeRefinement(), *episodes) for episodes in drawn]
        found[gamma] = sum(one.acc.mean().item() for one in scores) / len(scores)
    return found


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; objects, which are pickles, are refused."""
    with np.load(path, allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
        return {name: archive[name] for name in archive.files}
