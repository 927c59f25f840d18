"""Foreign pickles, read without running them: plain containers and NumPy arrays, nothing else.

A pickle is a program, and NumPy's own constructors are not safe on hostile input. So Python's
unpickler is not used at all. This file interprets the opcodes that data sets are made of, one table
of them (`_OPCODES`). What they build is inert: numbers, text, bytes, containers of our own making,
and descriptions of arrays. A name such as `numpy.core.multiarray._reconstruct` stays a name; the
second table (`_MAKERS`) says which description its call stands for. Arrays are made at the very
end, by `np.frombuffer`, after dtype, shape and size were checked.

The memory that a file may ask for is bounded by its size (`_Machine.spend`).
"""

import codecs
import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewgraft.errors import FewgraftError, reading

LARGEST_FILE = 1 << 34  # bytes
DEEPEST = 50  # containers inside each other
LONGEST_NUMBER = 64  # bytes or digits of an integer
FREE, PER_BYTE = 256 << 20, 8  # memory that is granted: so much, and so much per byte of the file
SHARED = 10  # how many times more items than opcodes may be reached, by sharing containers
LONGEST_KEY = 1000  # bytes or characters
LARGEST_KEY = 1 << 63  # far larger integers can be chosen so that they all have the same hash
LARGEST_PLACE = 1 << 32  # of the memo
MOST_DIMENSIONS = 8
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
TEXTS = ("S", "U")  # followed by a length
OBJECT = "O"
ORDERS = ("<", ">", "=", "|")
LARGEST_TEXT = 1 << 20  # characters of one item of an array of text


class _RefusedError(Exception):
    """The pickle asks for something that is neither a container nor an array."""


class _DamagedError(Exception):
    """The bytes are no pickle, or describe an impossible array."""


def load_plain_pickle(path: Path) -> Any:
    """The content of a pickle, with text keys even if Python 2 wrote it.

    Arrays are read-only views of the file, which the system pages in and out. An array of objects
    comes back as a list.
    """
    with reading(path, "readable pickle"):
        if path.exists() and not path.is_file():
            raise FewgraftError(f"{path} is not a file")
        try:
            return _with_text_keys(_loaded(path))
        except _RefusedError as refused:
            raise FewgraftError(
                f"{path} asks for {refused} while it is loaded: refused",
                "Only plain containers and NumPy arrays are read from pickles. Do not open this "
                "file with anything else unless you know who made it.",
            ) from None


