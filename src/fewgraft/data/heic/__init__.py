"""HEIC photos, as telephones take them: decoded in a process of their own.

The size that such a file states binds nobody: the streams inside it have sizes of their own, and
the decoder takes memory for those. So it runs where the system holds it to a limit. It may also
crash or hang there without harm to others.
"""

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MOST_MEMORY = 250_000_000  # bytes that decoding may take
MOST_SECONDS = 60
BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
AVIF = {b"avif", b"avis"}
LONGEST_START = 1024  # bytes of the box that names the kind of file


class HeicError(Exception):
    """This photo cannot be decoded; the message says why."""


def is_heic(content: Path | bytes) -> bool:
    """By its first bytes; AVIF, which shares the container, is not."""
    if isinstance(content, bytes):
        start = content[:LONGEST_START]
    else:
        with content.open("rb") as file:
            start = file.read(LONGEST_START)
    end = int.from_bytes(start[:4])
    brands = {start[8:12], *(start[place : place + 4] for place in range(16, min(end, 1021), 4))}
    return start[4:8] == b"ftyp" and start[8:12] in BRANDS and not brands & AVIF


def check_heic() -> None:
    """Refuse where the decoder is not installed."""
    if importlib.util.find_spec("pillow_heif") is None:
        raise HeicError("a HEIC photo needs pillow-heif: pip install 'fewgraft[photos]'")


def decoded(content: Path | bytes, side: int) -> bytes:
    """The middle square as a PNG, upright, at no less than twice `side` where it has the pixels."""
    check_heic()
    words = [sys.executable, "-P", "-m", "fewgraft.data.heic.decoder", f"{side}", f"{MOST_MEMORY}"]
    with _stream(content) as (stream, given):
        try:
            done = subprocess.run(
                words,
                stdin=stream,
                input=given,
                capture_output=True,
                timeout=MOST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HeicError(f"decoding it takes longer than {MOST_SECONDS} seconds") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    raise HeicError(said[-1] if done.returncode == 1 and said else "damaged: its decoder broke off")


@contextlib.contextmanager
def _stream(content: Path | bytes) -> Iterator[tuple[IO[bytes] | None, bytes | None]]:
    """A file for the decoder to read itself, or bytes to hand to it."""
    if isinstance(content, bytes):
        yield None, content
    else:
        with content.open("rb") as file:
            yield file, None
