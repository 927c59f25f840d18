"""Every kind of picture file comes out right, or is refused with a reason."""

import io
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import noise
from PIL import Image

from campaign.attack import Trial
from campaign.pictures import mutated_pictures
from fewgraft.data import pictures
from fewgraft.data.picture_memory import decoded_bytes
from fewgraft.data.pictures import PictureError, read_picture

FAST: dict[str, dict[str, object]] = {
    "WEBP": {"method": 0, "lossless": True},
    "TIFF": {"compression": "tiff_deflate"},
}
RED, WHITE = (255, 0, 0), (255, 255, 255)


def packed(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def close(pixels: np.ndarray, colour: object, within: int = 3) -> bool:
    return bool((np.abs(pixels.astype(int) - np.array(colour)) <= within).all())


def test_a_plain_picture_of_the_right_size_is_kept_to_the_bit() -> None:
    pixels = noise(0, 16, 16, 3)
    assert (read_picture(packed(Image.fromarray(pixels), "PNG"), 16, 3) == pixels).all()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_usual_formats(format: str) -> None:
    assert close(read_picture(packed(Image.new("RGB", (20, 30), RED), format), 8, 3), RED)


def test_grey_becomes_three_equal_channels_and_colour_becomes_grey() -> None:
    grey = noise(1, 8, 8)
    content = packed(Image.fromarray(grey), "PNG")
    assert (read_picture(content, 8, 3) == grey[:, :, None]).all()
    assert (read_picture(content, 8, 1) == grey[:, :, None]).all()
    assert close(read_picture(packed(Image.new("RGB", (8, 8), RED), "PNG"), 8, 1), 76)


def test_palette() -> None:
    assert close(read_picture(packed(Image.new("RGB", (8, 8), RED).convert("P"), "PNG"), 8, 3), RED)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_show_white_paper(mode: str) -> None:
    content = packed(Image.new(mode, (8, 8), 0), "PNG")
    assert close(read_picture(content, 8, 3), WHITE)


def test_half_transparent_red_is_pink() -> None:
    content = packed(Image.new("RGBA", (8, 8), (255, 0, 0, 128)), "PNG")
    assert close(read_picture(content, 8, 3), (255, 127, 127))


def test_palette_with_transparency_shows_white_paper() -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    assert close(read_picture(packed(image, "PNG", transparency=0), 8, 3), WHITE)


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
@pytest.mark.parametrize(
    ("ink", "colour"), [((0, 255, 255, 0), RED), ((0, 0, 0, 0), WHITE), ((0, 0, 0, 255), (0, 0, 0))]
)
def test_cmyk(format: str, ink: tuple[int, ...], colour: tuple[int, ...]) -> None:
    assert close(read_picture(packed(Image.new("CMYK", (8, 8), ink), format), 8, 3), colour)


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_keep_the_high_byte(format: str) -> None:
    values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024
    pixels = read_picture(packed(Image.fromarray(values), format), 8, 1)
    assert (pixels[:, :, 0] == values >> 8).all()


def test_a_dark_sixteen_bit_picture_stays_dark() -> None:
    values = np.full((8, 8), 200, dtype=np.uint16)
    assert (read_picture(packed(Image.fromarray(values), "PNG"), 8, 1) == 0).all()


def test_floating_point() -> None:
    unit = Image.fromarray(np.full((8, 8), 0.5, np.float32))
    wide = Image.fromarray(np.full((8, 8), 128, np.float32))
    for image in (unit, wide):
        assert close(read_picture(packed(image, "TIFF"), 8, 1), 128)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_shows_the_picture_upright(orientation: int) -> None:
    upright = Image.new("RGB", (16, 16), "blue")
    upright.paste("red", (0, 0, 16, 4))  # a red band on top
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = upright.transpose(undo) if undo is not None else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = read_picture(packed(stored, "PNG", exif=exif), 16, 3)
    assert close(pixels[:3], RED)
    assert close(pixels[5:], (0, 0, 255))


def test_a_wide_picture_loses_its_sides_not_its_shape() -> None:
    image = Image.new("RGB", (64, 16), RED)
    image.paste("blue", (24, 0, 40, 16))
    assert close(read_picture(packed(image, "PNG"), 16, 3)[:, 1:-1], (0, 0, 255), within=12)


def test_a_large_photograph_is_decoded_small() -> None:
    photograph = Image.new("RGB", (4000, 3000), RED)
    assert close(read_picture(packed(photograph, "JPEG"), 32, 3), RED)


def test_pixels_that_are_decoded_already() -> None:
    pixels = noise(2, 10, 10, 3)
    assert read_picture(pixels, 10, 3) is pixels
    assert read_picture(pixels, 5, 1).shape == (5, 5, 1)
    assert read_picture(pixels[:, :, :1], 10, 3).shape == (10, 10, 3)
    with pytest.raises(PictureError, match="float32"):
        read_picture(pixels.astype(np.float32), 10, 3)


def giant_png(side: int) -> bytes:
    """A valid picture of side × side one-bit pixels: small on disk, 2.5 gigapixels in memory."""

    def chunk(name: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + check

    rows = zlib.compressobj(1)
    row = bytes(1 + side // 8)
    data = b"".join(rows.compress(row * 500) for _ in range(side // 500)) + rows.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def damaged_pictures() -> dict[str, bytes]:
    whole = packed(Image.fromarray(noise(3, 64, 64, 3)), "PNG")
    jpeg = packed(Image.fromarray(noise(3, 64, 64, 3)), "JPEG")
    return {
        "empty.png": b"",
        "truncated.png": whole[: len(whole) // 2],
        "truncated.jpg": jpeg[: len(jpeg) // 2],
        "header only.png": whole[:20],
        "text.png": b"this is no picture at all\n" * 20,
        "program.jpg": b"\x7fELF" + bytes(200),
        "vector.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "postscript.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
        "wrong sum.png": whole[:40] + b"\0\0\0\0" + whole[44:],
        "giant.png": giant_png(50_000),
    }


@pytest.mark.parametrize(("name", "content"), damaged_pictures().items())
def test_damaged_pictures_are_refused_with_a_reason(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    for form in (content, tmp_path / name):
        with pytest.raises(PictureError) as refused:
            read_picture(form, 8, 3)
        assert str(refused.value)


def test_reasons_are_in_plain_words(tmp_path: Path) -> None:
    def reason(content: bytes | Path) -> str:
        with pytest.raises(PictureError) as refused:
            read_picture(content, 8, 3)
        return str(refused.value)

    assert reason(b"") == "empty file"
    assert reason(b"hello") == "not a picture of a known format"
    assert "pixels" in reason(giant_png(50_000))
    assert "pixels" in reason(giant_png(10_000)), "beyond our limit, below Pillow's"
    assert "No such file" in reason(tmp_path / "gone.png")


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (40, 40)])
def test_a_crop_takes_the_middle(shape: tuple[int, int]) -> None:
    """Of a shorter side of 40, resized to 20, the middle 16 stay: a border of 2 is cut off."""
    pixels = noise(0, *shape, 3)
    whole = read_picture(packed(Image.fromarray(pixels), "PNG"), 20, 3)
    for content in (packed(Image.fromarray(pixels), "PNG"), pixels):
        assert (read_picture(content, 16, 3, crop=0.8) == whole[2:-2, 2:-2]).all()


def test_a_crop_leaves_pixels_of_the_right_size_no_way_round_it() -> None:
    pixels = noise(0, 16, 16, 3)
    assert not (read_picture(pixels, 16, 3, crop=0.8) == pixels).all()
    for crop in (0.0, -1.0, 1.5):
        with pytest.raises(ValueError, match="share of the picture"):
            read_picture(pixels, 16, 3, crop=crop)


# --- large pictures, strip by strip ---


def wide_picture(mode: str) -> Image.Image:
    """A picture with structure in every mode; wider than high, and no multiple of a factor."""
    pixels = noise(5, 61, 83, 3)
    if mode == "F":
        return Image.fromarray(pixels[..., 0].astype(np.float32) / 255)
    if mode in ("I;16", "I"):
        kind = np.uint16 if mode == "I;16" else np.int32
        return Image.fromarray(pixels[..., 0].astype(kind) * 257)
    image = Image.fromarray(pixels)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(pixels[..., 1]))
        return image
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
@pytest.mark.parametrize("channels", [1, 3])
def test_strips_give_what_the_whole_gives(
    mode: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the plain way: convert the whole, cut the square out, reduce, resize."""
    kind = "TIFF" if mode in ("CMYK", "F", "I") else "PNG"
    content = packed(wide_picture(mode), kind)
    monkeypatch.setattr(pictures, "LARGE", 0)
    monkeypatch.setattr(pictures, "STRIP", 700)
    found = read_picture(content, 8, channels)
    with Image.open(io.BytesIO(content)) as image:
        whole = pictures._plain(image).convert("L" if channels == 1 else "RGB")
    square = whole.crop((11, 0, 11 + 60, 60)).reduce(3)
    wanted = np.asarray(square.resize((8, 8), Image.Resampling.BICUBIC)).reshape(8, 8, channels)
    assert (found == wanted).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_large_rotated_pictures_are_upright_too(
    orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth = Image.fromarray(noise(6, 6, 6, 3)).resize((80, 64), Image.Resampling.BICUBIC)
    content = packed(smooth, "PNG", exif=exif)
    whole = read_picture(content, 8, 3)
    monkeypatch.setattr(pictures, "LARGE", 0)
    assert close(read_picture(content, 8, 3), whole, within=12)


def test_what_would_take_too_much_memory_is_refused_by_its_header() -> None:
    """Flat pictures are tiny files; what counts is what they take when decoded."""
    for mode, kind in (("F", "TIFF"), ("RGBA", "PNG"), ("RGB", "WEBP")):
        content = packed(Image.new(mode, (8900, 8900)), kind, **FAST.get(kind, {}))
        with pytest.raises(PictureError, match="of memory"):
            read_picture(content, 32, 3)


def test_a_tile_that_is_larger_than_its_picture_counts() -> None:
    content = packed(Image.new("L", (64, 64)), "TIFF", compression="tiff_deflate")
    with Image.open(io.BytesIO(content)) as image:
        before = decoded_bytes(image)
        image.tag_v2[322], image.tag_v2[323] = 60_000, 60_000  # type: ignore[attr-defined]
        assert decoded_bytes(image) > before + 3_000_000_000


@pytest.mark.parametrize("shape", [(4, 4, 5), (4, 4, 2), (0, 4, 3), (4, 0), (4,), (1, 4, 4, 3)])
def test_arrays_of_other_shapes_are_no_pictures(shape: tuple[int, ...]) -> None:
    with pytest.raises(PictureError, match="not a picture"):
        read_picture(np.zeros(shape, np.uint8), 8, 3)


def test_a_little_mutation_finds_nothing(tmp_path: Path) -> None:
    trial = Trial(tmp_path, scale=0, random=random.Random(0))
    mutated_pictures(trial)
    assert trial.tried == 500
    assert not trial.failures


# --- files that are more header than picture ---


def _with_segments(count: int) -> bytes:
    plain = _packed(Image.new("RGB", (8, 8)), "JPEG")
    return plain[:2] + b"\xff\xe5\x00\x02" * count + plain[2:]


def _packed(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def test_a_few_segments_are_read_and_too_many_are_not() -> None:
    assert read_picture(_with_segments(1000), 8, 3).shape == (8, 8, 3)
    with pytest.raises(PictureError, match="tiny parts"):
        read_picture(_with_segments(200_000), 8, 3)


@pytest.mark.parametrize("place", [33, -12])  # before the pixels, and after them
def test_too_many_chunks_of_a_png(place: int) -> None:
    plain = _packed(Image.new("RGB", (8, 8)), "PNG")
    with pytest.raises(PictureError, match="tiny parts"):
        read_picture(plain[:place] + _chunk(b"prVt", b"") * 200_000 + plain[place:], 8, 3)


def test_a_chunk_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    plain = _packed(Image.new("RGB", (8, 8)), "PNG")
    with (tmp_path / "x.png").open("wb") as file:
        file.write(plain[:33] + struct.pack(">I", 2_000_000_000) + b"prVt")
        file.truncate(2_000_000_100)
    with pytest.raises(PictureError, match="header is too large"):
        read_picture(tmp_path / "x.png", 8, 3)


def test_a_tiff_of_too_many_strips() -> None:
    entries = [(256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    entries += [(273, 3, 600_000, 200), (277, 3, 1, 1), (278, 4, 1, 1), (279, 3, 600_000, 200)]
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries))
    content = head + b"".join(struct.pack("<HHLL", *entry) for entry in entries)
    with pytest.raises(PictureError, match="header is too large"):
        read_picture(content.ljust(200, b"\0") + b"\x08\0" * 600_000, 8, 3)


def test_a_jpeg_of_scans_apart_counts_what_it_keeps() -> None:
    side = 8900
    tables = b"".join(
        b"\xff\xc4\x00\x14" + kind + b"\x01" + bytes(15) + b"\x00" for kind in (b"\x00", b"\x10")
    )
    frame = struct.pack(">HBHHB", 17, 8, side, side, 3) + b"\x01\x11\x00\x02\x11\x00\x03\x11\x00"
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    quantised = b"\xff\xdb\x00\x43\x00" + b"\x01" * 64
    with pytest.raises(PictureError, match="of memory"):
        read_picture(b"\xff\xd8" + quantised + b"\xff\xc0" + frame + tables + scan, 8, 3)


def test_what_python_decodes_must_not_be_large() -> None:
    with pytest.raises(PictureError, match="too large for this way to pack"):
        read_picture(b"P6\n8900 8900\n254\n" + bytes(100), 8, 3)
    assert read_picture(b"P6\n2 2\n254\n" + bytes(12), 8, 3).shape == (8, 8, 3)


def test_exif_of_megabytes_is_ignored() -> None:
    plain = _packed(Image.new("RGB", (8, 8)), "PNG")
    turned = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHLL", 0x0112, 3, 1_000_000, 26)
    whole = plain[:33] + _chunk(b"eXIf", turned + b"\0\0\0\0" + b"\x06\0" * 1_000_000) + plain[33:]
    assert read_picture(whole, 8, 3).shape == (8, 8, 3)
