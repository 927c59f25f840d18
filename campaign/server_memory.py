"""Photos that need much memory, all at once and again and again: the server stays below 1 GB."""

import io
import random
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from campaign.attack import Attack, Trial
from campaign.server_process import MB, Served, photo, served
from fewgraft.extras import extra

SIDE = 8_900  # 79 million pixels


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    packed = io.BytesIO()
    image.save(packed, kind, **options)
    return packed.getvalue()


def float_tiff(side: int = SIDE) -> bytes:
    """32 bits a pixel, packed to little."""
    return _saved(Image.new("F", (side, side), 0.5), "TIFF", compression="tiff_adobe_deflate")


def wide_tiff() -> bytes:
    """16 bits a pixel."""
    pixels = np.zeros((SIDE, SIDE), np.uint16)
    return _saved(Image.fromarray(pixels), "TIFF", compression="tiff_adobe_deflate")


def wide_png() -> bytes:
    """16 bits a pixel."""
    return _saved(Image.fromarray(np.zeros((SIDE, SIDE), np.uint16)), "PNG")


def rgba_png() -> bytes:
    """With transparency."""
    return _saved(Image.new("RGBA", (SIDE, SIDE), (1, 2, 3, 128)), "PNG")


def palette_png() -> bytes:
    """With a transparent colour."""
    return _saved(Image.new("P", (SIDE, SIDE), 3), "PNG", transparency=3)


def cmyk_jpeg() -> bytes:
    """Four inks."""
    return _saved(Image.new("CMYK", (SIDE, SIDE), (9, 9, 9, 9)), "JPEG")


def progressive_jpeg() -> bytes:
    """Whose decoder keeps all of it."""
    return _saved(Image.new("RGB", (SIDE, SIDE), (9, 99, 9)), "JPEG", progressive=True)


def jpeg2000() -> bytes:
    """Wavelets."""
    return _saved(Image.new("RGB", (4_000, 4_000), (9, 99, 9)), "JPEG2000")


def webp() -> bytes:
    """Without loss."""
    return _saved(Image.new("RGB", (8_900, 8_900), (9, 99, 9)), "WEBP", lossless=True)


def heic() -> bytes:
    """As many pixels as its decoder has memory for."""
    extra("pillow_heif", "photos").register_heif_opener()
    quick = {"preset": "ultrafast"}
    return _saved(Image.new("RGB", (6_900, 6_900), (9, 99, 9)), "HEIF", enc_params=quick)


def _frames(kind: str) -> bytes:
    frames = [Image.new("RGB", (3_000, 3_000), (n, 99, 9)) for n in range(6)]
    return _saved(frames[0], kind, save_all=True, append_images=frames[1:])


def gif() -> bytes:
    """Moving."""
    return _frames("GIF")


def moving_webp() -> bytes:
    """Moving."""
    return _frames("WEBP")


def bitmap() -> bytes:
    """One bit a pixel."""
    return _saved(Image.new("1", (SIDE, SIDE)), "PNG")


def claim(width: int, height: int) -> bytes:
    """A tiny PNG that claims to be large."""
    made = bytearray(photo())
    made[16:24] = struct.pack(">II", width, height)
    made[29:33] = struct.pack(">I", zlib.crc32(made[12:29]))
    return bytes(made)


HOSTILE: tuple[Callable[[], bytes], ...] = (
    float_tiff, wide_tiff, wide_png, rgba_png, palette_png, cmyk_jpeg, progressive_jpeg, jpeg2000,
    webp, gif, moving_webp, bitmap, heic,
    lambda: claim(8_900, 8_900), lambda: claim(0x7FFFFFFF, 0x7FFFFFFF),
    lambda: claim(80_000_000, 1), lambda: claim(1, 70_000_000),
)  # fmt: skip


