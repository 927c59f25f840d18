"""Pictures in labelled rows, to look at with one's own eyes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import KeyStream

CELL = 48
GAP = 4
LABEL_WIDTH = 190
PAPER, INK, FRAME = "white", "black", "#d0d0d0"


@dataclass(frozen=True)
class Row:
    """A line of a sheet: a label and the pictures behind it."""

    label: str
    pictures: Sequence[int] | NDArray[np.int64]


def class_rows(
    store: ImageStore, parts: Sequence[Part], most_classes: int, most_pictures: int, seed: int
) -> list[Row]:
    """A row a class, with a seeded choice of classes (evenly over the parts) and pictures."""
    rows = []
    present = [part for part in parts if store.by_class(part)]
    for position, part in enumerate(present):
        share = len(range(position, most_classes, len(present)))
        groups = list(store.by_class(part).items())
        stream = KeyStream(seed, part.code)
        for chosen in sorted(stream.choose(len(groups), min(share, len(groups))).tolist()):
            label, pictures = groups[chosen]
            some = stream.choose(len(pictures), min(most_pictures, len(pictures)))
            rows.append(Row(f"{store.classes[label]}\n{part}", pictures[some]))
    return rows


def draw_sheet(store: ImageStore, rows: Sequence[Row], columns: int | None = None) -> Image.Image:
    """Draw the rows; a row longer than `columns` goes on in the next line."""
    columns = columns or max(len(row.pictures) for row in rows)
    lines = [max(1, -(-len(row.pictures) // columns)) for row in rows]
    pitch = CELL + GAP
    mode = "L" if store.manifest.channels == 1 else "RGB"
    sheet = Image.new(mode, (LABEL_WIDTH + columns * pitch + GAP, sum(lines) * pitch + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=13)
    top = GAP
    for row, height in zip(rows, lines, strict=True):
        draw.multiline_text((GAP, top + 4), row.label, fill=INK, font=font)
        for position, picture in enumerate(row.pictures):
            corner = (LABEL_WIDTH + position % columns * pitch, top + position // columns * pitch)
            sheet.paste(_thumbnail(store, int(picture)), corner)
        top += height * pitch
        draw.line((0, top - GAP // 2, sheet.width, top - GAP // 2), fill=FRAME)
    return sheet


def _thumbnail(store: ImageStore, picture: int) -> Image.Image:
    pixels = store.pictures[picture]
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return image.resize((CELL, CELL), Image.Resampling.BICUBIC)
