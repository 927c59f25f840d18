"""Augmentation of whole batches of pictures, without a loop over them."""

import math

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, max_pool2d


class Augmentation(BaseModel):
    """What may be done to a training picture; all of it off by default."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    crop: int = Field(default=0, ge=0, le=512)
    """Shift by up to so many pixels, the border mirrored."""
    mirror: bool = False
    """Swap left and right; not for arrows."""
    rotate: float = Field(default=0.0, ge=0, le=360)
    """Degrees either way."""
    scale: float = Field(default=0.0, ge=0, lt=1)
    """Share either way."""
    shift: float = Field(default=0.0, ge=0, lt=1)
    """Share of the size either way."""
    thicken: float = Field(default=0.0, ge=0, le=1)
    """Share of pictures whose strokes grow."""
    light: float = Field(default=0.0, ge=0, lt=1)
    """Brightness and contrast, share either way."""
    colour: float = Field(default=0.0, ge=0, lt=1)
    """Saturation, share either way."""


def stronger(config: Augmentation) -> Augmentation:
    """More of what is harmless for any picture; still no mirror where there was none."""
    return config.model_copy(
        update={
            "rotate": config.rotate + 10,
            "scale": min(0.5, config.scale + 0.15),
            "shift": min(0.3, config.shift + 0.1),
            "light": min(0.6, config.light + 0.3),
            "colour": min(0.8, config.colour + 0.4),
        }
    )


def augment(pixels: Tensor, config: Augmentation, rng: Generator) -> Tensor:
    """uint8 [n, h, w, c] → uint8 [n, h, w, c]; every picture is changed in its own way."""
    if config.crop or config.mirror:
        pixels = _crop_and_mirror(pixels, config, rng)
    if (
        config.rotate
        or config.scale
        or config.shift
        or config.thicken
        or config.light
        or config.colour
    ):
        pictures = pixels.permute(0, 3, 1, 2).float()
        pictures = _affine(pictures, config, rng)
        pictures = _thicken(pictures, config, rng)
        pictures = _light(pictures, config, rng)
        pictures = _colour(pictures, config, rng)
        pixels = pictures.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return pixels


def _uniform(count: int, reach: float, rng: Generator) -> Tensor:
    """[count] numbers from −reach to reach."""
    return (torch.rand(count, generator=rng) * 2 - 1) * reach


def _crop_and_mirror(pixels: Tensor, config: Augmentation, rng: Generator) -> Tensor:
    """Both are a choice of rows and columns: one gather does them."""
    n, h, w, _ = pixels.shape
    offsets = torch.randint(-config.crop, config.crop + 1, (2, n, 1), generator=rng)
    rows = reflected(torch.arange(h) + offsets[0], h)
    columns = reflected(torch.arange(w) + offsets[1], w)
    if config.mirror:
        turned = torch.rand(n, 1, generator=rng) < 0.5
        columns = torch.where(turned, columns.flip(1), columns)
    return pixels[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]


def reflected(places: Tensor, size: int) -> Tensor:
    """Places beyond the border, mirrored back: −2 → 2, size → size − 2."""
    period = max(1, 2 * (size - 1))
    places = places % period
    return torch.where(places >= size, period - places, places)


def _affine(pictures: Tensor, config: Augmentation, rng: Generator) -> Tensor:
    if not (config.rotate or config.scale or config.shift):
        return pictures
    n = len(pictures)
    angle = _uniform(n, math.radians(config.rotate), rng)
    zoom = 1 + _uniform(n, config.scale, rng)
    cosine, sine = angle.cos() / zoom, angle.sin() / zoom
    # The grid runs from −1 to 1, so that a share s of the size is 2 s.
    right, down = _uniform(n, 2 * config.shift, rng), _uniform(n, 2 * config.shift, rng)
    rows = torch.stack([cosine, -sine, right, sine, cosine, down], dim=1).view(n, 2, 3)
    grid = affine_grid(rows, list(pictures.shape), align_corners=False)
    return grid_sample(pictures, grid, align_corners=False)


def _thicken(pictures: Tensor, config: Augmentation, rng: Generator) -> Tensor:
    if not config.thicken:
        return pictures
    chosen = torch.rand(len(pictures), 1, 1, 1, generator=rng) < config.thicken
    return torch.where(chosen, max_pool2d(pictures, 3, stride=1, padding=1), pictures)


def _light(pictures: Tensor, config: Augmentation, rng: Generator) -> Tensor:
    if not config.light:
        return pictures
    n = len(pictures)
    brightness = 255 * _uniform(n, config.light, rng).view(n, 1, 1, 1)
    contrast = 1 + _uniform(n, config.light, rng).view(n, 1, 1, 1)
    grey = pictures.mean((1, 2, 3), keepdim=True)
    return (pictures - grey) * contrast + grey + brightness


def _colour(pictures: Tensor, config: Augmentation, rng: Generator) -> Tensor:
    if not config.colour:
        return pictures
    saturation = 1 + _uniform(len(pictures), config.colour, rng).view(-1, 1, 1, 1)
    grey = pictures.mean(1, keepdim=True)
    return (pictures - grey) * saturation + grey
