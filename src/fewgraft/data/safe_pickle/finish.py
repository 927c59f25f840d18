"""From descriptions to plain Python and NumPy: arrays are made here, by `np.frombuffer`."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewgraft.data.safe_pickle.inert import OBJECT, Array, DamagedError, OldText, scalar

DEEPEST = 50  # containers inside each other


class Finish:
    """Turns what the machine built into plain Python and NumPy, each thing once."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._bytes_left = most_bytes  # to be looked at: many arrays may share the same ones
        self._done: dict[int, tuple[Any, int]] = {}  # id → (value, items in it)
        self._open: set[int] = set()

    def value(self, inert: Any, depth: int) -> Any:
        """The finished value."""
        return self._finished(inert, depth)[0]

    def _finished(self, inert: Any, depth: int) -> tuple[Any, int]:
        if id(inert) in self._done:  # also bytes and arrays: what is shared is copied once
            return self._done[id(inert)]
        if isinstance(inert, memoryview | OldText):
            return self._done.setdefault(id(inert), (scalar(inert), 1))
        if not isinstance(inert, list | tuple | dict | set | Array):
            return scalar(inert), 1
        if isinstance(inert, Array) and not isinstance(inert.data, list):
            self._bytes_left -= inert.data.nbytes
            if self._bytes_left < 0:
                raise DamagedError("it is small, but describes far too much")
            return self._done.setdefault(id(inert), (array_of(inert), 1))
        if depth > DEEPEST or id(inert) in self._open:
            raise DamagedError("it nests too deeply, or holds itself")
        self._open.add(id(inert))
        made = self._container(inert, depth + 1)
        self._open.remove(id(inert))
        if made[1] > self._most:
            raise DamagedError("it is small, but describes far too much")
        self._done[id(inert)] = made
        return made

    def _container(self, inert: Any, depth: int) -> tuple[Any, int]:
        if isinstance(inert, set):
            return set(inert), 1 + len(inert)
        if isinstance(inert, Array):
            inert = _objects(inert)
        items = inert.values() if isinstance(inert, dict) else inert
        finished = [self._finished(item, depth) for item in items]
        values, total = [value for value, _ in finished], 1 + sum(size for _, size in finished)
        if isinstance(inert, dict):
            return dict(zip(inert, values, strict=True)), total
        return (tuple(values) if isinstance(inert, tuple) else values), total


def _objects(array: Array) -> list[Any]:
    """An array of objects is a list here; the objects are finished like any others."""
    assert isinstance(array.data, list)
    if array.dtype.kind != OBJECT or array.shape != (len(array.data),):
        raise DamagedError("an array of objects does not have the size that it claims")
    return array.data


def array_of(array: Array) -> NDArray[Any]:
    """A read-only view of the bytes, once everything about it was found possible."""
    if array.dtype.kind == OBJECT or isinstance(array.data, list):
        raise DamagedError("an array of objects holds bytes")
    count = math.prod(array.shape)
    order = array.dtype.order if array.dtype.order in "<>" else "<"
    dtype = np.dtype(f"{order}{array.dtype.kind}")
    if dtype.itemsize == 0 or count * dtype.itemsize != array.data.nbytes:
        raise DamagedError(
            f"an array claims {count * dtype.itemsize} bytes and has {array.data.nbytes}"
        )
    flat = np.frombuffer(array.data, np.dtype("u1") if dtype.kind == "b" else dtype)
    if dtype.kind == "b":
        flat = flat != 0
    if dtype.kind == "U" and count and flat.view(f"{order}u4").max() > 0x10FFFF:
        raise DamagedError("an array of text holds what is no character")
    whole = flat.reshape(array.shape, order="F" if array.fortran else "C")
    return whole if array.axes is None else whole.transpose(array.axes)
