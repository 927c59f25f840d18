"""From photo files to features: decoding runs beside the network, and nothing piles up in memory.

What cannot be read is told apart from the rest with a reason and does not stop the others.
"""

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewgraft.app.features.cache import (
    FeatureCache,
    Features,
    backbone_key,
    cache_root,
    content_key,
)
from fewgraft.data.pictures import MAX_BYTES, PictureError, Pixels, read_picture
from fewgraft.errors import FewgraftError
from fewgraft.model import CosineModel
from fewgraft.progress import track

Photo = Path | bytes | Pixels | Image.Image
BATCH = 32
PIXELS = BATCH * 384 * 384  # of a batch: larger pictures come in fewer at a time
AHEAD = 4 * BATCH  # pictures that may wait, decoded, for the network
IN_MEMORY = 64 << 20  # bytes of features; more lie in a file that the system pages in and out

Tracker = Callable[[Iterable[int], str, int], Iterable[int]]


def track_photos(items: Iterable[int], what: str, total: int) -> Iterable[int]:
    """The usual progress bar."""
    return track(items, what, total)


@dataclass(frozen=True)
class Embedded:
    """Features of the photos that could be read."""

    features: Features  # [n, d], in memory or in a file of its own
    kept: list[int]  # which photos they belong to
    keys: list[bytes]  # the content of each
    failed: dict[int, str]  # the others, with reasons

    def tensor(self) -> Tensor:
        """All features at once."""
        return torch.from_numpy(np.array(self.features))


class Embeds(Protocol):
    """Whatever turns pictures into features for a model."""

    @property
    def model(self) -> CosineModel:
        """The model whose features they are."""
        ...

    def __call__(self, photos: Sequence[Any], what: str = "") -> Embedded:
        """Features of photos, in their order."""
        ...


@dataclass(frozen=True)
class _Decoded:
    key: bytes
    pixels: Pixels | None  # None: its feature is known


class Embedder:
    """f_θ over photos. Features are those of the backbone, taken from the model's centre."""

    def __init__(
        self,
        model: CosineModel,
        *,
        keep: bool = True,
        cache: Path | None = None,
        tracker: Tracker = track_photos,
        decoders: Executor | None = None,  # shared with others; None: a thread per core
    ) -> None:
        self.model = model.eval()
        self._decoders = decoders
        self._tracker = tracker
        self._batch = max(1, min(BATCH, PIXELS // model.card.size**2))
        folder = (cache or cache_root()) / backbone_key(model) if keep else None
        self._cache = FeatureCache(folder, model.card.width)

    def __call__(self, photos: Sequence[Photo], what: str = "photos") -> Embedded:
        """Features of photos, in their order."""
        if not photos:
            return Embedded(np.empty((0, self.model.card.width), np.float32), [], [], {})
        features = _room(len(photos), self.model.card.width)
        kept: list[int] = []
        keys: list[bytes] = []
        failed: dict[int, str] = {}
        batch: list[_Decoded] = []
        decoded = self._decoded(photos)
        for number in self._tracker(range(len(photos)), what, len(photos)):
            one = next(decoded)
            if isinstance(one, str):
                failed[number] = one
            else:
                batch.append(one)
                kept.append(number)
                keys.append(one.key)
            if batch and (len(batch) == self._batch or number == len(photos) - 1):
                features[len(kept) - len(batch) : len(kept)] = self._embed(batch)
                batch = []
        self._cache.flush()
        return Embedded(features[: len(kept)], kept, keys, failed)

    def _decoded(self, photos: Sequence[Photo]) -> Iterator[_Decoded | str]:
        """Every photo decoded, in order, a few ahead of the network; or why it could not be."""
        coming = iter(photos)
        waiting: deque[Future[_Decoded | str]] = deque()
        with self._pool() as pool:
            some = islice(coming, min(AHEAD, 4 * self._batch))
            waiting.extend(pool.submit(self._decode, photo) for photo in some)
            try:
                while waiting:
                    done = waiting.popleft().result()
                    waiting.extend(pool.submit(self._decode, photo) for photo in islice(coming, 1))
                    yield done
            finally:
                for left in waiting:
                    left.cancel()

    def _pool(self) -> AbstractContextManager[Executor]:
        if self._decoders:
            return nullcontext(self._decoders)
        return ThreadPoolExecutor(os.cpu_count() or 1, "decode")

    def _decode(self, photo: Photo) -> _Decoded | str:
        card = self.model.card
        try:
            content = content_of(photo)
            key = content_key(content if isinstance(content, bytes) else _named(content))
            if key in self._cache:
                return _Decoded(key, None)
            return _Decoded(key, read_picture(content, card.size, card.channels, card.crop))
        except PictureError as error:
            return str(error)
        except OSError as error:
            return error.strerror or "cannot be read"

    @torch.inference_mode()
    def _embed(self, batch: Sequence[_Decoded]) -> Features:
        """Features [n, d]; only what is not known goes through the network."""
        pixels = {one.key: one.pixels for one in batch if one.pixels is not None}
        new: dict[bytes, Features] = {}
        if pixels:
            pictures = self.model.prepare(torch.from_numpy(np.stack(list(pixels.values()))))
            computed = self.model.backbone_features(pictures).float().cpu().numpy()
            if not np.isfinite(computed).all():
                raise FewgraftError("the network gives features that are not finite")
            new = dict(zip(pixels, computed, strict=True))
            self._cache.put(new)
        rows = np.stack([new[k] if k in new else self._cache[k] for k in (o.key for o in batch)])
        placed: Features = self.model.place(torch.from_numpy(rows)).numpy()
        return placed


def content_of(photo: Photo) -> bytes | Pixels:
    """The bytes of a file, or pixels."""
    if isinstance(photo, Image.Image):
        return np.asarray(photo.convert("RGB"))
    if isinstance(photo, Path):
        if photo.stat().st_size > MAX_BYTES:
            raise PictureError(f"a file of {photo.stat().st_size // 1_000_000} MB is no photo")
        return photo.read_bytes()
    return photo


def _named(pixels: Pixels) -> bytes:
    return f"{pixels.shape} {pixels.dtype}".encode() + np.ascontiguousarray(pixels).tobytes()


def _room(rows: int, width: int) -> Features:
    """Space for features, in memory or, where they are many, in a file without a name."""
    if 4 * rows * width <= IN_MEMORY:
        return np.empty((rows, width), np.float32)
    with tempfile.TemporaryFile() as file:
        file.truncate(4 * rows * width)
        return np.memmap(file, np.float32, "r+", shape=(rows, width))
