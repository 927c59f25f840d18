"""Files that are there whole or not at all."""

import contextlib
import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fewgraft.errors import FewgraftError
from fewgraft.leftovers import (
    IN_WORK,
    REPLACED,
    clear_leftovers,
    in_work,
    left_behind,
    own_name,
    remove,
)

T = TypeVar("T")
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


def readable(path: Path) -> str:
    """A path as text that can be printed and stored, even where its name is no valid text."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `target` when the block ends well.

    Killed at any moment, or without power, `target` is the old folder or the new one. (A system
    that cannot exchange two names has a moment without either; `mend_folder` puts the old one back
    then.) An exception leaves `target` alone. Where `target` is a link, it stays one: what it
    points to is replaced.
    """
    target = behind_links(target)
    make_folder(target.parent)
    mend_folder(target)
    clear_leftovers()
    with in_work(target, folder=True) as work:
        yield work
        if target.is_dir():
            shutil.copymode(target, work)
        _sync_tree(work)
        _put_in_place(work, target)
        _sync_folder(target.parent)


def read_folder(folder: Path, read: Callable[[Path], T]) -> T:
    """Read a folder of several files, all of which belong together: again if it was replaced."""
    while True:
        before = _identity(folder)
        try:
            found = read(folder)
        except Exception:
            if _identity(folder) == before:
                raise
            continue
        if _identity(folder) == before:
            return found


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, never a part.

    Where `path` is a link, it stays one. A pipe or a device is written to.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    path = behind_links(path)
    make_folder(path.parent)
    mend_folder(path)
    with in_work(path, folder=False) as work:
        if path.exists():
            shutil.copymode(path, work)
        with work.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        work.replace(path)
        _sync_folder(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Add a line, on disk when this returns; one that a power failure tore is cut off first.

    Two processes must not do this at once. A disk that is full leaves the file as it was.
    """
    new = not path.exists()
    with path.open("ab+") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        try:
            file.write(line + b"\n")
            file.flush()
        except OSError:
            file.truncate(whole)
            raise
        os.fsync(file.fileno())
    if new:
        _sync_folder(path.parent)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder among the system's temporary ones; a killed process's is cleared by the next."""
    with in_work(Path(tempfile.gettempdir()) / "fewgraft", folder=True) as folder:
        folder.chmod(0o700)
        yield folder


def behind_links(path: Path) -> Path:
    """What a link points to, in the end; any other path as it is."""
    if not path.is_symlink():
        return path
    end = Path(os.path.realpath(path))
    if end.is_symlink() or not end.parent.is_dir():
        raise FewgraftError(
            f"{path} is a link to {readable(path.readlink())}, which is not there",
            "Bring that back, or remove the link.",
        )
    return end


def make_folder(folder: Path) -> None:
    """A folder with all above it, on disk when this returns."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    _sync_folder(folder.parent)


def mend_folder(target: Path) -> None:
    """Clear away what a killed writer of `target` left, putting an old folder back if need be."""
    target = behind_links(target)
    if not target.parent.is_dir():
        return
    for left in left_behind(target, REPLACED):
        shutil.rmtree(left) if target.exists() else left.rename(target)
    for left in left_behind(target, IN_WORK):
        remove(left)


def _put_in_place(work: Path, target: Path) -> None:
    """Whoever else does the same at the same time: each is there whole, the last one stays."""
    while True:
        try:
            work.rename(target)
            return
        except OSError:
            if not target.is_dir():
                raise
        with contextlib.suppress(FileNotFoundError):  # another one has it in hand
            _exchange(work, target)
            return


def _exchange(work: Path, target: Path) -> None:
    """Each gets the other's name: at once where the system can, else by three renames."""
    if _exchange_at_once(work, target):
        return
    replaced = own_name(target, REPLACED)
    target.rename(replaced)
    try:
        work.rename(target)
    except OSError:
        if not target.exists():
            replaced.rename(target)
        raise
    replaced.rename(work)


def _exchange_at_once(work: Path, target: Path) -> bool:
    """Whether it could be done; Python itself has no word for it."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    failed = rename(_HERE, os.fsencode(work), _HERE, os.fsencode(target), _EXCHANGE)
    if failed and ctypes.get_errno() == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))
    return not failed


def _sync_tree(folder: Path) -> None:
    """A rename may reach the disk before the bytes it names: write those first."""
    for path in folder.iterdir():
        if path.is_dir():
            _sync_tree(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Names are on disk when their folder is."""
    if os.name != "posix":
        return
    with contextlib.suppress(PermissionError):  # one may write into it, but not read it
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a disk that cannot
                raise
        finally:
            os.close(handle)


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
