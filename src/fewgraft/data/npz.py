"""Rows of an array inside an .npz file, read a few at a time: such files can exceed the memory."""

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from fewgraft.data.pictures import Pixels
from fewgraft.errors import FewgraftError


def npz_shape(path: Path, name: str) -> tuple[int, ...]:
    """Shape of the array `name`, which must be uint8 in C order."""
    with _member(path, name) as stream:
        return _read_header(stream, path, name)


def npz_rows(path: Path, name: str) -> Iterator[Pixels]:
    """The rows of the array `name`, one by one."""
    with _member(path, name) as stream:
        shape = _read_header(stream, path, name)
        bytes_a_row = int(np.prod(shape[1:]))
        for _ in range(shape[0]):
            row = stream.read(bytes_a_row)
            if len(row) != bytes_a_row:
                raise FewgraftError(f"{path} ends too early: it is truncated")
            yield np.frombuffer(row, np.uint8).reshape(shape[1:])


@contextlib.contextmanager
def _member(path: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
            yield stream
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise FewgraftError(f"{path} is not an .npz file with an array '{name}': {error}") from None


def _read_header(stream: IO[bytes], path: Path, name: str) -> tuple[int, ...]:
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran_order, dtype = read(stream)
    except (ValueError, KeyError) as error:
        raise FewgraftError(f"{path}: the array '{name}' is damaged: {error}") from None
    if dtype != np.uint8 or fortran_order or len(shape) != 4:
        raise FewgraftError(f"{path}: '{name}' is {dtype} {shape}, not uint8 [n, height, width, 3]")
    return shape
