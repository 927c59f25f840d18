"""Folders for the files of requests, inside one temporary folder that all of them share."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from fewgraft.files import temporary_folder


class Scratch:
    """One temporary folder, as each costs an open file, its lock; the last request clears it."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._held = ExitStack()
        self._users = 0
        self._lock = threading.Lock()

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """A folder for one request."""
        own = self._new()
        try:
            yield own
        finally:
            await asyncio.to_thread(self._remove, own)  # thousands of files take a while

    def close(self) -> None:
        """Remove all of it, also what requests that were broken off still have."""
        self._held.close()

    def _new(self) -> Path:
        with self._lock:
            self._users += 1
            try:
                if not (self._root and self._root.is_dir()):  # or somebody has cleared it away
                    self._root = self._held.enter_context(temporary_folder())
                return Path(tempfile.mkdtemp(dir=self._root))
            except BaseException:  # a full disk
                self._leave()
                raise

    def _remove(self, own: Path) -> None:
        shutil.rmtree(own, ignore_errors=True)
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._held.close()
            self._root = None