def _loaded(path: Path) -> Any:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            raise _DamagedError("it is empty")
        if size > LARGEST_FILE:
            raise _DamagedError(f"it is larger than {LARGEST_FILE >> 30} GB")
        return interpret(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def interpret(data: memoryview) -> Any:
    """What the pickle in `data` describes."""
    machine = _Machine(data)
    machine.run()
    finish = _Finish(SHARED * machine.steps + 1000, SHARED * len(data) + FREE)
    return finish.value(machine.pop(), 0)


# --- inert values ---


class _Mark:
    """Where the items of a container begin on the stack."""


_MARK = _Mark()


@dataclass(frozen=True)
class _Name:
    """A module and a name in it; never what they stand for."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class _OldText:
    """A string of Python 2: text for whoever reads it, bytes where it is the data of an array."""

    raw: memoryview

    def __str__(self) -> str:
        return str(self.raw, "latin1")


@dataclass
class _DType:
    """The description of a dtype."""

    kind: str  # such as "u1", "U12" or "O"
    order: str = "="


@dataclass
class _Array:
    """The description of an array, empty until it is told its state."""

    shape: tuple[int, ...] = (0,)
    dtype: _DType = field(default_factory=lambda: _DType("u1"))
    fortran: bool = False
    data: memoryview | list[Any] = field(default_factory=lambda: memoryview(b""))
    axes: tuple[int, ...] | None = None  # their order, where it is not the usual one


# --- the machine ---


class _Machine:
    """A stack, a memo and a place in the bytes."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.place = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.steps = 0
        self._granted = FREE + PER_BYTE * len(data)

    def run(self) -> None:
        """Until the opcode that ends a pickle."""
        data, end = self.data, len(self.data)
        while self.place < end:
            opcode = data[self.place]
            self.place += 1
            if opcode == _STOP:
                return
            step = _OPCODES.get(opcode)
            if step is None:
                raise _RefusedError(_why_not(opcode))
            self.steps += 1
            step(self)
        raise _DamagedError("it ends too early")

    def spend(self, size: int) -> None:
        """Account for memory before it is taken."""
        self._granted -= size
        if self._granted < 0:
            raise _DamagedError("it asks for far more memory than its size explains")

    def push(self, value: Any, size: int = 64) -> None:
        self.spend(size)
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise _DamagedError("something is missing on its stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """The top of the stack, which stays there."""
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise _DamagedError(f"there is no {kind.__name__} to add to")
        return self.stack[-1]

    def pop_items(self) -> list[Any]:
        """All that is above the last mark; the mark goes too."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise _DamagedError("a mark is missing on its stack")

    def bytes(self, count: int) -> memoryview:
        """The next bytes, without a copy."""
        if count < 0 or count > len(self.data) - self.place:
            raise _DamagedError("it ends too early")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.bytes(layout.size))[0]

    def line(self) -> memoryview:
        """The bytes up to the next line end."""
        start = self.place
        step = 4096
        while self.place < len(self.data):
            found = bytes(self.data[self.place : self.place + step]).find(b"\n")
            if found >= 0:
                self.place += found + 1
                return self.data[start : self.place - 1]
            self.place += step
        raise _DamagedError("it ends too early")


_U1, _U2, _U4, _U8 = (struct.Struct(f"<{code}") for code in "BHIQ")
_I4, _FLOAT = struct.Struct("<i"), struct.Struct(">d")


def _text(raw: memoryview) -> str:
    return str(raw, "utf-8", "surrogatepass")


def _integer(text: memoryview) -> int:
    if len(text) > LONGEST_NUMBER:
        raise _DamagedError("it holds a number that is too long")
    return int(str(text, "ascii"))


def _bool_or_integer(machine: _Machine) -> None:
    text = machine.line()
    bools = {b"00": False, b"01": True}
    machine.push(bools[bytes(text)] if bytes(text[:3]) in bools else _integer(text))


def _long(machine: _Machine) -> None:
    text = machine.line()
    machine.push(_integer(text[:-1] if bytes(text[-1:]) == b"L" else text))


def _binary_long(layout: struct.Struct) -> "_Step":
    def step(machine: _Machine) -> None:
        size = machine.number(layout)
        if size > LONGEST_NUMBER:
            raise _DamagedError("it holds a number that is too long")
        machine.push(int.from_bytes(machine.bytes(size), "little", signed=True))

    return step


def _quoted(machine: _Machine) -> None:
    """A string of Python 2 as its source would show it."""
    text = bytes(machine.line()).strip()
    if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
        raise _DamagedError("it holds a string without quotes")
    raw, _ = codecs.escape_decode(text[1:-1])
    machine.push(_OldText(memoryview(raw)), 128 + len(raw))


def _escaped(machine: _Machine) -> None:
    line = bytes(machine.line())
    text, _ = codecs.raw_unicode_escape_decode(line)
    machine.push(text, 64 + 4 * len(line))


def _sized(layout: struct.Struct, made: Callable[[memoryview], Any], copies: int) -> "_Step":
    """A length, and so many bytes that something is made of; `copies` bytes are needed for each."""

    def step(machine: _Machine) -> None:
        raw = machine.bytes(machine.number(layout))
        machine.spend(copies * len(raw))
        machine.push(made(raw), 128)

    return step


def _put(machine: _Machine, key: int) -> None:
    if not machine.stack:
        raise _DamagedError("something is missing on its stack")
    if not 0 <= key < LARGEST_PLACE:
        raise _DamagedError("it numbers what it keeps in an impossible way")
    machine.spend(100)
    machine.memo[key] = machine.stack[-1]


def _get(machine: _Machine, key: int) -> None:
    if key not in machine.memo:
        raise _DamagedError("it refers to something that it does not hold")
    machine.push(machine.memo[key], 16)


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.spend(16)
    machine.top(list).append(value)


def _appends(machine: _Machine) -> None:
    items = machine.pop_items()
    machine.spend(16 * len(items))
    machine.top(list).extend(items)


def _add_items(machine: _Machine) -> None:
    items = machine.pop_items()
    machine.spend(100 * len(items))
    machine.top(set).update(_key(item) for item in items)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.spend(200)
    machine.top(dict)[_key(key)] = value


def _set_items(machine: _Machine) -> None:
    items = machine.pop_items()
    machine.spend(100 * len(items))
    machine.top(dict).update(_pairs(items))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise _DamagedError("a dictionary has a key without a value")
    return {_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _key(value: Any) -> Any:
    """Keys and members of sets are short scalars: others could be made to hash for ever."""
    size = value.raw.nbytes if isinstance(value, _OldText) else _length(value)
    if size > LONGEST_KEY:
        raise _DamagedError("it uses a long text as a key")
    if isinstance(value, int) and not -LARGEST_KEY <= value < LARGEST_KEY:
        raise _DamagedError("it uses a large number as a key")
    return _scalar(value)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | memoryview) else 0


def _set_of(items: list[Any]) -> set[Any]:
    return {_key(item) for item in items}


def _of_items(made: Callable[[list[Any]], Any]) -> "_Step":
    """A container of all items above the last mark."""

    def step(machine: _Machine) -> None:
        items = machine.pop_items()
        machine.push(made(items), 250 + 100 * len(items))

    return step


def _tuple(count: int) -> "_Step":
    def step(machine: _Machine) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.push(tuple(reversed(items)), 100)

    return step


def _constant(value: Any) -> "_Step":
    return lambda machine: machine.push(value, 16)


def _empty(kind: type) -> "_Step":
    return lambda machine: machine.push(kind(), 250)


def _read(layout: struct.Struct) -> "_Step":
    return lambda machine: machine.push(machine.number(layout))


def _global(machine: _Machine) -> None:
    module, name = (_text(machine.line()) for _ in range(2))
    machine.push(_known_name(module, name), 200)


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise _DamagedError("it names something by what is no text")
    machine.push(_known_name(module, name), 200)


def _known_name(module: str, name: str) -> _Name:
    found = _Name(module, name)
    if found not in _MAKERS and found not in _ONLY_NAMES:
        raise _RefusedError(f"{module}.{name}"[:200])
    return found


def _reduce(machine: _Machine) -> None:
    arguments, name = machine.pop(), machine.pop()
    if not isinstance(arguments, tuple) or not isinstance(name, _Name):
        raise _RefusedError("a call of what is no name")
    if name not in _MAKERS:
        raise _RefusedError(f"a call of {name}")
    fewest, most, make = _MAKERS[name]
    if not fewest <= len(arguments) <= most:
        raise _DamagedError(f"it gives {name} {len(arguments)} arguments")
    machine.push(make(machine, *arguments), 250)


def _build(machine: _Machine) -> None:
    state = machine.pop()
    target = machine.stack[-1] if machine.stack else None
    if isinstance(target, _DType):
        _tell_dtype(target, state)
    elif isinstance(target, _Array):
        _tell_array(target, state)
    else:
        raise _RefusedError("the state of something that is no array to be set")


def _tell_dtype(dtype: _DType, state: Any) -> None:
    """(version, byte order, subdtype, names, fields, size, alignment, flags, ...)."""
    if not isinstance(state, tuple) or len(state) < 5 or any(s is not None for s in state[2:5]):
        raise _DamagedError("a dtype has parts")
    dtype.order = _short(state[1])
    if dtype.order not in ORDERS:
        raise _DamagedError(f"the byte order of a dtype is {dtype.order!r}")


def _tell_array(array: _Array, state: Any) -> None:
    """(version, shape, dtype, in Fortran's order, data); old files leave the version out."""
    if not isinstance(state, tuple) or len(state) not in (4, 5):
        raise _DamagedError("an array has an unknown form")
    shape, dtype, fortran, data = state[-4:]
    array.shape, array.dtype = _shape(shape), _dtype(dtype)
    array.fortran, array.data = bool(fortran), _content(data)


def _shape(value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, tuple) else (value,)
    if len(sizes) > MOST_DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 40 for n in sizes):
        raise _DamagedError("an array has an impossible shape")
    return sizes


