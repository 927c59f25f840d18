"""Features of pictures as directions, computed once and kept as a memory map.

A bank's name is made of the weights, the data and what is done to a picture before it is embedded:
whatever changes has another name, so that a stale bank is never used. A feature may be the mean of
those of several fixed views. Mid-level features, of what enters the last block, have banks, too.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewgraft.augment import Augmentation
from fewgraft.data.arrays import npy_map
from fewgraft.data.catalogue import data_root
from fewgraft.data.pictures import Pixels
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices
from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import replacing_folder
from fewgraft.model import CosineModel, embed_all, weights_hash
from fewgraft.parsing import validated
from fewgraft.progress import track
from fewgraft.prototypes import directions
from fewgraft.runtime import Runtime
from fewgraft.views import FixedView, fixed_views

PICTURES_AT_A_TIME = 1024
KIND, LENGTHS, MID = "directions", "lengths", "mid-level"  # what is kept; part of the name
# Pixels a side. Up to these, networks are so small that onnxruntime gains little, and the figures
# of docs/results.md must not depend on which library was the faster one on a day.
BY_TORCH = 64
Embed = Callable[[Pixels], Tensor]  # uint8 [n, size, size, channels] → features [n, d]


@dataclass(frozen=True)
class FeatureBank:
    """Directions [m, d] of some pictures of a data set, and where each picture's row is."""

    features: Tensor
    row: Tensor  # [n] picture → row, on the CPU; −1 where it has none

    @classmethod
    def of(cls, features: Tensor, pictures: Tensor, total: int) -> Self:
        """From features [m, d], of any length, of pictures [m] among `total`."""
        return cls(directions(features), _rows(pictures, total))

    def to(self, device: torch.device) -> Self:
        """The same with its features on a device."""
        return replace(self, features=self.features.to(device))

    def __getitem__(self, pictures: Tensor) -> Tensor:
        """Features [..., d] of pictures [...]."""
        return self.features[self.row[pictures]]


def bank_root() -> Path:
    """Where banks are kept: beside the data sets."""
    return data_root().parent / "features"


def feature_bank(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    root: Path | None = None,
    views: int = 1,
    kind: str = KIND,
) -> FeatureBank:
    """The features of these pictures, means over so many views, from disk where they are there.

    Picture i rotated by q quarters has the index q·n + i, n pictures being in the store.
    """
    features = _kept(model, store, pictures, root, kind, views)
    total = len(store) * (1 + int(pictures.max(initial=0)) // len(store))
    row = _rows(torch.from_numpy(pictures), total)
    return FeatureBank(torch.from_numpy(features), row)


def mid_bank(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    root: Path | None = None,
    views: int = 1,
) -> FeatureBank | None:
    """The mid-level features of these pictures; None: the network has no last block of its own."""
    if not has_mid(model):
        return None
    return feature_bank(model, store, pictures, root, views, MID)


def feature_lengths(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    root: Path | None = None,
    views: int = 1,
) -> Tensor:
    """How long the features of these pictures are before they become directions [m]."""
    return torch.from_numpy(_kept(model, store, pictures, root, LENGTHS, views))[:, 0]


def keep_features(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    features: Tensor,
    root: Path | None = None,
) -> None:
    """Put features [m, d] of these pictures, of any length, where `feature_bank` looks for them."""
    folder = (root or bank_root()) / _key(model, store, pictures, KIND, ())
    with writing(folder), replacing_folder(folder) as work:
        np.save(work / "features.npy", directions(features).numpy())


def _kept(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    root: Path | None,
    kind: str,
    views: int,
) -> NDArray[np.float32]:
    """Directions [m, d] or lengths [m, 1] from disk; computed where they are not there."""
    seen = model_views(model, views) if views > 1 else ()
    folder = (root or bank_root()) / _key(model, store, pictures, kind, seen)
    path = folder / "features.npy"
    shape = (len(pictures), _width(model, kind))
    try:
        return _read(path, shape)
    except FewgraftError:  # absent, or damaged, which is as good as absent
        with writing(folder), replacing_folder(folder) as work:
            _compute(model, store, pictures, work / "features.npy", kind, seen)
        return _read(path, shape)


def model_views(model: CosineModel, count: int) -> tuple[FixedView, ...]:
    """So many views of a picture for a model, by the pictures that it was trained on."""
    with reading("the model's recipe", "readable recipe"):
        trained_with = model.card.recipe.get("pretraining", {}).get("augmentation", {})
        return fixed_views(validated(Augmentation, trained_with), count)


def _width(model: CosineModel, kind: str) -> int:
    """Numbers per picture."""
    if kind == MID:
        grey = np.zeros((1, model.card.size, model.card.size, model.card.channels), np.uint8)
        return embed_mid(model, grey).shape[1]
    return model.card.width if kind == KIND else 1


def _rows(pictures: Tensor, total: int) -> Tensor:
    row = torch.full((total,), -1)
    row[pictures] = torch.arange(len(pictures))
    return row


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.float32]:
    with reading(path, "readable file of features"):
        features: NDArray[np.float32] = npy_map(path, np.float32, shape, "c")
        if not np.isfinite(features).all():
            raise ValueError("the network gives numbers that are not finite")
        return features


