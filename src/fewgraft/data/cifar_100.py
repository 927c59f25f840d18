"""The files of CIFAR-100, in the forms that are about: parquet, or the original pickles.

The original files are shuffled; here a half comes out class by class and by file names within a
class, so that it is the same in both forms. Only the original files tell the official order.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fewgraft.data.arrays import as_array, whole_numbers
from fewgraft.data.memory_limit import at_most_more
from fewgraft.data.parts import Part
from fewgraft.data.pictures import Pixels
from fewgraft.data.safe_pickle import load_plain_pickle
from fewgraft.data.splits import draw_base_parts
from fewgraft.errors import FewgraftError, reading

if TYPE_CHECKING:
    from pyarrow import RecordBatch

NATIVE_SIZE = 32
PICTURES = 60_000
VAL_SHARE = 0.1
LAYOUT = (
    "a folder with train*.parquet and test*.parquet (columns img.bytes, fine_label), or the "
    "unpacked cifar-100-python folder with the files train and test."
)
BATCH = 64  # rows of a parquet file at a time
LARGEST_BATCH = 64 << 20  # bytes: a few bytes of a parquet file can unpack to many
ROOM = 512 << 20  # bytes that unpacking may take
LONGEST_NAME = 255
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Half:
    """The official training or test half of CIFAR-100."""

    labels: NDArray[np.int64]  # [n], classes by the alphabet
    names: NDArray[np.str_]  # [n], original file names
    official: NDArray[np.int64] | None  # [n], places in the original file; None: not known
    pictures: Callable[[], Iterator[bytes | Pixels]]  # in the order of the labels


def cifar_halves(path: Path) -> tuple[Half, Half] | None:
    """The training and the test half; None where the files are not there."""
    for folder in (path, path / "cifar-100-python", path / "data"):
        parquet = [sorted(folder.glob(f"{half}*.parquet")) for half in ("train", "test")]
        if all(parquet):
            return _open_parquet(parquet[0]), _open_parquet(parquet[1])
        if (folder / "train").is_file() and (folder / "test").is_file():
            return _open_pickle(folder / "train"), _open_pickle(folder / "test")
    return None


def _open_parquet(files: list[Path]) -> Half:
    """Files with a column of encoded pictures and a column `fine_label`."""
    columns = [_picture_column(file) for file in files]
    labels, names = [], []
    for file, column in zip(files, columns, strict=True):
        wanted = ["fine_label", f"{column}.path"]
        for batch in _batches(file, wanted):
            with reading(file, "readable parquet file"):
                labels.append(_checked(batch["fine_label"].to_numpy(zero_copy_only=False), file))
                paths = batch[column].field("path").fill_null("")
                names += [_checked_name(path.as_py()) for path in paths]

    def pictures() -> Iterator[bytes]:
        for file, column in zip(files, columns, strict=True):
            for batch in _batches(file, [f"{column}.bytes"]):
                for picture in batch[column].field("bytes"):
                    yield picture.as_py() or b""

    return Half(np.concatenate([_NONE, *labels]), np.array(names, np.str_), None, pictures)


def _batches(file: Path, columns: list[str]) -> "Iterator[RecordBatch]":
    """A few rows at a time; a file that unpacks to far more than pictures take is refused."""
    import pyarrow.parquet as pq

    with reading(file, "readable parquet file"):
        batches = pq.ParquetFile(file).iter_batches(BATCH, columns=columns, use_threads=False)
    while True:
        with reading(file, "readable parquet file"), at_most_more(ROOM):
            batch = next(batches, None)
            if batch is not None and batch.nbytes > LARGEST_BATCH:
                raise ValueError("it unpacks to far more than pictures of this size take")
        if batch is None:
            return
        yield batch


def _picture_column(file: Path) -> str:
    """The name of the column with pictures, once the file is what it should be."""
    import pyarrow.parquet as pq
    from pyarrow import types

    with reading(file, "readable parquet file"):
        opened = pq.ParquetFile(file)
        schema, rows = opened.schema_arrow, opened.metadata.num_rows
    column = next((name for name in ("img", "image") if name in schema.names), None)
    inside = schema.field(column).type if column else None
    if (
        inside is None
        or not types.is_struct(inside)
        or {"bytes", "path"} - {inside.field(i).name for i in range(inside.num_fields)}
        or "fine_label" not in schema.names
        or not types.is_integer(schema.field("fine_label").type)
    ):
        raise FewgraftError(
            f"{file} has the columns {', '.join(schema.names)[:200]}",
            "CIFAR-100 needs the columns img (with bytes and path in it) and fine_label (numbers).",
        )
    if rows > PICTURES:
        raise FewgraftError(f"{file} has {rows:,} rows; CIFAR-100 has {PICTURES:,}")
    return str(column)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise ValueError("a picture's path is no file name")
    return name


def _open_pickle(file: Path) -> Half:
    """A file of the original `cifar-100-python` form: rows of 3072 bytes, channel by channel."""
    content = load_plain_pickle(file)
    if not isinstance(content, dict) or not {"data", "fine_labels"} <= content.keys():
        raise FewgraftError(f"{file} lacks the keys data and fine_labels of cifar-100-python")
    with reading(file, "file of cifar-100-python"):
        rows = as_array(content["data"])
        labels = _checked(content["fine_labels"], file)
        if rows.dtype != np.uint8 or rows.shape != (len(labels), 3 * NATIVE_SIZE**2):
            raise FewgraftError(f"{file}: data is {rows.dtype} {rows.shape}, not uint8 [n, 3072]")
        listed = list(content.get("filenames", [""] * len(labels)))
        if len(listed) != len(labels):
            raise ValueError(f"it has {len(listed)} file names and {len(labels)} labels")
        names = np.array([_checked_name(_text(name)) for name in listed], np.str_)
    order = np.lexsort((names, labels))  # the file is shuffled; by class and name it is the same
    pictures = rows.reshape(-1, 3, NATIVE_SIZE, NATIVE_SIZE).transpose(0, 2, 3, 1)
    return Half(labels[order], names[order], order, lambda: (pictures[row] for row in order))


def _text(name: object) -> object:
    return name.decode() if isinstance(name, bytes) else name


def _checked(labels: Iterable[object] | NDArray[Any], file: Path) -> NDArray[np.int64]:
    numbers = whole_numbers(labels)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < 100:
        raise FewgraftError(f"{file}: fine labels must run from 0 to 99")
    return numbers


def draw_train_parts(train: Half, seed: int) -> list[Part]:
    """A draw of train and val for every official training picture, class by class."""
    parts = [Part.BASE_TRAIN] * len(train.labels)
    for label in range(100):
        own = np.flatnonzero(train.labels == label)
        by_name = own[np.argsort(train.names[own], kind="stable")]
        drawn = draw_base_parts(len(own), val=VAL_SHARE, test=0, seed=seed, label=label)
        for number, part in zip(by_name.tolist(), drawn, strict=True):
            parts[number] = part
    return parts


def cifar_notes(total: int, seed: int) -> tuple[str, ...]:
    """What a user should know of the draw, and of pictures that are not there."""
    drawn = f"base val: a tenth of the official training pictures, drawn with seed {seed}"
    if total == PICTURES:
        return (drawn,)
    return (drawn, f"incomplete: {total:,} of {PICTURES:,} pictures")
