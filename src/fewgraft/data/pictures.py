"""From a picture file of any kind to a small array of bytes.

Real folders hold grey, palette, transparent, CMYK, 16-bit and rotated pictures, and broken ones.
Whatever goes wrong is a `PictureError` with a reason a person understands.

A picture is refused before it is decoded if that would take more than `MAX_BYTES`. A large one is
brought near its final size strip by strip, so that conversions never see the whole of it.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from fewgraft.data.heic import HeicError, check_heic, decoded, is_heic
from fewgraft.data.picture_memory import coefficient_bytes, decoded_bytes
from fewgraft.data.picture_stream import (
    MOST_EXIF,
    PictureStream,
    TooMuchError,
    check_tiff,
    scans_apart,
)

Pixels = NDArray[np.uint8]

# Pillow would hand EPS to Ghostscript and open a dozen formats nobody photographs in: name the safe
# ones, less those that this build of Pillow was made without. AVIF is not among them: such a file
# can state a smaller size than its pixels have, and its decoder takes memory for the latter. So can
# HEIC, which is decoded elsewhere.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")
MAX_PIXELS = 80_000_000
MAX_BYTES = 260_000_000  # of memory for one picture, its file included
LARGE = 8_000_000  # pixels; what is larger is brought down strip by strip
STRIP = 250_000  # pixels that are converted at a time
PYTHON_DECODES = ("bmp_rle", "ppm", "ppm_plain")  # slowly; so those must not be large
ORIENTATION = 0x0112  # tag of EXIF
TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class PictureError(Exception):
    """This one picture cannot be used; the message says why."""


def read_picture(
    content: Path | bytes | Pixels, size: int, channels: int, crop: float = 1.0
) -> Pixels:
    """The picture as uint8 [size, size, channels]: upright, on white, square by a centre crop.

    `crop` is the share of the shorter side that stays: networks with weights of their own were
    often tested on less than the whole.
    """
    if isinstance(content, np.ndarray):
        return from_array(content, size, channels, crop)
    with _reasons(content), _opened(_common(content, size, crop), _side(size, crop)) as image:
        image.load()
        if image.width * image.height > LARGE:
            plain = _brought_down(image, _side(size, crop), channels)
        else:
            plain = _plain(image)
        return _fit(_upright(plain, image), size, channels, crop)


def check_picture(path: Path) -> None:
    """Refuse by its header alone, at little cost, what is no picture or far too large a one."""
    with _reasons(path):
        if is_heic(path):
            return check_heic()
        with _opened(path, 1):
            pass


def _common(content: Path | bytes, size: int, crop: float) -> Path | bytes:
    """The picture in a format that Pillow reads: HEIC has a decoder of its own."""
    return decoded(content, _side(size, crop)) if is_heic(content) else content


@contextlib.contextmanager
def _reasons(content: Path | bytes) -> Iterator[None]:
    """Whatever goes wrong inside, as a `PictureError`."""
    try:
        yield
    except PictureError:
        raise
    except UnidentifiedImageError:
        raise PictureError(_why_unidentified(content)) from None
    except Image.DecompressionBombError:
        raise PictureError(f"more than {MAX_PIXELS:,} pixels") from None
    except (TooMuchError, HeicError) as error:
        raise PictureError(str(error)) from None
    except MemoryError:
        raise PictureError("it needs more memory than there is") from None
    except OSError as error:
        raise PictureError(_first_line(error) or "cannot be read") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise PictureError(f"damaged ({type(error).__name__}: {_first_line(error)})") from None


def from_array(pixels: Pixels, size: int, channels: int, crop: float = 1.0) -> Pixels:
    """Pixels that are decoded already, brought to uint8 [size, size, channels]."""
    deep = pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or deep or not pixels.size:
        raise PictureError(f"not a picture: {pixels.dtype} of shape {pixels.shape}")
    if pixels.shape == (size, size, channels) and crop == 1:
        return pixels
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return _fit(_plain(Image.fromarray(pixels)), size, channels, crop)


@contextlib.contextmanager
def open_header(content: Path | bytes) -> Iterator[tuple[ImageFile, PictureStream]]:
    """A picture of which only the header was read, and the stream that it was read from."""
    with PictureStream(content) as stream:
        check_tiff(stream)
        with Image.open(stream, formats=_known_formats()) as image:
            yield image, stream


@contextlib.contextmanager
def _opened(content: Path | bytes, side: int) -> Iterator[Image.Image]:
    """A picture whose pixels are not decoded yet; one that is too large is refused before."""
    with open_header(content) as (image, stream):
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise PictureError(f"{image.width}×{image.height}: more than {MAX_PIXELS:,} pixels")
        in_python = bool(image.tile) and image.tile[0][0] in PYTHON_DECODES
        if in_python and pixels > LARGE:
            raise PictureError(f"{image.width}×{image.height}: too large for this way to pack")
        needed = 2 * stream.header + (len(content) if isinstance(content, bytes) else 0)
        if image.format in ("JPEG", "MPO"):
            needed += coefficient_bytes(image, scans_apart(stream))
            image.draft(None, (2 * side, 2 * side))  # at a half, a quarter or an eighth
        needed += decoded_bytes(image)
        if needed > MAX_BYTES:
            raise PictureError(
                f"{image.width}×{image.height} {image.mode} {image.format}: decoding it takes "
                f"{needed // 1_000_000} MB of memory, more than {MAX_BYTES // 1_000_000}"
            )
        stream.pixels_follow(in_python)
        yield image


def _brought_down(image: Image.Image, side: int, channels: int) -> Image.Image:
    """The middle square of a large picture, plain, at no less than twice `side`."""
    square = min(image.size)
    factor = max(1, square // (2 * side))
    square -= square % factor
    left, top = (image.width - square) // 2, (image.height - square) // 2
    small = Image.new("L" if channels == 1 else "RGB", (square // factor, square // factor))
    rows = max(1, STRIP // (square * factor)) * factor
    brightest = _brightest(image)
    for row in range(0, square, rows):
        bottom = min(row + rows, square)
        strip = image.crop((left, top + row, left + square, top + bottom))
        plain = _plain(strip, brightest).convert(small.mode)
        small.paste(plain.reduce(factor), (0, row // factor))
    return small


def _upright(plain: Image.Image, image: Image.Image) -> Image.Image:
    """`plain`, turned as the metadata of `image` asks; metadata that are too large are ignored."""
    if len(image.info.get("exif") or b"") > MOST_EXIF:
        return plain
    method = TO_UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    return plain if method is None else plain.transpose(method)


@cache
def _known_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _side(size: int, crop: float) -> int:
    """The shorter side before the crop."""
    if not 0 < crop <= 1:
        raise ValueError(f"crop is a share of the picture, above 0 and at most 1, not {crop}")
    return round(size / crop)


def _fit(image: Image.Image, size: int, channels: int, crop: float) -> Pixels:
    """A plain picture: resize the shorter side to size / crop and cut the middle square out."""
    mode = "L" if channels == 1 else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    side = _side(size, crop)
    if image.size != (side, side):
        image = ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)
    if side != size:
        left = (side - size) // 2
        image = image.crop((left, left, left + size, left + size))
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels)


def _plain(image: Image.Image, brightest: float | None = None) -> Image.Image:
    """8 bits a channel and no transparency: what `convert` alone would get wrong.

    `brightest` is the largest value of the whole picture where `image` is a strip of it.
    """
    if _is_wide(image):
        brightest = _brightest(image) if brightest is None else brightest
        narrow = _from_floats if image.mode == "F" else _from_integers
        return Image.fromarray(narrow(image, brightest))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image


def _is_wide(image: Image.Image) -> bool:
    """More than 8 bits a channel."""
    return image.mode == "F" or image.mode.startswith("I")


def _brightest(image: Image.Image) -> float:
    """The largest value of a wide picture, strip by strip; how it is scaled depends on it."""
    if not _is_wide(image):
        return 255.0
    rows = max(1, STRIP // image.width)
    strips = (
        image.crop((0, row, image.width, min(row + rows, image.height)))
        for row in range(0, image.height, rows)
    )
    return max((float(np.nan_to_num(np.asarray(strip)).max()) for strip in strips), default=0.0)


def _from_integers(image: Image.Image, brightest: float) -> Pixels:
    """16-bit values keep their high byte; `convert` would clip everything above 255 to white.

    Mode "I" is 32 bits wide and does not say how many of them are in use.
    """
    values = np.asarray(image).astype(np.int64)
    if image.mode.startswith("I;16") or brightest > 255:
        values = values >> 8
    return np.clip(values, 0, 255).astype(np.uint8)


def _from_floats(image: Image.Image, brightest: float) -> Pixels:
    """Floating-point pictures run from 0 to 1 or from 0 to 255."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    if brightest <= 1:
        values = values * 255
    return np.clip(values.round(), 0, 255).astype(np.uint8)


def _why_unidentified(content: Path | bytes) -> str:
    empty = not content if isinstance(content, bytes) else content.stat().st_size == 0
    return "empty file" if empty else "not a picture of a known format"


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().split("\n")[0]
