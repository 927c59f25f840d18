"""Hostile pictures: damaged ones of every format, and small files that swell when decoded."""

import io
import json
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import numpy as np
from PIL import Image

from campaign.attack import Attack, Trial
from campaign.pickles import mutated
from fewgraft.extras import extra

BATCH = 500
MOST = 300_000_000  # bytes above the baseline for any one picture
QUICK: dict[str, Any] = {"enc_params": {"preset": "ultrafast"}}
SIZES = ((3900, 3900), (8000, 8000), (8900, 8900), (1, 15_000_000), (60_000, 1200))

# Decodes a picture and tells how far the memory rose above the baseline.
CHILD = """
import io, json, resource, sys, warnings
from pathlib import Path
from PIL import Image
from fewgraft.data.pictures import PictureError, read_picture
warnings.simplefilter("ignore")
def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])
first = io.BytesIO()
Image.new("RGB", (64, 64)).save(first, "PNG")
read_picture(first.getvalue(), 224, 3)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
def of_decoder():  # HEIC has a process of its own
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
try:
    said = str(read_picture(Path(sys.argv[1]), 224, 3).shape)
except PictureError as error:
    said = f"refused: {error}"
print(json.dumps([status("VmHWM") - before + of_decoder(), said]))
"""


def small_pictures() -> list[bytes]:
    """Valid pictures of every format and mode, a few kilobytes each."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    whole = Image.fromarray(pixels)
    return [_saved(whole, mode, kind) for kind, mode, _ in _kinds()]


def _kinds() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(format, mode, options) of all that Pillow writes and we read."""
    modes = {
        "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
        "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "LAB", "I;16", "I", "F"),
        "JPEG": ("L", "RGB", "CMYK"),
        "GIF": ("P",),
        "BMP": ("1", "L", "P", "RGB"),
        "WEBP": ("RGB", "RGBA"),
        "PPM": ("1", "L", "RGB", "I;16"),
        "JPEG2000": ("L", "RGB", "RGBA"),
        "HEIF": ("L", "RGB", "RGBA"),
    }
    for kind, own in modes.items():
        for mode in own:
            yield kind, mode, QUICK if kind == "HEIF" else {}
    yield "JPEG", "RGB", {"progressive": True, "subsampling": 0}
    yield "TIFF", "RGB", {"compression": "tiff_deflate", "strip_size": 1 << 30}
    yield "TIFF", "F", {"compression": "tiff_deflate"}
    yield "WEBP", "RGB", {"lossless": True}
    yield "HEIF", "RGB", {"tile_size": 512, **QUICK}  # a grid, as telephones write it