def _key(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    kind: str,
    views: Sequence[FixedView],
) -> str:
    card = model.card
    transform = {"size": card.size, "mean": card.mean, "std": card.std, "backbone": card.backbone}
    transform |= {"views": [asdict(view) for view in views]} if views else {}
    chosen = hashlib.sha256(pictures.astype("<i8").tobytes()).hexdigest()
    parts = [weights_hash(model), store.manifest.content, json.dumps(transform), kind, chosen]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _compute(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    path: Path,
    kind: str,
    views: Sequence[FixedView],
) -> None:
    kept = _lengths if kind == LENGTHS else directions
    features = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float32, shape=(len(pictures), _width(model, kind))
    )
    shown = f"{'features' if kind == KIND else kind} of {model.card.stage or 'model'}"
    embed = partial(embed_mid, model) if kind == MID else None
    for start, some in embedded(model, store, pictures, shown, views, embed):
        features[start : start + len(some)] = kept(some).numpy()
    features.flush()


def embedded(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    shown: str,
    views: Sequence[FixedView] = (),
    embed: Embed | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Features [m, d] of some pictures at a time, and how many came before; with progress.

    Each is the mean over the views, if there are some.
    """
    if embed is None:
        small = model.card.size <= BY_TORCH
        embed = _by_torch(model) if small else _by_runtime(model, len(pictures))
    starts = range(0, len(pictures), PICTURES_AT_A_TIME)
    for start in track(starts, shown, len(starts)):
        pixels = pixels_of(store, pictures[start : start + PICTURES_AT_A_TIME])
        yield start, _over_views(pixels, embed, views) if views else embed(pixels)


def _over_views(pixels: Pixels, embed: Embed, views: Sequence[FixedView]) -> Tensor:
    """The mean of features [n, d] over views."""
    whole = torch.from_numpy(np.array(pixels))
    return torch.stack([embed(view(whole).numpy()) for view in views]).mean(0)


def has_mid(model: CosineModel) -> bool:
    """Whether a network is a sequence of blocks, so that something enters the last one."""
    return isinstance(model.backbone, nn.Sequential) and len(model.backbone) > 2


@torch.inference_mode()
def embed_mid(model: CosineModel, pixels: Pixels, batch: int = 256) -> Tensor:
    """Mid-level features [n, c], on the CPU: means over places of what enters the last block.

    A model that averages features over a picture and its mirror image does so here, too.
    """
    assert isinstance(model.backbone, nn.Sequential)
    trunk = model.backbone[:-2].eval()  # after the last block comes the average
    found = []
    for start in range(0, len(pixels), batch):
        pictures = model.prepare(torch.from_numpy(np.array(pixels[start : start + batch])))
        seen = [pictures, pictures.flip(3)] if model.card.mirrored else [pictures]
        found.append(torch.stack([_over_places(trunk(one)) for one in seen]).mean(0).cpu())
    trunk.train(model.training)
    return torch.cat(found)


def _over_places(activations: Tensor) -> Tensor:
    """[n, c, h, w] → [n, c]; what has no places stays as it is."""
    return activations.flatten(2).mean(2) if activations.ndim > 2 else activations


def _lengths(features: Tensor) -> Tensor:
    """[n, d] → [n, 1]."""
    lengths: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return lengths


def pixels_of(store: ImageStore, pictures: Indices) -> Pixels:
    """Pictures, each rotated by its quarters."""
    quarters, pictures = np.divmod(pictures, len(store))
    pixels = store.pictures[pictures]
    for turn in (1, 2, 3):
        chosen = quarters == turn
        pixels[chosen] = np.rot90(pixels[chosen], turn, (1, 2))
    return pixels


def _by_torch(model: CosineModel) -> Embed:
    return lambda pixels: embed_all(model, pixels)


def _by_runtime(model: CosineModel, expected: int) -> Embed:
    runtime = Runtime(model)
    runtime.expect(expected)

    def embed(pixels: Pixels) -> Tensor:
        parts = [pixels[s : s + runtime.batch] for s in range(0, len(pixels), runtime.batch)]
        with ThreadPoolExecutor(runtime.streams) as pool:
            features = torch.from_numpy(np.concatenate(list(pool.map(runtime, parts))))
        return model.place(features.to(model.centre.device)).cpu()

    return embed
