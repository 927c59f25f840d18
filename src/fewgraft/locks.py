"""One process at a time: a lock on a file, which the system takes back when its process ends."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fewgraft.errors import FewgraftError, writing
from fewgraft.files import make_folder

# Windows keeps others from reading the bytes that are locked: lock one far behind the text.
FAR = 1 << 30
WAIT = 0.02  # seconds between two looks at a lock that is held


class Busy(FewgraftError):  # noqa: N818
    """Somebody else holds the lock."""


class Lock:
    """A lock that is held. It ends with `release` or with the process, whatever kills that."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle: int | None = handle

    def release(self) -> None:
        """Let another process have it; a second time does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if sys.platform == "win32":  # which removes no file that is open
            os.close(handle)
            _remove(self._path)
        else:  # while it is still locked: afterwards the file may be another's
            _remove(self._path)
            os.close(handle)


def take_lock(path: Path, busy: FewgraftError | None) -> Lock:
    """Lock the file `path`, which holds the number of the process while it is locked.

    Where another process, or another part of this one, holds it, `busy` is raised with its number
    (as `Busy`); None waits for it.
    """
    with writing(path):
        make_folder(path.parent)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                locked = _try(handle)
                if locked and _is_at(handle, path):
                    _sign(handle)
                    return Lock(path, handle)
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
            if not locked and busy:
                raise Busy(f"{busy.problem}{_owner(path)}", busy.hint)
            if not locked:
                time.sleep(WAIT)
            # The owner removed the file between our opening and locking it: take the new one.


@contextlib.contextmanager
def hold_lock(path: Path, busy: FewgraftError | None) -> Iterator[None]:
    """`take_lock` for the length of a block."""
    lock = take_lock(path, busy)
    try:
        yield
    finally:
        lock.release()


def _try(handle: int) -> bool:
    """Whether an open file could be locked; never waits."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, FAR, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name as well
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, str(os.getpid()).encode())


def _owner(path: Path) -> str:
    """Who holds a lock, in words; nothing where that is not to be known."""
    try:
        return f" (by process {int(path.read_text())})"
    except (OSError, ValueError):
        return ""


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # an empty file does no harm
        path.unlink(missing_ok=True)