def _dtype(value: Any) -> _DType:
    if not isinstance(value, _DType):
        raise _DamagedError("an array has no dtype")
    return value


def _content(value: Any) -> memoryview | list[Any]:
    if isinstance(value, _OldText):
        return value.raw
    if isinstance(value, bytes | memoryview):
        return memoryview(value)
    if isinstance(value, list):
        return value
    raise _DamagedError("an array holds no bytes")


def _short(value: Any) -> str:
    """Text in whatever way it was written, if it is short."""
    if isinstance(value, bytes | memoryview) and len(value) <= 20:
        return str(value, "latin1")
    if isinstance(value, _OldText) and len(value.raw) <= 20:
        return str(value)
    if isinstance(value, str) and len(value) <= 20:
        return value
    raise _DamagedError("a short text is missing")


# --- what calls stand for ---


def _make_dtype(_: _Machine, kind: Any, _align: Any = 0, _copy: Any = 1) -> _DType:
    text = _short(kind)
    order, bare = (text[0], text[1:]) if text[:1] in ORDERS else ("=", text)
    if bare.rstrip("0123456789") == OBJECT:
        return _DType(OBJECT)
    length = bare[1:]
    if bare in NUMBERS or (
        bare[:1] in TEXTS and length.isdecimal() and int(length) <= LARGEST_TEXT
    ):
        return _DType(bare, order)
    raise _RefusedError(f"an array of {text!r}")


