"""The decoding of pictures, for the whole server: a few at a time, and of heavy ones only one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fewgraft.app.server.refusals import Limits
from fewgraft.data.pictures import Pixels, open_header, read_picture


class Decoders:
    """What decoding takes of the memory is bounded here, however many ask for it."""

    def __init__(self, limits: Limits) -> None:
        self.pool = ThreadPoolExecutor(limits.decodes, "decode")
        self._heavy = threading.Lock()
        self._limits = limits

    def close(self) -> None:
        """Finish what is being decoded, and no more."""
        self.pool.shutdown(cancel_futures=True)

    def read(
        self, content: Path | bytes | Pixels, size: int, channels: int, crop: float = 1.0
    ) -> Pixels:
        """`read_picture`; a heavy one waits until no other heavy one is being read."""
        if isinstance(content, Path | bytes) and self._is_heavy(content):
            with self._heavy:
                return read_picture(content, size, channels, crop)
        return read_picture(content, size, channels, crop)

    def _is_heavy(self, content: Path | bytes) -> bool:
        """By its header; most decoders hold the whole picture, several times over, JPEG's less."""
        try:
            with open_header(content) as (image, _):
                most = self._limits.light_jpeg if image.format == "JPEG" else self._limits.light
                return image.width * image.height > most
        except Exception:  # damaged headers raise nearly anything; `read_picture` says it in words
            return True
