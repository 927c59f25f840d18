"""The photos that are worth a label, on one sheet to look through."""

import io

from PIL import Image

from fewgraft.app.embedding import Photo
from fewgraft.app.teaching import Outcome
from fewgraft.app.thumbnails import SIZE, thumbnail
from fewgraft.data.contact_sheet import Strip, draw_strips
from fewgraft.html import counted

COLUMNS = 8
MISSING = "#e4e4e4"


def review_sheet(outcome: Outcome) -> bytes | None:
    """A PNG of the photos, numbered as in the list; None if there is nothing to review."""
    pile, classes = outcome.pile, outcome.model.card.classes
    if not pile.review:
        return None
    label = f"{counted(len(pile.review), 'photo')}, best first:\nproposed class and margin"
    pictures = [_cell(pile.photos[row]) for row in pile.review]
    captions = [
        f"{place}. {classes[pile.answer[row]]}?\nmargin {pile.margin[row]:.2f}"
        for place, row in enumerate(pile.review, start=1)
    ]
    strip = Strip(label, pictures, captions)
    packed = io.BytesIO()
    draw_strips([strip], min(COLUMNS, len(pictures)), cell=SIZE).save(packed, format="PNG")
    return packed.getvalue()


def _cell(photo: Photo) -> Image.Image:
    """The photo, or an empty place where it cannot be read by now."""
    return thumbnail(photo) or Image.new("RGB", (SIZE, SIZE), MISSING)
