"""How much memory it takes to decode a picture, told from its header before a pixel is decoded.

A file of a few kilobytes can hold gigabytes of pixels. What counts is bytes, not pixels: what
Pillow stores per pixel, and what the decoder of the format holds beside it until it is done.
"""

from PIL import Image

STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2, "LA": 4, "PA": 4}
WIDEST = 4  # bytes per pixel of every other mode: RGB is stored as four bytes, too
POINTERS = 16  # bytes per row: where it is
# Bytes per pixel that decoders hold beside the picture: canvas, frame before, and a copy of both.
BESIDE = {"WEBP": 12, "AVIF": 12, "PPM": 4}
PER_SAMPLE = 6  # bytes that JPEG 2000 holds beside it, for each channel
# Tags of TIFF.
TILE_WIDTH, TILE_LENGTH, ROWS_PER_STRIP, BITS, SAMPLES, COMPRESSION = 322, 323, 278, 258, 277, 259


def decoded_bytes(image: Image.Image) -> int:
    """Memory at the peak of decoding a picture that was opened, and perhaps drafted, only."""
    pixels = image.width * image.height
    row = -(-image.width * STORED.get(image.mode, WIDEST) // 4) * 4  # bytes, in whole words
    stored = image.height * (row + POINTERS)
    if image.format == "TIFF":
        return stored + _largest_tile(image)
    if image.format == "JPEG2000":
        return stored + PER_SAMPLE * len(image.getbands()) * pixels
    return stored + BESIDE.get(image.format or "", 0) * pixels


def coefficient_bytes(image: Image.Image, scans_apart: bool) -> int:
    """What a JPEG of several scans needs at full size, however small it is decoded."""
    if "progressive" not in image.info and not scans_apart:
        return 0
    return 2 * len(image.getbands()) * image.width * image.height


def _largest_tile(image: Image.Image) -> int:
    """Bytes of the one tile or strip that is unpacked at a time; it may be larger than all."""
    tags = getattr(image, "tag_v2", {})
    if tags.get(COMPRESSION, 1) == 1:
        return 0
    width = _number(tags.get(TILE_WIDTH), image.width)
    rows = min(_number(tags.get(ROWS_PER_STRIP), image.height), image.height)
    length = _number(tags.get(TILE_LENGTH), rows)
    bits = tags.get(BITS, 8)
    widest = max(bits) if isinstance(bits, tuple) and bits else _number(bits, 8)
    return width * length * _number(tags.get(SAMPLES), 1) * (widest + 7) // 8


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise
