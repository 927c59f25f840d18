"""Pictures for a visitor who has none at hand: of the data that the served classifier learnt."""

import io
from functools import cache

from PIL import Image
from pydantic import BaseModel

from fewgraft.data.icons import ICONS, load_icons
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.html import data_uri

KNOWN = ("alarm", "bag", "camera", "flower", "rocket")  # to be recognised
NEW = ("robot", "sun")  # to be taught
SHOTS = 3  # photos per new class
EACH = 12  # photos per new class in the pile
OTHERS = 16  # known classes in the pile, one photo each


class ExamplePhoto(BaseModel):
    """A picture to click."""

    name: str
    picture: str  # a data: address


class ExampleClass(BaseModel):
    """A class to teach."""

    name: str
    photos: list[ExamplePhoto]


class Examples(BaseModel):
    """What a visitor may try; nothing where the server has nothing to offer."""

    photos: list[ExamplePhoto] = []  # to recognise
    classes: list[ExampleClass] = []  # a lesson
    pile: list[ExamplePhoto] = []


@cache
def examples_of(classifier: str) -> Examples:
    """For a classifier inside the package; one in a folder brings no pictures."""
    if classifier.partition("/")[0] != ICONS:
        return Examples()
    icons = load_icons()
    known = [photo for name in KNOWN for photo in _photos(icons, name, Part.BASE_TEST, 0, 1)]
    new = {name: _photos(icons, name, Part.NOVEL_TEST, 0, SHOTS + EACH + 1) for name in NEW}
    others = icons.base_classes[:OTHERS]
    return Examples(
        photos=[*known, *(own[-1] for own in new.values())],
        classes=[ExampleClass(name=name, photos=own[:SHOTS]) for name, own in new.items()],
        pile=[
            *(photo for own in new.values() for photo in own[SHOTS:-1]),
            *(photo for name in others for photo in _photos(icons, name, Part.BASE_TEST, 1, 2)),
        ],
    )


def _photos(icons: ImageStore, name: str, part: Part, start: int, end: int) -> list[ExamplePhoto]:
    own = icons.by_class(part)[icons.classes.index(name)][start:end]
    return [
        ExamplePhoto(name=f"{name} {n}.png", picture=data_uri(_png(icons, int(picture))))
        for n, picture in enumerate(own, start + 1)
    ]


def _png(icons: ImageStore, picture: int) -> bytes:
    packed = io.BytesIO()
    Image.fromarray(icons.pictures[picture][:, :, 0]).save(packed, "PNG", optimize=True)
    return packed.getvalue()
