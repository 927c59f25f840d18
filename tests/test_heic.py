"""HEIC photos: real ones, turned ones, those that lie about their size, and no decoder at all."""

import io
import random
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import noise
from PIL import Image

from campaign.attack import Trial
from campaign.pictures import mutated_heic
from fewgraft.app.features.embedding import Embedder
from fewgraft.app.learning.predicting import predict
from fewgraft.app.learning.saving import open_classifier
from fewgraft.data import heic, pictures
from fewgraft.data.pictures import PictureError, check_picture, read_picture

pillow_heif = pytest.importorskip("pillow_heif")
pillow_heif.register_heif_opener()
RED, BLUE = (255, 0, 0), (0, 0, 255)


def packed(image: Image.Image, **options: object) -> bytes:
    """Without loss, so that pixels can be compared."""
    stream = io.BytesIO()
    lossless = {"quality": -1, "chroma": 444, "matrix_coefficients": 0}
    image.save(stream, "HEIF", **(lossless | options))
    return stream.getvalue()


def flag() -> Image.Image:
    """A red band on top, and a green corner on its left: no turn leaves it as it is."""
    image = Image.new("RGB", (64, 64), "blue")
    image.paste("red", (0, 0, 64, 16))
    image.paste("lime", (0, 0, 16, 16))
    return image


def close(pixels: np.ndarray, wanted: object, within: int = 6) -> bool:
    return bool((np.abs(pixels.astype(int) - np.array(wanted).astype(int)) <= within).all())


def reason(content: bytes | Path) -> str:
    with pytest.raises(PictureError) as refused:
        read_picture(content, 32, 3)
    return str(refused.value)


@pytest.mark.parametrize("given", ["bytes", "path"])
def test_pixels_are_kept(given: str, tmp_path: Path) -> None:
    pixels = noise(0, 64, 64, 3)
    content = packed(Image.fromarray(pixels))
    (tmp_path / "a photo.HEIC").write_bytes(content)
    read = read_picture(content if given == "bytes" else tmp_path / "a photo.HEIC", 64, 3)
    assert close(read, pixels, within=1)


def test_grey_transparent_and_tiled() -> None:
    grey = noise(1, 64, 64)
    assert close(read_picture(packed(Image.fromarray(grey)), 64, 1)[:, :, 0], grey, within=1)
    glass = Image.new("RGBA", (64, 64), (255, 0, 0, 128))
    assert close(read_picture(packed(glass), 32, 3), (255, 127, 127))
    tiled = packed(flag().resize((256, 256)), tile_size=64)
    assert b"grid" in tiled
    assert close(read_picture(tiled, 64, 3)[20:], BLUE)


UNDO = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def turned(orientation: int) -> bytes:
    """The flag as a tilted camera stores it, with a note of how to turn it back."""
    undo = UNDO[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    return packed(flag() if undo is None else flag().transpose(undo), exif=exif.tobytes())


@pytest.mark.parametrize("orientation", UNDO)
def test_turned_once_and_not_twice(orientation: int) -> None:
    """The file says it in boxes of its own (irot, imir) and in EXIF."""
    content = turned(orientation)
    assert orientation == 1 or b"irot" in content or b"imir" in content
    assert close(read_picture(content, 64, 3), np.asarray(flag()))


def test_exif_alone_turns_nothing() -> None:
    """In HEIF it only repeats what the boxes say: without them the picture is as it is stored."""
    with_exif = turned(6)
    content = with_exif.replace(b"irot", b"free")
    assert with_exif.count(b"irot") == 1
    stored = flag().transpose(Image.Transpose.ROTATE_90)
    assert close(read_picture(content, 64, 3), np.asarray(stored))


def test_a_large_photo_is_brought_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any other large picture."""
    pixels = Image.fromarray(noise(2, 6, 9, 3)).resize((900, 600), Image.Resampling.BICUBIC)
    plain = io.BytesIO()
    pixels.save(plain, "PNG")
    found = read_picture(packed(pixels), 32, 3)
    monkeypatch.setattr(pictures, "LARGE", 0)
    assert close(found, read_picture(plain.getvalue(), 32, 3), within=2)


# --- what is refused ---


def with_stated_size(content: bytes, width: int, height: int) -> bytes:
    place = content.index(b"ispe") + 8
    return content[:place] + struct.pack(">II", width, height) + content[place + 8 :]


@pytest.fixture(scope="module")
def flat() -> bytes:
    """3 million pixels in a few kilobytes."""
    return packed(Image.new("RGB", (2000, 1500), RED), quality=10, chroma=420)


def test_memory_is_limited_where_it_is_taken(flat: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(flat) < 10_000
    assert read_picture(flat, 32, 3).shape == (32, 32, 3)
    for most in (2, 10, 20):
        monkeypatch.setattr(heic, "MOST_MEMORY", most * 1_000_000)
        assert re.match(
            f"decoding it takes more than {most} MB|damaged, or too large", reason(flat)
        )


def test_a_size_that_is_not_the_true_one(flat: bytes) -> None:
    assert "exceeds the maximum image size" in reason(with_stated_size(flat, 64, 64))
    assert "more than 80,000,000 pixels" in reason(with_stated_size(flat, 9000, 9000))


def test_a_decoder_that_takes_too_long(flat: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heic, "MOST_SECONDS", 0.01)
    assert "takes longer than" in reason(flat)


def test_damaged_ones_have_reasons(tmp_path: Path) -> None:
    content = packed(flag())
    for cut in (20, 100, len(content) // 2, len(content) - 30):
        assert reason(content[:cut])
    assert reason(b"\0\0\0\x18ftypheic") != ""
    trial = Trial(tmp_path, scale=0, random=random.Random(1))
    mutated_heic(trial)
    assert trial.tried == 21
    assert not trial.failures


def test_without_the_decoder_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.heic").write_bytes(packed(flag()))
    check_picture(tmp_path / "x.heic")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    said = "a HEIC photo needs pillow-heif: pip install 'fewgraft[photos]'"
    assert reason(tmp_path / "x.heic") == said
    with pytest.raises(PictureError, match="pillow-heif"):
        check_picture(tmp_path / "x.heic")
    [answer] = predict(Embedder(open_classifier("icons"), keep=False), [tmp_path / "x.heic"])
    assert answer.problem == said


@pytest.mark.parametrize("brands", [b"avif", b"avis", b"mif1\0\0\0\0miafavif"])
def test_avif_is_not_read_as_heic(brands: bytes) -> None:
    major, rest = brands[:4], brands[4:] or bytes(4)
    start = struct.pack(">I", 12 + len(rest)) + b"ftyp" + major + rest
    assert reason(start + packed(flag())[24:]) == "not a picture of a known format"


def test_what_is_no_heic() -> None:
    for content in (b"", b"\0\0\0\x18", b"\0\0\0\x18ftypisom", b"ftypheic"):
        assert not heic.is_heic(content)
