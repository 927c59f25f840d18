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
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewgraft.app.features.cache import FeatureCache, Features, cache_root, content_key
from fewgraft.data.pictures import MAX_BYTES, PictureError, Pixels, read_picture
from fewgraft.devices import threads_for
from fewgraft.errors import FewgraftError
from fewgraft.model import CosineModel
from fewgraft.progress import track
from fewgraft.runtime import BATCH, Runtime

Photo = Path | bytes | Pixels | Image.Image
AHEAD = 4 * BATCH  # pictures that may wait, decoded, for the network
PART = 1024  # features that are placed together
IN_MEMORY = 64 << 20  # bytes of features; more lie in a file that the system pages in and out

Tracker = Callable[[Iterable[int], str, int], Iterable[int]]


def untracked(items: Iterable[int], what: str, total: int) -> Iterable[int]:
    """No progress bar."""
    del what, total
    return items


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


@dataclass(frozen=True)
class _Running:
    """A batch whose features are being computed."""

    rows: slice
    keys: list[bytes]
    found: Callable[[], dict[bytes, Features]]  # those that were not known


class Embedder:
    """f_θ over photos. Features are those of the backbone, taken from the model's centre."""

    def __init__(
        self,
        model: CosineModel,
        *,
        keep: bool = True,
        cache: Path | None = None,
        device: torch.device | None = None,  # None: where the backbone is
        tracker: Tracker = track_photos,
        decoders: Executor | None = None,  # shared with others; None: a thread per core
        runtime: Runtime | None = None,  # shared with others; None: one on `device`
    ) -> None:
        self.model = model.eval()
        self.runtime = runtime or Runtime(model, device)
        self._decoders = decoders
        self._tracker = tracker
        folder = (cache or cache_root()) / self.runtime.key if keep else None
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
        running: deque[_Running] = deque()
        with self._pool() as pool:
            decoded = self._decoded(photos, pool)
            for number in self._tracker(range(len(photos)), what, len(photos)):
                one = next(decoded)
                if isinstance(one, str):
                    failed[number] = one
                else:
                    batch.append(one)
                    kept.append(number)
                    keys.append(one.key)
                last = number == len(photos) - 1
                if batch and (last or len(batch) == self.runtime.batch):
                    rows = slice(len(kept) - len(batch), len(kept))
                    found = self._start(batch, len(photos) - number, pool)
                    running.append(_Running(rows, [one.key for one in batch], found))
                    batch = []
                while len(running) > (0 if last else self.runtime.streams):
                    done = running.popleft()
                    features[done.rows] = self._finish(done)
        self._cache.flush()
        self._place(features[: len(kept)])
        return Embedded(features[: len(kept)], kept, keys, failed)

    def _decoded(self, photos: Sequence[Photo], pool: Executor) -> Iterator[_Decoded | str]:
        """Every photo decoded, in order, a few ahead of the network; or why it could not be."""
        coming = iter(photos)
        waiting: deque[Future[_Decoded | str]] = deque()
        some = islice(coming, min(AHEAD, 4 * self.runtime.batch))
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

    def _start(
        self, batch: Sequence[_Decoded], ahead: int, pool: Executor
    ) -> Callable[[], dict[bytes, Features]]:
        """Begin with what is not known of a batch; gives what to call for the features.

        Where the network runs in several batches at a time, the threads that decode compute it as
        well, so that there is one for each core and none waits.
        """
        pixels = {one.key: one.pixels for one in batch if one.pixels is not None}
        if not pixels:
            return dict
        stacked = np.stack(list(pixels.values()))
        self.runtime.consider(stacked, ahead)
        if self.runtime.streams > 1 and not self._decoders:
            return pool.submit(self._compute, list(pixels), stacked).result
        return partial(dict, self._compute(list(pixels), stacked))

    def _compute(self, keys: Sequence[bytes], pixels: Pixels) -> dict[bytes, Features]:
        """Features [d] by key of pictures [n, size, size, channels]."""
        computed = self.runtime(pixels)
        if not np.isfinite(computed).all():
            raise FewgraftError("the network gives features that are not finite")
        return dict(zip(keys, computed, strict=True))

    def _finish(self, done: _Running) -> Features:
        """Features [n, d] of a batch, with those that were known."""
        new = done.found()
        self._cache.put(new)
        return np.stack([new[key] if key in new else self._cache[key] for key in done.keys])

    def _place(self, features: Features) -> None:
        """Take features [n, d] to where the model compares them, in place.

        Many at a time: a product with a few rows costs as much as reading the matrix.
        """
        device = self.model.centre.device
        for start in range(0, len(features), PART):
            some = features[start : start + PART]
            with threads_for(some.size * features.shape[1]):
                some[:] = self.model.place(torch.from_numpy(some).to(device)).cpu().numpy()


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
