"""A log that nobody can fill: a few lines per minute, and how many were left out."""

import contextlib
import logging
import time
import warnings
from collections.abc import Iterator

LINES, SECONDS = 20, 60.0


class Sparing(logging.Filter):
    """Lets `LINES` records pass in `SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self._start = -SECONDS
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        now = time.monotonic()
        if now - self._start >= SECONDS:
            if (more := self._count - LINES) > 0:
                record.msg = f"{record.getMessage()} ({more:,} more before were left out)"
                record.args = ()
            self._start, self._count = now, 0
        self._count += 1
        return self._count <= LINES


@contextlib.contextmanager
def sparing_log() -> Iterator[None]:
    """Whatever warns in this process does so on standard error, sparingly.

    What is odd about a photo is no news for whoever runs the server: libraries warn of it in vain.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
    handler.addFilter(Sparing())
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(handler)
