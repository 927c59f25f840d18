"""Thumbnails of the pictures of the pile that helped a class."""

import base64
import csv
import io
from collections import defaultdict
from pathlib import Path

from PIL import Image
from pydantic import BaseModel

from fewgraft.app.server.decoding import Decoders
from fewgraft.data.pictures import PictureError, read_picture

SIDE = 96  # pixels
EACH = 24  # of one class
MOST = 120


class Helper(BaseModel):
    """A picture of the pile that helped."""

    photo: str
    helped: str  # the class
    weight: float  # as a share of one example
    picture: str  # a data: address


def helpers(folder: Path, decoders: Decoders) -> list[Helper]:
    """Those of a finished lesson, class by class, the weightiest first."""
    by_class: dict[str, list[dict[str, str]]] = defaultdict(list)
    with (folder / "learnt" / "pile.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["helped"]:
                by_class[row["helped"]].append(row)
    each = min(EACH, max(1, MOST // max(1, len(by_class))))
    shown = []
    for rows in by_class.values():
        rows.sort(key=lambda row: -float(row["weight"]))
        shown += [_helper(row, folder, decoders) for row in rows[:each]]
    return shown[:MOST]


def _helper(row: dict[str, str], folder: Path, decoders: Decoders) -> Helper:
    return Helper(
        photo=Path(row["photo"]).name.partition("-")[2],
        helped=row["helped"],
        weight=float(row["weight"]),
        picture=decoders.heavy.submit(_thumbnail, folder / row["photo"]).result(),
    )


def _thumbnail(path: Path) -> str:
    try:
        pixels = read_picture(path, SIDE, 3)
    except PictureError:
        return ""
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, format="JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(packed.getvalue()).decode()}"
