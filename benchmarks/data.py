"""How long `fewgraft data add cifar-fs` takes, beside merely decoding the same 60,000 pictures.

    .venv/bin/python benchmarks/data.py

Needs ../shared/data/cifar100 (parquet); says so and stops where it is not there.
"""

import io
import tempfile
import time
from pathlib import Path

from PIL import Image

from fewgraft.data.catalogue import add_data

CIFAR = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar100"


def decode_only() -> int:
    import pyarrow.parquet as pq

    pixels = 0
    for file in sorted(CIFAR.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(256, columns=["img.bytes"]):
            for picture in batch.column(0).field("bytes"):
                with Image.open(io.BytesIO(picture.as_py())) as image:
                    pixels += len(image.convert("RGB").tobytes())
    return pixels


def main() -> None:
    if not CIFAR.is_dir():
        print(f"skipped: {CIFAR} is not there")
        return
    start = time.perf_counter()
    decode_only()
    decoding = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        add_data("cifar-fs", CIFAR, root=Path(folder))
        adding = time.perf_counter() - start
    print(f"60,000 pictures added in {adding:.1f} s (target 60 s)")
    print(f"decoded only in {decoding:.1f} s; ratio {adding / decoding:.2f}")


if __name__ == "__main__":
    main()
