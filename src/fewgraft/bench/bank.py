"""Features of pictures, computed once and kept as a memory map.

A bank's name is made of the weights, the data and what is done to a picture before it is embedded:
whatever changes has another name, so that a stale bank is never used.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewgraft.data.arrays import npy_map
from fewgraft.data.catalogue import data_root
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices
from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import replacing_folder
from fewgraft.model import CosineModel, embed_all
from fewgraft.progress import track

PICTURES_AT_A_TIME = 1024


def weights_hash(model: CosineModel) -> str:
    """A name for exactly these weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class FeatureBank:
    """Features [m, d] of some pictures of a data set, and where each picture's row is."""

    features: Tensor
    row: Tensor  # [n] picture → row; −1 where it has none

    def __getitem__(self, pictures: Tensor) -> Tensor:
        """Features [..., d] of pictures [...]."""
        return self.features[self.row[pictures]]


def bank_root() -> Path:
    """Where banks are kept: beside the data sets."""
    return data_root().parent / "features"


def feature_bank(
    model: CosineModel, store: ImageStore, pictures: Indices, root: Path | None = None
) -> FeatureBank:
    """The features of these pictures, from disk where they are there."""
    folder = (root or bank_root()) / _key(model, store, pictures)
    path, shape = folder / "features.npy", (len(pictures), model.card.width)
    try:
        features = _read(path, shape)
    except FewgraftError:  # absent, or damaged, which is as good as absent
        with writing(folder), replacing_folder(folder) as work:
            _compute(model, store, pictures, work / "features.npy")
        features = _read(path, shape)
    row = torch.full((len(store),), -1)
    row[torch.from_numpy(pictures)] = torch.arange(len(pictures))
    return FeatureBank(torch.from_numpy(features), row)


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.float32]:
    with reading(path, "readable file of features"):
        features: NDArray[np.float32] = npy_map(path, np.float32, shape, "c")
        if not np.isfinite(features).all():
            raise ValueError("the network gives numbers that are not finite")
        return features


def _key(model: CosineModel, store: ImageStore, pictures: Indices) -> str:
    card = model.card
    transform = {"size": card.size, "mean": card.mean, "std": card.std, "backbone": card.backbone}
    chosen = hashlib.sha256(pictures.astype("<i8").tobytes()).hexdigest()
    parts = [weights_hash(model), store.manifest.content, json.dumps(transform), chosen]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _compute(model: CosineModel, store: ImageStore, pictures: Indices, path: Path) -> None:
    features = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float32, shape=(len(pictures), model.card.width)
    )
    starts = range(0, len(pictures), PICTURES_AT_A_TIME)
    for start in track(starts, f"features of {model.card.stage or 'model'}", len(starts)):
        some = pictures[start : start + PICTURES_AT_A_TIME]
        features[start : start + len(some)] = embed_all(model, store.pictures[some]).numpy()
    features.flush()
