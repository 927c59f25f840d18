"""The decoding of pictures, for the whole server: a few at a time, and of heavy ones only one."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fewgraft.app.server.refusals import Limits
from fewgraft.data.heic import is_heic
from fewgraft.data.pictures import open_header


class Decoders:
    """What decoding takes of the memory is bounded here, however many ask for it.

    Heavy pictures have a lane of their own, so that the others do not wait for them.
    """

    def __init__(self, limits: Limits) -> None:
        self.light = ThreadPoolExecutor(limits.decodes, "decode")
        self.heavy = ThreadPoolExecutor(1, "decode-heavy")
        self._limits = limits

    def close(self) -> None:
        """Finish what is being decoded, and no more."""
        for pool in (self.light, self.heavy):
            pool.shutdown(cancel_futures=True)

    def any_heavy(self, photos: Iterable[Path]) -> bool:
        """Whether there is a photo that only the heavy lane may decode."""
        return any(map(self._is_heavy, photos))

    def _is_heavy(self, photo: Path) -> bool:
        """By its header; most decoders hold the whole picture, several times over, JPEG's less.

        What a HEIC photo says of its size is no promise.
        """
        try:
            if is_heic(photo):
                return True
            with open_header(photo) as (image, _):
                most = self._limits.light_jpeg if image.format == "JPEG" else self._limits.light
                return image.width * image.height > most
        except Exception:  # damaged headers raise nearly anything; `read_picture` says it in words
            return True
