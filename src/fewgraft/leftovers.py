"""Temporary files and folders, and what to do with those whose process was killed.

A temporary lies beside what it will become, so that a rename puts it in place:

    .NAME.in-work-PID-START-RANDOM

Its process is in its name and holds a lock on it, which the system takes back however the process
ends. Who made it lives as long as either is so: the lock holds across containers and whatever the
clock does, the name holds before the lock is taken and where there are no locks.

A list of all that is in work is kept in the user's home: a folder of links that point at the
temporaries (a link is made with its content, so it is never torn). Every command begins by clearing
what is on the list and has no living process. The list only says where to look: nothing is removed
but what has such a name, belongs to this user and is no link.
"""

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from fewgraft.errors import FewgraftError
from fewgraft.home import home_folder

IN_WORK, REPLACED = "in-work", "replaced"
_NAME = re.compile(
    r"\..+\.in-work-(?P<pid>\d+)-(?P<start>t\d+x[0-9a-f]{8}|\d+)-[0-9a-f]{8}", re.DOTALL
)
_LONGEST = 150  # bytes of a name that are repeated in the name of its temporary; a system takes 255


def prefix(target: Path, state: str) -> str:
    """How names of temporaries of `target` begin; a name that is too long to repeat is hashed."""
    name = os.fsencode(target.name)
    stem = target.name if len(name) <= _LONGEST else hashlib.sha256(name).hexdigest()[:32]
    return f".{stem}.{state}-"


def own_name(target: Path, state: str) -> Path:
    """A new name beside `target` that tells which process it belongs to: its number and start.

    The number alone would not do: in a container a new process often has that of a dead one.
    """
    pid = os.getpid()
    return target.parent / f"{prefix(target, state)}{pid}-{_start(pid)}-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def in_work(target: Path, *, folder: bool) -> Iterator[Path]:
    """A new empty file or folder beside `target`; what is still there afterwards is removed."""
    path = own_name(target, IN_WORK).absolute()
    lock = None
    with _noted(path):
        try:
            path.mkdir() if folder else path.touch(exist_ok=False)
            lock = _lock(path)
            yield path
        finally:
            remove(path)
            if lock is not None:
                os.close(lock)


def clear_leftovers() -> None:
    """Remove what dead processes of this user left anywhere; quick where there is nothing."""
    with contextlib.suppress(OSError, FewgraftError):  # no home, or none to write to
        for noted in list(_list().iterdir()):
            _clear(noted)


def left_behind(target: Path, state: str) -> list[Path]:
    """Temporaries of `target` whose process lives no more."""
    begin = prefix(target, state)
    found = [path for path in target.parent.iterdir() if path.name.startswith(begin)]
    return [p for p in found if not _in_use(p, *p.name.removeprefix(begin).split("-")[:2])]


def _list() -> Path:
    return home_folder() / "in-work"


@contextlib.contextmanager
def _noted(path: Path) -> Iterator[None]:
    """Keep a temporary on the list until it is gone; the list itself is there only when needed."""
    first, noted = _note(path)
    try:
        yield
    finally:
        if noted and not os.path.lexists(path):
            with contextlib.suppress(OSError):  # others have work in hand
                noted.unlink()
                noted.parent.rmdir()
                if first:
                    noted.parent.parent.rmdir()


def _note(path: Path) -> tuple[bool, Path | None]:
    """Put a temporary on the list; whether there was no home before, and what to take off again.

    Without a home, or a writable one, only the next writer of the same target finds what is left.
    """
    for _ in range(10):  # whoever is done removes an empty list, perhaps just now
        try:
            noted = _list() / uuid.uuid4().hex
            first = not noted.parent.parent.exists()
            noted.parent.mkdir(parents=True, exist_ok=True)
            noted.symlink_to(path)
            return first, noted
        except FileNotFoundError:
            continue
        except (OSError, NotImplementedError, FewgraftError):
            break
    return False, None


def _clear(noted: Path) -> None:
    with contextlib.suppress(OSError):
        path = noted.readlink()
        named = _NAME.fullmatch(path.name)
        if not named or not path.is_absolute() or _in_use(path, named["pid"], named["start"]):
            return
        if os.path.lexists(path) and not path.is_symlink() and _is_ours(path):
            remove(path)
        if not os.path.lexists(path):
            noted.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    return os.name != "posix" or path.lstat().st_uid == os.geteuid()


def remove(path: Path) -> None:
    """A file, or a folder with all that is in it; a link alone, not what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _in_use(path: Path, pid: str = "", start: str = "") -> bool:
    if _lives(pid, start):
        return True
    locked = _is_locked(path)
    # Who cannot be asked by a lock may live on another machine that shares this disk.
    return "x" in start and not start.endswith(_boot()) if locked is None else locked


def _lives(pid: str, start: str) -> bool:
    """Whether a process of this number and start is there; a clock that was set changes nothing."""
    if not pid.isdecimal() or not start:
        return False
    if start.startswith("t"):
        return _start(int(pid)) == start
    import psutil  # the name was given elsewhere, or by an older version

    try:
        began: float = psutil.Process(int(pid)).create_time()
        return abs(began - int(start)) < 3
    except (ValueError, OverflowError, psutil.Error):
        return False


def _start(pid: int) -> str:
    """When a process began: in ticks of this run of the machine, else in seconds; "" if it is gone.

    Seconds are by the clock, which may be set; ticks are not.
    """
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # After the program's name, which may hold anything; field 22 of proc_pid_stat(5).
        return f"t{told.rpartition(')')[2].split()[19]}{_boot()}"
    except (OSError, IndexError):
        pass
    import psutil

    try:
        return f"{psutil.Process(pid).create_time():.0f}"
    except psutil.Error:
        return ""


def _boot() -> str:
    """A name for this run of this machine."""
    return "x" + Path("/proc/sys/kernel/random/boot_id").read_text()[:8]


def _lock(path: Path) -> int | None:
    """Lock an open file or folder, for as long as its handle is open."""
    with contextlib.suppress(ImportError, OSError):  # a system, or a disk, without such locks
        import fcntl

        handle = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)  # who looks whether it is locked is done at once
        return handle
    return None


def _is_locked(path: Path) -> bool | None:
    """Whether somebody holds the lock; None where there are no locks."""
    try:
        import fcntl

        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False
