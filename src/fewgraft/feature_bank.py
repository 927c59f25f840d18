"""Features of pictures as directions, computed once and kept as a memory map.

A bank's name is made of the weights, the data and what is done to a picture before it is embedded:
whatever changes has another name, so that a stale bank is never used.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewgraft.data.arrays import npy_map
from fewgraft.data.catalogue import data_root
from fewgraft.data.pictures import Pixels
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices
from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import replacing_folder
from fewgraft.model import CosineModel, embed_all, weights_hash
from fewgraft.progress import track
from fewgraft.prototypes import directions
from fewgraft.runtime import Runtime

PICTURES_AT_A_TIME = 1024
KIND, LENGTHS = "directions", "lengths"  # what is kept of features; part of the name
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
    model: CosineModel, store: ImageStore, pictures: Indices, root: Path | None = None
) -> FeatureBank:
    """The features of these pictures, from disk where they are there.

    Picture i rotated by q quarters has the index q·n + i, n pictures being in the store.
    """
    features = _kept(model, store, pictures, root, KIND)
    total = len(store) * (1 + int(pictures.max(initial=0)) // len(store))
    row = _rows(torch.from_numpy(pictures), total)
    return FeatureBank(torch.from_numpy(features), row)


def feature_lengths(
    model: CosineModel, store: ImageStore, pictures: Indices, root: Path | None = None
) -> Tensor:
    """How long the features of these pictures are before they become directions [m]."""
    return torch.from_numpy(_kept(model, store, pictures, root, LENGTHS))[:, 0]


def keep_features(
    model: CosineModel,
    store: ImageStore,
    pictures: Indices,
    features: Tensor,
    root: Path | None = None,
) -> None:
    """Put features [m, d] of these pictures, of any length, where `feature_bank` looks for them."""
    folder = (root or bank_root()) / _key(model, store, pictures, KIND)
    with writing(folder), replacing_folder(folder) as work:
        np.save(work / "features.npy", directions(features).numpy())


def _kept(
    model: CosineModel, store: ImageStore, pictures: Indices, root: Path | None, kind: str
) -> NDArray[np.float32]:
    """Directions [m, d] or lengths [m, 1] from disk; computed where they are not there."""
    folder = (root or bank_root()) / _key(model, store, pictures, kind)
    path = folder / "features.npy"
    shape = (len(pictures), model.card.width if kind == KIND else 1)
    try:
        return _read(path, shape)
    except FewgraftError:  # absent, or damaged, which is as good as absent
        with writing(folder), replacing_folder(folder) as work:
            _compute(model, store, pictures, work / "features.npy", kind)
        return _read(path, shape)


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


def _key(model: CosineModel, store: ImageStore, pictures: Indices, kind: str) -> str:
    card = model.card
    transform = {"size": card.size, "mean": card.mean, "std": card.std, "backbone": card.backbone}
    chosen = hashlib.sha256(pictures.astype("<i8").tobytes()).hexdigest()
    parts = [weights_hash(model), store.manifest.content, json.dumps(transform), kind, chosen]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _compute(
    model: CosineModel, store: ImageStore, pictures: Indices, path: Path, kind: str
) -> None:
    kept, width = (directions, model.card.width) if kind == KIND else (_lengths, 1)
    features = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float32, shape=(len(pictures), width)
    )
    shown = "features" if kind == KIND else kind
    for start, some in embedded(
        model, store, pictures, f"{shown} of {model.card.stage or 'model'}"
    ):
        features[start : start + len(some)] = kept(some).numpy()
    features.flush()


def embedded(
    model: CosineModel, store: ImageStore, pictures: Indices, shown: str
) -> Iterator[tuple[int, Tensor]]:
    """Features [m, d] of some pictures at a time, and how many came before; with progress."""
    embed = _by_torch(model) if model.card.size <= BY_TORCH else _by_runtime(model, len(pictures))
    starts = range(0, len(pictures), PICTURES_AT_A_TIME)
    for start in track(starts, shown, len(starts)):
        yield start, embed(pixels_of(store, pictures[start : start + PICTURES_AT_A_TIME]))


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