def hostile_photos(trial: Trial) -> None:
    """Many at once, in small and in large requests."""
    count = max(4, round(len(HOSTILE) * min(1.0, trial.scale * 2)))
    kinds = HOSTILE if count >= len(HOSTILE) else trial.random.sample(HOSTILE, count)
    photos = [made for made in (make() for make in kinds) if len(made) < 20 * MB]
    with served(trial.folder) as server, ThreadPoolExecutor(12) as pool:

        def ask(chosen: list[bytes]) -> tuple[int, bool]:
            answer = server.predict(*chosen)
            return answer.status, answer.fair

        for _ in trial.rounds(4, "hostile photos"):
            many = 12 if trial.scale > 0.1 else 4
            sizes = trial.random.choices((1, 2, 2, 6), k=many)
            asked = [trial.random.choices(photos, k=size) for size in sizes]
            for status, fair in pool.map(ask, asked):
                trial.check(fair and status in (200, 422), f"status {status} for hostile photos")
            trial.check(server.peak < 1_000 * MB, f"{server.peak // MB} MB of memory")
        trial.check(server.predict(photo()).status == 200, "no answer after the attack")
        trial.check(server.quiet, f"the log: {server.log.read_text(errors='replace')[-600:]}")
        trial.notes.append(f"peak {server.peak // MB} MB, after it {server.rss() // MB} MB")


def large_forms(trial: Trial) -> None:
    """Large requests of thousands of photos at once, most of which are never finished."""
    begin = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n\r\n\r\n'
    files = begin * 4_900
    text = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n' + b"t" * 1_900 + b"\r\n"
    texts = b"".join(text % (b"class%d" % n + b"n" * 80) for n in range(48))
    photos = begin[:-2] + bytes(900_000)
    with served(trial.folder) as server:
        held = []
        for number in trial.rounds(350, "large forms"):
            one = server.connect()
            one.settimeout(2)
            kind = "Content-Type: multipart/form-data; boundary=x"
            head = f"POST /api/predict HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n"
            held.append(one)
            try:
                one.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode())
                one.sendall((files, texts, photos)[number % 3])
            except OSError:
                continue  # refused, or it waits for its turn
        trial.check(server.predict(photo()).status == 200, "no answer amid large forms")
        trial.check(server.peak < 1_000 * MB, f"{server.peak // MB} MB of memory")
        for one in held:
            one.close()
        trial.check(server.quiet, f"the log: {server.log.read_text(errors='replace')[-600:]}")
        trial.notes.append(f"peak {server.peak // MB} MB")


def many_predicts(trial: Trial) -> None:
    """Photo after photo, some damaged: the memory is flat."""
    with served(trial.folder) as server, ThreadPoolExecutor(4) as pool:

        def ask(seed: int) -> bool:
            return _ask_one(server, seed)

        after: list[int] = []
        for number in trial.rounds(100, "predicts, 100 at a time"):
            for fair in pool.map(ask, range(100 * number, 100 * number + 100)):
                trial.check(fair, "a wrong answer to a photo")
            after.append(server.rss())
        early, late = after[len(after) // 10], after[-1]
        trial.check(late - early < 50 * MB, f"from {early // MB} to {late // MB} MB")
        trial.check(server.quiet, f"the log: {server.log.read_text(errors='replace')[-600:]}")
        trial.notes.append(f"{early // MB} MB after a tenth, {late // MB} MB at the end")


def _ask_one(server: Served, seed: int) -> bool:
    draw = random.Random(seed)
    content = photo(seed, draw.choice((16, 32, 64, 200)))
    if draw.random() < 0.1:
        cut = draw.randrange(1, len(content))
        answer = server.predict(content[:cut])
        return answer.fair and answer.status in (200, 422)
    return server.predict(content).status == 200


ATTACKS = (
    Attack("hostile photos in parallel", "the server stays below 1 GB", hostile_photos),
    Attack("large forms in parallel", "the server stays below 1 GB and serves others", large_forms),
    Attack("10,000 predicts", "the memory is flat: within 50 MB from 1,000 to 10,000",
           many_predicts),
)  # fmt: skip
