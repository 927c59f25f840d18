"""The bytes of a picture file, counted as Pillow reads them.

A file can hold millions of tiny segments, or comments of gigabytes. Pillow keeps each of them as an
object, and decodes some formats with one read per pixel. So both reads and bytes have a limit.
"""

import io
import math
import struct
from pathlib import Path

MOST_READS = 300_000
MOST_READS_OF_PIXELS = 20_000_000  # where Python decodes, a pixel or a run at a time
MOST_OF_HEADER = 32_000_000  # bytes before the pixels
MOST_EXIF = 1_000_000  # bytes
MOST_VALUES = 500_000  # numbers in the first directory of a TIFF; each becomes an object
AS_BYTES = (1, 2, 7)  # kinds of TIFF's values that stay bytes or text


class TooMuchError(Exception):
    """The file makes its reader read far more than a picture explains."""


class PictureStream(io.BufferedReader):
    """A picture file. `header` is how many bytes were read until `pixels_follow` was called."""

    def __init__(self, content: Path | bytes) -> None:
        super().__init__(io.BytesIO(content) if isinstance(content, bytes) else content.open("rb"))
        self._reads = MOST_READS
        self._bytes: float = MOST_OF_HEADER
        self._exif = 0  # a JPEG may hold many pieces of it

    @property
    def header(self) -> int:
        """Bytes that were read so far."""
        return MOST_OF_HEADER - int(self._bytes)

    def pixels_follow(self, python_decodes: bool) -> None:
        """The header was read; from now on only the number of reads is limited."""
        self._bytes = math.inf
        self._reads += MOST_READS_OF_PIXELS if python_decodes else 0

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, as long as there were not too many before."""
        self._reads -= 1
        if self._reads < 0:
            raise TooMuchError("it consists of too many tiny parts")
        if self._bytes < math.inf:
            most = int(self._bytes) + 1
            size = most if size is None or size < 0 else min(size, most)
        found = super().read(size)
        self._bytes -= len(found)
        self._exif += len(found) if found.startswith(b"Exif\0\0") else 0
        if self._bytes < 0 or self._exif > MOST_EXIF:
            raise TooMuchError("its header is too large")
        return found


def check_tiff(stream: PictureStream) -> None:
    """Refuse a TIFF whose first directory lists more numbers than any picture has strips."""
    start = stream.read(16)
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None or len(start) < 16 or start[2:4].strip(b"\0") not in (b"*", b"+"):
        return
    big = b"+" in start[2:4]
    stream.seek(*struct.unpack_from(f"{order}{'Q' if big else 'L'}", start, 8 if big else 4))
    head, entry = (
        struct.Struct(order + code) for code in (("Q", "HHQ8x") if big else ("H", "HHL4x"))
    )
    (entries,) = head.unpack(stream.read(head.size))
    directory = stream.read(min(entries, 1 << 16) * entry.size)
    whole = len(directory) - len(directory) % entry.size
    found = entry.iter_unpack(directory[:whole])
    if sum(count for _, kind, count in found if kind not in AS_BYTES) > MOST_VALUES:
        raise TooMuchError("its header is too large")


def scans_apart(stream: PictureStream) -> bool:
    """Whether a JPEG holds its channels one after the other, so that all must be kept at once."""
    stream.seek(2)
    channels = 0
    while byte := stream.read(1):
        if byte != b"\xff":
            continue
        while (marker := stream.read(1)) == b"\xff":
            pass
        code = marker[0] if marker else 0
        if code in (0x00, 0x01, *range(0xD0, 0xD8)):
            continue
        segment = stream.read(max(0, int.from_bytes(stream.read(2)) - 2))
        if 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC) and len(segment) > 5:
            channels = segment[5]
        if code == 0xDA:
            return bool(segment) and segment[0] < channels
    return False
