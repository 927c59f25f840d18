"""What several commands do with what they made."""

import io
from pathlib import Path

import typer
from PIL import Image

from fewgraft.errors import writing
from fewgraft.files import write_atomically


def save_picture(image: Image.Image, path: Path) -> None:
    """Write a PNG and say where it is."""
    packed = io.BytesIO()
    image.save(packed, format="PNG", optimize=True)
    with writing(path):
        write_atomically(path, packed.getvalue())
    typer.echo(f"wrote {path}")