def _saved(image: Image.Image, mode: str, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    if mode.startswith("I;16"):
        values = np.asarray(image.convert("L")).astype(np.uint16) * 257
        image = Image.fromarray(values)
    else:
        image = image.convert("RGB" if mode == "LAB" else mode)
    Image.init()
    if kind == "HEIF":
        extra("pillow_heif", "photos").register_heif_opener()
    if kind in Image.SAVE:
        image.save(stream, kind, **options)
    return stream.getvalue()


def read_all(files: list[bytes]) -> list[str]:
    """In the child: what went wrong with each picture, or nothing."""
    import warnings

    from fewgraft.data.pictures import PictureError, read_picture

    warnings.simplefilter("ignore")
    found = []
    for content in files:
        try:
            pixels = read_picture(content, 32, 3)
            found.append("" if pixels.shape == (32, 32, 3) else f"it came out as {pixels.shape}")
        except PictureError as error:
            found.append("" if str(error) else "a refusal without a reason")
        except BaseException as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def mutated_pictures(trial: Trial) -> None:
    """Thousands of damaged pictures; none may raise anything but a reason, or end the process."""
    valid = [content for content in small_pictures() if content]
    context = get_context("spawn")
    pool = ProcessPoolExecutor(1, context)
    for _ in trial.rounds(100, f"pictures, {BATCH} at a time"):
        files = [_damaged(valid, trial.random) for _ in range(BATCH)]
        try:
            problems = pool.submit(read_all, files).result(timeout=300)
        except BrokenProcessPool:
            pool = ProcessPoolExecutor(1, context)
            problems = ["the process died on one of these"] * BATCH
        for content, problem in zip(files, problems, strict=True):
            trial.check(not problem, f"{problem}: {content[:100]!r}")
    pool.shutdown()


def _damaged(valid: list[bytes], chance: random.Random) -> bytes:
    return mutated(chance.choice(valid), chance.choice(valid), chance)


def heic_photos() -> list[bytes]:
    """Valid ones of every make, none larger than a few kilobytes; one of them is a large photo."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    small, flat = Image.fromarray(pixels), Image.new("RGB", (2000, 1500), (90, 60, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    return [
        *(_saved(small, mode, "HEIF") for mode in ("L", "RGB", "RGBA")),
        _saved(small, "RGB", "HEIF", exif=exif.tobytes()),
        _saved(small.resize((300, 200)), "RGB", "HEIF", tile_size=64),
        _saved(flat, "RGB", "HEIF", **QUICK),
        _saved(flat, "RGB", "HEIF", tile_size=512, **QUICK),
    ]


def read_heic(files: list[bytes]) -> tuple[list[str], int]:
    """In the child: what went wrong with each, and the most memory that a decoder took."""
    return read_all(files), 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def mutated_heic(trial: Trial) -> None:
    """Damaged HEIC photos, sizes among the damage: a reason, and a decoder within its limit."""
    valid = heic_photos()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        highest = 0
        for _ in trial.rounds(250, "HEIC photos, 20 at a time"):
            files = [_misstated(_damaged(valid, trial.random), trial.random) for _ in range(20)]
            problems, highest = pool.submit(read_heic, files).result(timeout=3600)
            for content, problem in zip(files, problems, strict=True):
                trial.check(not problem, f"{problem}: {content[:100]!r}")
            trial.check(highest <= MOST, f"{highest / 1e6:.0f} MB for a decoder")
        trial.notes.append(f"at most {highest / 1e6:.0f} MB for a decoder")


def _misstated(content: bytes, chance: random.Random) -> bytes:
    """Every second time with another size in one of the places that state one."""
    places = [place for place in range(len(content) - 16) if content.startswith(b"ispe", place)]
    if not places or chance.random() < 0.5:
        return content
    place = chance.choice(places) + 8
    size = struct.pack(">II", *chance.choices((1, 64, 4000, 9000, 30_000, 2**31), k=2))
    return content[:place] + size + content[place + 8 :]


def _flat(size: tuple[int, int], mode: str, kind: str, options: dict[str, Any]) -> bytes:
    """A picture of one colour; nothing where no such file can be written.

    Some formats end at 65,535 pixels or before, and some encoders crash there: a child writes.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(flat_picture, size, mode, kind, options).result()
        except BrokenProcessPool:
            return b""


def flat_picture(size: tuple[int, int], mode: str, kind: str, options: dict[str, Any]) -> bytes:
    """In the child."""
    try:
        return _saved(Image.new("RGB", size, (90, 60, 30)), mode, kind, **options)
    except (OSError, ValueError, OverflowError, RuntimeError, struct.error):
        return b""


def swelling_pictures(trial: Trial) -> None:
    """Flat pictures of many sizes: a few kilobytes each, up to gigabytes of pixels."""
    kinds = list(_kinds())
    highest = 0
    for number in trial.rounds(len(SIZES) * len(kinds), "swelling pictures"):
        kind, mode, options = kinds[number % len(kinds)]
        size = SIZES[number // len(kinds) % len(SIZES)]
        content = _flat(size, mode, kind, options)
        if not content:
            continue
        (photo := trial.folder / "photo").write_bytes(content)
        command = [sys.executable, "-P", "-c", CHILD, str(photo)]
        done = subprocess.run(command, capture_output=True, check=False)
        rose, said = json.loads(done.stdout) if done.returncode == 0 else (MOST + 1, "it died")
        highest = max(highest, rose)
        what = f"{size} {mode} {kind} {options}, {len(content)} bytes: {said}"
        trial.check(rose <= MOST, f"{rose / 1e6:.0f} MB for {what}")
    trial.notes.append(f"at most {highest / 1e6:.0f} MB above the baseline")


ATTACKS = (
    Attack("mutated pictures", "pixels or a reason, never an exception", mutated_pictures),
    Attack("mutated HEIC photos", "a reason, and at most 300 MB for a decoder", mutated_heic),
    Attack("swelling pictures", "at most 300 MB for any one picture", swelling_pictures),
)
