"""A network that others trained as a benchmark of its own: W_b and γ are added, f_θ stays.

The import is a model like any other in a folder below `$FEWGRAFT_HOME/imports`, with a recipe that
names the data and no training. It stands for every stage of training.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fewgraft.backbones import backbone_spec
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices
from fewgraft.episodes import Pools, split_pictures
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import FeatureBank, embedded, keep_features
from fewgraft.home import imports_root
from fewgraft.imported import NAME, RECIPE, accuracy_by_gamma, import_recipe
from fewgraft.model import CosineModel, ModelCard, save_model
from fewgraft.prototypes import directions, prototypes
from fewgraft.split_features import EpisodeFeatures, SplitFeatures
from fewgraft.zoo import IMPORTED


@dataclass(frozen=True)
class InputPictures:
    """What a network's pictures looked like in training."""

    mean: tuple[float, ...]  # of each channel, pixels from 0 to 1
    std: tuple[float, ...]
    size: int | None = None  # side in pixels; None: as the data has them


@dataclass(frozen=True)
class ImportedNetwork:
    """Where the import is, and what validation pictures say of it."""

    folder: Path
    gamma: float
    accuracy_by_gamma: dict[float, float]  # empty where γ was given
    base_accuracy: float  # on base/val, among base classes


def import_network(
    network: nn.Module,
    backbone: str,
    name: str,
    store: ImageStore,
    pictures: InputPictures,
    *,
    head: tuple[Tensor, tuple[str, ...]] | None = None,
    gamma: float | None = None,
) -> ImportedNetwork:
    """Keep a network under a name, for all commands of `fewgraft bench`; replaces what was there.

    Args:
        network: Pictures [n, channels, size, size] → features [n, d].
        backbone: What makes such a network again.
        name: Of the import.
        store: The data that it is evaluated on.
        pictures: What it was trained on.
        head: Class weights [K, d] and the names of K classes, the base classes among them. None
            takes the class means of base/train.
        gamma: Of the cosine logits. None chooses it on validation episodes.
    """
    if not re.fullmatch(NAME, name):
        raise FewgraftError(f"'{name}' cannot be the name of an import")
    model = _model(network, backbone, store, pictures)
    weights = _rows_of(store.base_classes, *head) if head else _class_means(model, store)
    with torch.no_grad():
        model.weight.copy_(weights)
    found = _with_gamma(model, store, gamma)
    folder = imports_root() / name
    recipe = import_recipe(name, store.manifest.name, backbone)
    save_model(model, folder, beside={RECIPE: recipe.encode()})
    accuracy = SplitFeatures(model, store, "val").base_accuracy()
    return ImportedNetwork(folder, model.gamma.item(), found, accuracy)


def _model(
    network: nn.Module, backbone: str, store: ImageStore, pictures: InputPictures
) -> CosineModel:
    manifest = store.manifest
    if pictures.size not in (None, manifest.size):
        raise FewgraftError(
            f"the network is for {pictures.size} pixels, {manifest.name} has {manifest.size}",
            f"Add the data again with --size {pictures.size}.",
        )
    for what, numbers in (("--mean", pictures.mean), ("--std", pictures.std)):
        if len(numbers) != manifest.channels:
            raise FewgraftError(
                f"{what} has {len(numbers)} numbers, {manifest.name} has "
                f"{manifest.channels} channels",
                "Give one for each, of pixels from 0 to 1, as in 0.485,0.456,0.406.",
            )
    card = ModelCard(
        backbone=backbone,
        width=backbone_spec(backbone).width,
        classes=store.base_classes,
        size=manifest.size,
        channels=manifest.channels,
        mean=pictures.mean,
        std=pictures.std,
        stage=IMPORTED,
        data=f"{manifest.name} {manifest.content[:16]}",
        licence="that of the imported weights",
    )
    model = CosineModel(card, network).eval()
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _rows_of(classes: tuple[str, ...], weights: Tensor, names: tuple[str, ...]) -> Tensor:
    """The rows [N_b, d] of these classes among those of a head."""
    missing = [one for one in classes if one not in names]
    if missing:
        raise FewgraftError(
            f"the head does not name the base class '{missing[0]}' ({len(missing)} in all)",
            f"Name its rows as the data does: {', '.join(classes[:3])}, ...",
        )
    return weights[[names.index(one) for one in classes]]


def _class_means(model: CosineModel, store: ImageStore) -> Tensor:
    """W_b [N_b, d] from base/train."""
    train = store.indices(Part.BASE_TRAIN)
    labels = torch.from_numpy(store.labels[train]).long()
    missing = sorted(set(range(len(store.base_classes))) - set(labels.tolist()))
    if missing:
        raise FewgraftError(
            f"base class '{store.base_classes[missing[0]]}' has no pictures in base/train",
            "Its weight is their mean: add some, or give a --head.",
        )
    features = directions(_features(model, store, train, "features of base/train"))
    return prototypes(features[None], labels[None], len(store.base_classes))[0]


def _features(model: CosineModel, store: ImageStore, pictures: Indices, shown: str) -> Tensor:
    """[m, d] on the CPU."""
    return torch.cat([some for _, some in embedded(model, store, pictures, shown)])


def _with_gamma(model: CosineModel, store: ImageStore, gamma: float | None) -> dict[float, float]:
    """Set γ; the joint accuracy of those that were tried. The features are kept for the rows."""
    val = split_pictures(store, "val")
    features = _features(model, store, val, "features of val")
    bank = FeatureBank.of(features, torch.from_numpy(val), len(store))
    weights = model.weight.detach().cpu()
    found = {}
    if gamma is None:
        found = accuracy_by_gamma(
            Pools.of(store, "val"), lambda one: EpisodeFeatures(lambda: bank, weights, one)
        )
        gamma = max(found, key=lambda one: found[one])
    with torch.no_grad():
        model.gamma.fill_(gamma)
    keep_features(model, store, val, features)
    return found
