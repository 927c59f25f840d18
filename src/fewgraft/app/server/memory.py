"""Memory that goes back to the system when it is freed.

glibc keeps what is freed for later, per thread, and the longer the more: after a few large pictures
hundreds of megabytes. Large blocks are given back at once if it is told to, and never unlearns it.
"""

import ctypes
import sys

MMAP_THRESHOLD, ARENA_MAX = -3, -8  # as malloc.h numbers them
LARGE = 4 << 20  # bytes; the blocks of decoders are larger, those of most layers are smaller
ARENAS = 2


def give_back_memory() -> None:
    """For this process, on Linux with glibc; elsewhere nothing."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(MMAP_THRESHOLD, LARGE)
    mallopt(ARENA_MAX, ARENAS)