def _make_array(_: _Machine, _kind: Any, _shape: Any, _typecode: Any) -> _Array:
    """`_reconstruct(ndarray, (0,), b"b")`: the state comes later."""
    return _Array()


def _make_from_buffer(
    _: _Machine, data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None
) -> _Array:
    array = _Array(_shape(shape), _dtype(dtype), _short(order) == "F", _content(data))
    if axes is not None:
        array.axes = _shape(axes)
        if sorted(array.axes) != list(range(len(array.shape))):
            raise _DamagedError("the axes of an array are not all there")
    return array


def _make_scalar(machine: _Machine, dtype: Any, data: Any) -> Any:
    described, content = _dtype(dtype), _content(data)
    if described.kind == OBJECT or isinstance(content, list):
        raise _RefusedError("a scalar that is an object")
    machine.spend(4 * content.nbytes)
    return _array(_Array((1,), described, data=content)).tolist()[0]


def _make_bytes(machine: _Machine, text: Any = "", encoding: Any = "latin1") -> bytes:
    """What `_codecs.encode` does in pickles of protocol 2 and lower: bytes written as text."""
    if _short(encoding) not in ("latin1", "latin-1"):
        raise _DamagedError(f"it asks for the encoding {_short(encoding)}")
    if isinstance(text, _OldText):
        text = text.raw
    if not isinstance(text, str | bytes | memoryview):
        raise _DamagedError("bytes are made of what is no text")
    machine.spend(len(text))
    return text.encode("latin1") if isinstance(text, str) else bytes(text)


def _make_set(machine: _Machine, items: Any = ()) -> set[Any]:
    if not isinstance(items, list | tuple):
        raise _DamagedError("a set is made of what is no list")
    machine.spend(100 * len(items))
    return _set_of(list(items))


def _make_dict(machine: _Machine, pairs: Any = ()) -> dict[Any, Any]:
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise _DamagedError("a dictionary is made of what are no pairs")
    machine.spend(200 * len(pairs))
    return {_key(key): value for key, value in pairs}


