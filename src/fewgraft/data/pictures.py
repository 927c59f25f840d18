"""From a picture file of any kind to a small array of bytes.

Real folders hold grey, palette, transparent, CMYK, 16-bit and rotated pictures, and broken ones.
Whatever goes wrong is a `PictureError` with a reason a person understands.
"""

import contextlib
import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

Pixels = NDArray[np.uint8]

# Pillow would hand EPS to Ghostscript and open a dozen formats nobody photographs in: name the safe
# ones, less those that this build of Pillow was made without.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
MAX_PIXELS = 80_000_000  # larger than any camera's; decoded, that is already 240 MB


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
    with _reasons(content):
        return _fit(_upright(content, _side(size, crop)), size, channels, crop)


def check_picture(path: Path) -> None:
    """Refuse by its header alone, at little cost, what is no picture or far too large a one."""
    with _reasons(path), _opened(path):
        pass


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
    except OSError as error:
        raise PictureError(_first_line(error) or "cannot be read") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise PictureError(f"damaged ({type(error).__name__}: {_first_line(error)})") from None


def from_array(pixels: Pixels, size: int, channels: int, crop: float = 1.0) -> Pixels:
    """Pixels that are decoded already, brought to uint8 [size, size, channels]."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise PictureError(f"not a picture: {pixels.dtype} of shape {pixels.shape}")
    if pixels.shape == (size, size, channels) and crop == 1:
        return pixels
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return _fit(Image.fromarray(pixels), size, channels, crop)


def _upright(content: Path | bytes, size: int) -> Image.Image:
    """Open, decode and turn upright."""
    with _opened(content) as image:
        if image.format == "JPEG":  # decode large photographs at a half, quarter or eighth
            image.draft(None, (2 * size, 2 * size))
        image.load()
        return ImageOps.exif_transpose(image)


@contextlib.contextmanager
def _opened(content: Path | bytes) -> Iterator[Image.Image]:
    """A picture whose pixels are not decoded yet; one that is too large is refused before."""
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    with Image.open(stream, formats=_known_formats()) as image:
        if image.width * image.height > MAX_PIXELS:
            raise PictureError(f"{image.width}×{image.height}: more than {MAX_PIXELS:,} pixels")
        yield image


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
    """Resize the shorter side to size / crop and cut the middle square out."""
    mode = "L" if channels == 1 else "RGB"
    image = _plain(image).convert(mode)
    side = _side(size, crop)
    if image.size != (side, side):
        image = ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)
    if side != size:
        left = (side - size) // 2
        image = image.crop((left, left, left + size, left + size))
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels)


def _plain(image: Image.Image) -> Image.Image:
    """8 bits a channel and no transparency: what `convert` alone would get wrong."""
    if image.mode.startswith("I"):
        return _from_wide_integers(np.asarray(image).astype(np.int64), image.mode)
    if image.mode == "F":
        return _from_floats(np.asarray(image, dtype=np.float64))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image


def _from_wide_integers(values: NDArray[np.int64], mode: str) -> Image.Image:
    """16-bit values keep their high byte; `convert` would clip everything above 255 to white.

    Mode "I" is 32 bits wide and does not say how many of them are in use.
    """
    if mode.startswith("I;16") or values.max(initial=0) > 255:
        values = values >> 8
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def _from_floats(values: NDArray[np.float64]) -> Image.Image:
    """Floating-point pictures run from 0 to 1 or from 0 to 255."""
    values = np.nan_to_num(values)
    if values.max(initial=0) <= 1:
        values = values * 255
    return Image.fromarray(np.clip(values.round(), 0, 255).astype(np.uint8))


def _why_unidentified(content: Path | bytes) -> str:
    empty = not content if isinstance(content, bytes) else content.stat().st_size == 0
    return "empty file" if empty else "not a picture of a known format"


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().split("\n")[0]
