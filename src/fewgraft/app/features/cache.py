"""Features that were computed once are kept, by the content of the picture.

A picture's key is made of its bytes, so that a file may be renamed or come twice. The
folder's name is made of all that turns bytes into features: whatever changes has another folder.
Features are added in segments of two files, complete or absent; several processes may add at once.
"""

import contextlib
import hashlib
import io
import uuid
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewgraft.data.arrays import npy_map
from fewgraft.data.catalogue import data_root
from fewgraft.errors import FewgraftError, reading
from fewgraft.files import make_folder, write_atomically
from fewgraft.locks import hold_lock
from fewgraft.parsing import read_whole

Features = NDArray[np.float32]
DIGEST = 16  # bytes
SEGMENT = 1024  # features that are written together


def content_key(content: bytes) -> bytes:
    """A name for exactly these bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def cache_root() -> Path:
    """Where features of photos are kept: beside the data sets."""
    return data_root().parent / "photos"


class FeatureCache:
    """Features of one backbone, by content; `folder` None keeps nothing."""

    def __init__(self, folder: Path | None, width: int) -> None:
        self._folder = folder
        self._width = width
        self._places: dict[bytes, tuple[int, int]] = {}
        self._segments: list[Features] = []
        self._new: dict[bytes, Features] = {}
        for keys in sorted(folder.glob("*.keys")) if folder and folder.is_dir() else ():
            self._open(keys)

    def _open(self, keys: Path) -> None:
        """One segment; one that is not whole is as good as absent."""
        try:
            with reading(keys):
                packed = read_whole(keys)
                shape = (len(packed) // DIGEST, self._width)
                features = npy_map(keys.with_suffix(".npy"), np.float32, shape)
        except FewgraftError:
            return
        for row in range(len(features)):
            key = packed[row * DIGEST : (row + 1) * DIGEST]
            self._places[key] = (len(self._segments), row)
        self._segments.append(features)

    def __contains__(self, key: bytes) -> bool:
        """Whether the feature is there, and is one."""
        known = key in self._places or key in self._new
        return known and bool(np.isfinite(self[key]).all())

    def __getitem__(self, key: bytes) -> Features:
        """The feature [d]."""
        if key in self._new:
            return self._new[key]
        segment, row = self._places[key]
        feature: Features = self._segments[segment][row]
        return feature

    def put(self, features: Mapping[bytes, Features]) -> None:
        """Keep features [d] by key; they reach the disk with their segment."""
        if self._folder is None:
            return
        self._new.update(features)
        if len(self._new) >= SEGMENT:
            self.flush()

    def flush(self) -> None:
        """Write what is new; the keys come last, because they are what is looked for."""
        if self._folder is None or not self._new:
            return
        keys = self._folder / f"{uuid.uuid4().hex}.keys"
        rows = io.BytesIO()
        np.save(rows, np.stack(list(self._new.values())))
        try:
            make_folder(self._folder)
            with hold_lock(self._folder / ".writing", busy=None):
                _clear_halves(self._folder)
                write_atomically(keys.with_suffix(".npy"), rows.getvalue())
                write_atomically(keys, b"".join(self._new))
        except (OSError, FewgraftError):  # a full or read-only disk costs memory now and time later
            with contextlib.suppress(OSError):
                keys.with_suffix(".npy").unlink(missing_ok=True)
            return
        self._open(keys)
        self._new = {}


def _clear_halves(folder: Path) -> None:
    """Features whose keys never came: who writes is alone, so their process was killed."""
    for features in folder.glob("*.npy"):
        if not features.with_suffix(".keys").exists():
            features.unlink()