# NumPy 2 moved `numpy.core` to `numpy._core`; files written by either must load under either.
_CORES = ("numpy.core", "numpy._core")
_BUILTINS = ("builtins", "__builtin__")  # the second is Python 2's name, kept by old protocols
_Maker = Callable[..., Any]
# {name: (fewest arguments, most arguments, what its call stands for)}
_MAKERS: dict[_Name, tuple[int, int, _Maker]] = {
    _Name("numpy", "dtype"): (1, 3, _make_dtype),
    _Name("_codecs", "encode"): (1, 2, _make_bytes),
    _Name("collections", "OrderedDict"): (0, 1, _make_dict),
    **{_Name(f"{core}.multiarray", "_reconstruct"): (3, 3, _make_array) for core in _CORES},
    **{_Name(f"{core}.multiarray", "scalar"): (2, 2, _make_scalar) for core in _CORES},
    **{_Name(f"{core}.numeric", "_frombuffer"): (4, 5, _make_from_buffer) for core in _CORES},
    **{_Name(module, "bytes"): (0, 2, _make_bytes) for module in _BUILTINS},
    **{_Name(module, "bytearray"): (0, 2, _make_bytes) for module in _BUILTINS},
    **{_Name(module, "set"): (0, 1, _make_set) for module in _BUILTINS},
    **{_Name(module, "frozenset"): (0, 1, _make_set) for module in _BUILTINS},
}
_ONLY_NAMES = {_Name("numpy", "ndarray")}  # an argument of `_reconstruct`, never called

_Step = Callable[[_Machine], None]
_STOP = ord(".")
_OPCODES: dict[int, _Step] = {
    opcode[0]: step
    for opcode, step in {
        # the file
        b"\x80": lambda machine: machine.number(_U1),  # protocol
        b"\x95": lambda machine: machine.number(_U8),  # frame
        # constants and numbers
        b"N": _constant(None),
        b"\x88": _constant(True),
        b"\x89": _constant(False),
        b"I": _bool_or_integer,
        b"L": _long,
        b"F": lambda machine: machine.push(float(str(machine.line()[:100], "ascii"))),
        b"J": _read(_I4),
        b"K": _read(_U1),
        b"M": _read(_U2),
        b"G": _read(_FLOAT),
        b"\x8a": _binary_long(_U1),
        b"\x8b": _binary_long(_U4),
        # text and bytes
        b"S": _quoted,
        b"T": _sized(_U4, _OldText, 0),
        b"U": _sized(_U1, _OldText, 0),
        b"V": _escaped,
        b"X": _sized(_U4, _text, 4),
        b"\x8c": _sized(_U1, _text, 4),
        b"\x8d": _sized(_U8, _text, 4),
        b"B": _sized(_U4, memoryview, 0),
        b"C": _sized(_U1, memoryview, 0),
        b"\x8e": _sized(_U8, memoryview, 0),
        b"\x96": _sized(_U8, memoryview, 0),  # a bytearray
        # containers
        b"(": _constant(_MARK),
        b"]": _empty(list),
        b"}": _empty(dict),
        b")": _empty(tuple),
        b"\x8f": _empty(set),
        b"l": _of_items(list),
        b"d": _of_items(_pairs),
        b"t": _of_items(tuple),
        b"\x91": _of_items(_set_of),  # a frozenset
        b"\x85": _tuple(1),
        b"\x86": _tuple(2),
        b"\x87": _tuple(3),
        b"a": _append,
        b"e": _appends,
        b"s": _set_item,
        b"u": _set_items,
        b"\x90": _add_items,
        # the stack and the memo
        b"0": lambda machine: machine.stack.pop() if machine.stack else machine.pop(),
        b"1": lambda machine: machine.pop_items(),
        b"p": lambda machine: _put(machine, _integer(machine.line())),
        b"q": lambda machine: _put(machine, machine.number(_U1)),
        b"r": lambda machine: _put(machine, machine.number(_U4)),
        b"\x94": lambda machine: _put(machine, len(machine.memo)),
        b"g": lambda machine: _get(machine, _integer(machine.line())),
        b"h": lambda machine: _get(machine, machine.number(_U1)),
        b"j": lambda machine: _get(machine, machine.number(_U4)),
        # names, calls and states: of descriptions only
        b"c": _global,
        b"\x93": _stack_global,
        b"R": _reduce,
        b"b": _build,
    }.items()
}
_REFUSED = {
    b"P": "a persistent id",
    b"Q": "a persistent id",
    b"i": "an instance of a class",
    b"o": "an instance of a class",
    b"\x81": "an instance of a class",
    b"\x92": "an instance of a class",
    b"\x82": "an extension",
    b"\x83": "an extension",
    b"\x84": "an extension",
    b"\x97": "a buffer from elsewhere",
    b"\x98": "a buffer from elsewhere",
}


