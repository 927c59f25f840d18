"""Files that are there whole or not at all."""

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

_IN_WORK = "in-work"
_REPLACED = "replaced"


def readable(path: Path) -> str:
    """A path as text that can be printed and stored, even where its name is no valid text."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `target` when the block ends well.

    Killed at any moment, `target` is the old folder or (between two renames, or if there was no
    old one) absent; `mend_folder` puts an old one back then. An exception leaves `target` alone.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    mend_folder(target)
    work = _own_name(target, _IN_WORK)
    work.mkdir()
    try:
        yield work
        _flush_to_disk(work)
        _put_in_place(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _put_in_place(work: Path, target: Path) -> None:
    replaced = _own_name(target, _REPLACED)
    if target.exists():
        target.rename(replaced)
    try:
        work.rename(target)
    except OSError:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def mend_folder(target: Path) -> None:
    """Clear away what a killed `replacing_folder` left, putting the old folder back if need be."""
    if not target.parent.is_dir():
        return
    for left in _left_behind(target, _REPLACED):
        shutil.rmtree(left) if target.exists() else left.rename(target)
    for left in _left_behind(target, _IN_WORK):
        shutil.rmtree(left, ignore_errors=True)


def _prefix(target: Path, state: str) -> str:
    return f".{target.name}.{state}-"


def _own_name(target: Path, state: str) -> Path:
    """A new name beside `target` that tells which process it belongs to: its number and start.

    The number alone would not do: in a container a new process often has that of a dead one.
    """
    process = psutil.Process()
    owner = f"{process.pid}-{process.create_time():.0f}"
    return target.parent / f"{_prefix(target, state)}{owner}-{uuid.uuid4().hex[:8]}"


def _left_behind(target: Path, state: str) -> list[Path]:
    """Folders of this state whose process lives no more."""
    prefix = _prefix(target, state)
    found = [path for path in target.parent.iterdir() if path.name.startswith(prefix)]
    return [path for path in found if not _lives(*path.name.removeprefix(prefix).split("-")[:2])]


def _lives(pid: str = "", start: str = "") -> bool:
    try:
        began: float = psutil.Process(int(pid)).create_time()
        return abs(began - int(start)) < 3
    except (ValueError, psutil.Error):
        return False


def _flush_to_disk(folder: Path) -> None:
    """A rename may reach the disk before the bytes it names: write those first."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class NpyAppender:
    """Writes an .npy file whose first dimension grows: rows go to disk, never pile up in memory."""

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self._rows = 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def append(self, row: NDArray[np.generic]) -> None:
        """Add one row."""
        row = np.ascontiguousarray(row, dtype=self._dtype)
        if row.shape != self._row_shape:
            raise ValueError(f"a row of shape {row.shape} in a file of {self._row_shape}")
        self._file.write(row.tobytes())
        self._rows += 1

    def _write_header(self) -> None:
        """NumPy pads the header so that the row count can grow in place."""
        description = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._rows, *self._row_shape),
        }
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, description)

    def __enter__(self) -> Self:
        """The appender itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the final row count and close."""
        self._write_header()
        self._file.close()
