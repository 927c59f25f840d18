"""The photos that are worth a label, on one sheet to look through."""

import io

from PIL import Image

from fewgraft.app.features.embedding import Photo
from fewgraft.app.learning.learn import Outcome
from fewgraft.app.report.thumbnails import SIZE, thumbnail
from fewgraft.data.contact_sheet import Strip, draw_strips
from fewgraft.html import counted

COLUMNS = 8
MISSING = "#e4e4e4"


def review_sheet(outcome: Outcome) -> bytes | None:
    """A PNG of the photos, numbered as in the list; None if there is nothing to review."""
    unlabelled, classes = outcome.unlabelled, outcome.model.card.classes
    if not unlabelled.review:
        return None
    label = f"{counted(len(unlabelled.review), 'photo')}, best first:\nproposed class and margin"
    pictures = [_cell(unlabelled.photos[row]) for row in unlabelled.review]
    captions = [
        f"{place}. {classes[unlabelled.answer[row]]}?\nmargin {unlabelled.margin[row]:.2f}"
        for place, row in enumerate(unlabelled.review, start=1)
    ]
    strip = Strip(label, pictures, captions)
    packed = io.BytesIO()
    draw_strips([strip], min(COLUMNS, len(pictures)), cell=SIZE).save(packed, format="PNG")
    return packed.getvalue()


def _cell(photo: Photo) -> Image.Image:
    """The photo, or an empty place where it cannot be read by now."""
    return thumbnail(photo) or Image.new("RGB", (SIZE, SIZE), MISSING)
