"""A limit on the memory that a foreign decoder may take, where the system can hold it to one."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def at_most_more(size: int) -> Iterator[None]:
    """Whoever asks for more than `size` new bytes in here gets a MemoryError.

    The limit is the whole process's, so what is done in here should be short. Only Linux counts all
    memory that is asked for; elsewhere there is no limit.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _memory() + size
    if soft != resource.RLIM_INFINITY:
        most = min(most, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _memory() -> int:
    """Bytes that count towards the limit now."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * os.sysconf("SC_PAGE_SIZE")
