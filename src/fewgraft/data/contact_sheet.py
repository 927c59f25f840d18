"""Pictures in labelled rows, to look at with one's own eyes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import KeyStream

CELL = 48
GAP = 4
LABEL_WIDTH = 190
CAPTION = 36  # pixels for two lines under a picture
PAPER, INK, FRAME = "white", "black", "#d0d0d0"

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class SheetRow:
    """A line of a sheet: a label and the pictures behind it."""

    label: str
    pictures: Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class Strip:
    """The same with pictures that are there already, and perhaps two lines under each."""

    label: str
    pictures: Sequence[Image.Image]
    captions: Sequence[str] = ()


def class_rows(
    store: ImageStore, parts: Sequence[Part], most_classes: int, most_pictures: int, seed: int
) -> list[SheetRow]:
    """One row per class, with a seeded choice of classes (evenly over the parts) and pictures."""
    rows = []
    present = [part for part in parts if store.by_class(part)]
    for position, part in enumerate(present):
        share = len(range(position, most_classes, len(present)))
        groups = list(store.by_class(part).items())
        stream = KeyStream(seed, part.code)
        for chosen in sorted(stream.choose(len(groups), min(share, len(groups))).tolist()):
            label, pictures = groups[chosen]
            some = stream.choose(len(pictures), min(most_pictures, len(pictures)))
            rows.append(SheetRow(f"{store.name_of(label)}\n{part}", pictures[some]))
    return rows


def draw_sheet(
    store: ImageStore, rows: Sequence[SheetRow], columns: int | None = None
) -> Image.Image:
    """Draw the rows; a row longer than `columns` goes on in the next line."""
    strips = [Strip(row.label, [_thumbnail(store, int(p)) for p in row.pictures]) for row in rows]
    return draw_strips(strips, columns, "L" if store.manifest.channels == 1 else "RGB", CELL)


def draw_strips(
    strips: Sequence[Strip], columns: int | None = None, mode: str = "RGB", cell: int = CELL
) -> Image.Image:
    """Draw pictures that are squares of `cell` pixels already."""
    columns = columns or max(len(strip.pictures) for strip in strips)
    lines = [max(1, -(-len(strip.pictures) // columns)) for strip in strips]
    pitch = cell + GAP
    height = pitch + (CAPTION if any(strip.captions for strip in strips) else 0)
    sheet = Image.new(mode, (LABEL_WIDTH + columns * pitch + GAP, sum(lines) * height + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=13)
    top = GAP
    for strip, long in zip(strips, lines, strict=True):
        label = _shortened(strip.label, font, LABEL_WIDTH - 2 * GAP)
        draw.multiline_text((GAP, top + 4), label, fill=INK, font=font)
        for position, (picture, caption) in enumerate(zip_longest(strip.pictures, strip.captions)):
            left = LABEL_WIDTH + position % columns * pitch
            upper = top + position // columns * height
            sheet.paste(picture, (left, upper))
            if caption:
                under = _shortened(caption, font, cell)
                draw.multiline_text((left, upper + cell), under, fill=INK, font=font, spacing=2)
        top += long * height
        draw.line((0, top - GAP // 2, sheet.width, top - GAP // 2), fill=FRAME)
    return sheet


def _shortened(text: str, font: Font, width: int) -> str:
    """Lines that are cut off where they would be wider; names may be no valid text."""
    lines = text.encode("utf-8", "backslashreplace").decode().split("\n")
    return "\n".join(_shortened_line(line, font, width) for line in lines)


def _shortened_line(line: str, font: Font, width: int) -> str:
    if font.getlength(line) <= width:
        return line
    while line and font.getlength(f"{line}…") > width:
        line = line[:-1]
    return f"{line}…"


def _thumbnail(store: ImageStore, picture: int) -> Image.Image:
    pixels = store.pictures[picture]
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return image.resize((CELL, CELL), Image.Resampling.BICUBIC)