def _why_not(opcode: int) -> str:
    known = _REFUSED.get(bytes([opcode]))
    if known is None:
        raise _DamagedError(f"it holds the unknown opcode {opcode:#04x}")
    return known


# --- from descriptions to arrays ---


class _Finish:
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
        if isinstance(inert, memoryview | _OldText):
            return self._done.setdefault(id(inert), (_scalar(inert), 1))
        if not isinstance(inert, list | tuple | dict | set | _Array):
            return _scalar(inert), 1
        if isinstance(inert, _Array) and not isinstance(inert.data, list):
            self._bytes_left -= inert.data.nbytes
            if self._bytes_left < 0:
                raise _DamagedError("it is small, but describes far too much")
            return self._done.setdefault(id(inert), (_array(inert), 1))
        if depth > DEEPEST or id(inert) in self._open:
            raise _DamagedError("it nests too deeply, or holds itself")
        self._open.add(id(inert))
        made = self._container(inert, depth + 1)
        self._open.remove(id(inert))
        if made[1] > self._most:
            raise _DamagedError("it is small, but describes far too much")
        self._done[id(inert)] = made
        return made

    def _container(self, inert: Any, depth: int) -> tuple[Any, int]:
        if isinstance(inert, set):
            return set(inert), 1 + len(inert)
        if isinstance(inert, _Array):
            inert = _objects(inert)
        items = inert.values() if isinstance(inert, dict) else inert
        finished = [self._finished(item, depth) for item in items]
        values, total = [value for value, _ in finished], 1 + sum(size for _, size in finished)
        if isinstance(inert, dict):
            return dict(zip(inert, values, strict=True)), total
        return (tuple(values) if isinstance(inert, tuple) else values), total


def _scalar(inert: Any) -> Any:
    """Numbers, text and bytes as they are; whatever else was left over is refused."""
    if isinstance(inert, _OldText):
        return str(inert)
    if isinstance(inert, memoryview):
        return bytes(inert)
    if inert is None or isinstance(inert, str | bytes | int | float):
        return inert
    raise _DamagedError(f"it holds a bare {type(inert).__name__.strip('_').lower()}")


def _objects(array: _Array) -> list[Any]:
    """An array of objects is a list here; the objects are finished like any others."""
    assert isinstance(array.data, list)
    if array.dtype.kind != OBJECT or array.shape != (len(array.data),):
        raise _DamagedError("an array of objects does not have the size that it claims")
    return array.data


def _array(array: _Array) -> NDArray[Any]:
    """A read-only view of the bytes, once everything about it was found possible."""
    if array.dtype.kind == OBJECT or isinstance(array.data, list):
        raise _DamagedError("an array of objects holds bytes")
    count = math.prod(array.shape)
    order = array.dtype.order if array.dtype.order in "<>" else "<"
    dtype = np.dtype(f"{order}{array.dtype.kind}")
    if dtype.itemsize == 0 or count * dtype.itemsize != array.data.nbytes:
        raise _DamagedError(
            f"an array claims {count * dtype.itemsize} bytes and has {array.data.nbytes}"
        )
    flat = np.frombuffer(array.data, np.dtype("u1") if dtype.kind == "b" else dtype)
    if dtype.kind == "b":
        flat = flat != 0
    if dtype.kind == "U" and count and flat.view(f"{order}u4").max() > 0x10FFFF:
        raise _DamagedError("an array of text holds what is no character")
    whole = flat.reshape(array.shape, order="F" if array.fortran else "C")
    return whole if array.axes is None else whole.transpose(array.axes)


def _with_text_keys(content: Any) -> Any:
    """Python 2 wrote keys as bytes or as text, as it happened."""
    if isinstance(content, dict):
        return {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()}
    return content
