"""Photos to look at: small, and by names that a reader can tell apart."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fewgraft.app.features.embedding import Photo
from fewgraft.app.features.labelled import photo_name
from fewgraft.data.pictures import PictureError, read_picture
from fewgraft.files import readable

SIZE = 96


def thumbnail(photo: Photo) -> Image.Image | None:
    """The photo's middle as a small square in colours; None if it cannot be read by now."""
    try:
        pixels = np.asarray(photo.convert("RGB")) if isinstance(photo, Image.Image) else photo
        return Image.fromarray(read_picture(pixels, SIZE, 3))
    except (PictureError, OSError, ValueError):  # ValueError: an image that was closed
        return None


@dataclass(frozen=True)
class Names:
    """What to call photos: by their paths below the one folder that holds them all."""

    root: Path | None  # None: there is no such folder

    @classmethod
    def of(cls, photos: Iterable[Photo]) -> "Names":
        """Names for these photos."""
        folders = {photo.parent for photo in photos if isinstance(photo, Path)}
        try:
            root = Path(os.path.commonpath(folders))
        except ValueError:  # no folder at all, or some paths begin at the root and others do not
            return cls(None)
        return cls(None if root == Path(root.anchor or ".") else root)

    def __call__(self, photo: Photo, number: int | None = None) -> str:
        """As text that can be printed; photos that are no files are counted, if they can be."""
        if not isinstance(photo, Path):
            return "" if number is None else photo_name(photo, number)
        if self.root and photo.is_relative_to(self.root):
            photo = photo.relative_to(self.root)
        return readable(photo)
