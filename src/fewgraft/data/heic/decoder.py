"""The process that decodes one HEIC photo: the photo on stdin, a small PNG on stdout.

It starts for each photo, so it imports no more than it needs.
"""

import sys

import pillow_heif
from PIL import Image

from fewgraft.data.memory_limit import at_most_more

MAX_PIXELS = 80_000_000
STRIP = 250_000  # pixels that are brought down at a time
STRAIGHT = {"RGBa": "RGBA", "La": "LA"}  # colours that were multiplied by their opacity


class TooLargeError(Exception):
    """The photo has more pixels than are decoded of any."""


def main() -> None:
    """With the words SIDE and MOST_MEMORY."""
    side, most = map(int, sys.argv[1:])
    try:
        with at_most_more(most):
            small(sys.stdin.buffer.read(), side).save(sys.stdout.buffer, "PNG", compress_level=0)
    except TooLargeError as error:
        sys.exit(str(error))
    except Exception as error:  # decoders of damaged files raise nearly anything
        if isinstance(error, MemoryError) or _speaks_of_memory(str(error)):
            sys.exit(f"decoding it takes more than {most // 1_000_000} MB of memory")
        # libheif does not always tell the one from the other.
        sys.exit(f"damaged, or too large to be decoded ({error})".splitlines()[0])


def _speaks_of_memory(said: str) -> bool:
    """libheif's words; its own limits are for files that state one size and have another."""
    return "memory" in said.lower() and "Security limit" not in said


def small(content: bytes, side: int) -> Image.Image:
    """The middle square, reduced by a whole number to no less than twice `side`.

    The decoder turns the picture as the file asks (irot, imir). EXIF says the same once more and is
    passed over, as HEIF has it.
    """
    for name in ("THUMBNAILS", "DEPTH_IMAGES", "AUX_IMAGES"):
        setattr(pillow_heif.options, name, False)
    pillow_heif.options.DECODE_THREADS = 1  # other photos are decoded beside this one
    image = pillow_heif.HeifFile(content, remove_stride=False)
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise TooLargeError(f"{width}×{height}: more than {MAX_PIXELS:,} pixels")
    pixels, stride, mode = image.data, image.stride, image.mode
    width, height = image.size  # which the file may have stated wrongly
    square = min(width, height)
    factor = max(1, square // (2 * side))
    square -= square % factor
    left, top = (width - square) // 2, (height - square) // 2
    reduced = Image.new(mode, (square // factor, square // factor))
    rows = max(1, STRIP // (square * factor)) * factor
    for row in range(0, square, rows):
        count = min(rows, square - row)
        part = pixels[(top + row) * stride : (top + row + count) * stride]
        strip = Image.frombuffer(mode, (width, count), part, "raw", mode, stride, 1)
        middle = strip.crop((left, 0, left + square, count))
        reduced.paste(middle.reduce(factor), (0, row // factor))
    return reduced.convert(STRAIGHT.get(mode, mode))


if __name__ == "__main__":
    main()
