"""The opcodes that data sets are made of: one table."""

import codecs
import struct
from collections.abc import Callable
from typing import Any

from fewgraft.data.safe_pickle.inert import (
    MARK,
    Array,
    DamagedError,
    DType,
    Name,
    OldText,
    RefusedError,
    key_of,
)
from fewgraft.data.safe_pickle.machine import Machine
from fewgraft.data.safe_pickle.makers import MAKERS, ONLY_NAMES, tell_array, tell_dtype

LONGEST_NUMBER = 64  # bytes or digits of an integer
LARGEST_PLACE = 1 << 32  # of the memo
_U1, _U2, _U4, _U8 = (struct.Struct(f"<{code}") for code in "BHIQ")
_I4, _FLOAT = struct.Struct("<i"), struct.Struct(">d")


def _text(raw: memoryview) -> str:
    return str(raw, "utf-8", "surrogatepass")


def _integer(text: memoryview) -> int:
    if len(text) > LONGEST_NUMBER:
        raise DamagedError("it holds a number that is too long")
    return int(str(text, "ascii"))


def _bool_or_integer(machine: Machine) -> None:
    text = machine.line()
    bools = {b"00": False, b"01": True}
    machine.push(bools[bytes(text)] if bytes(text[:3]) in bools else _integer(text))


def _long(machine: Machine) -> None:
    text = machine.line()
    machine.push(_integer(text[:-1] if bytes(text[-1:]) == b"L" else text))


def _binary_long(layout: struct.Struct) -> "_Step":
    def step(machine: Machine) -> None:
        size = machine.number(layout)
        if size > LONGEST_NUMBER:
            raise DamagedError("it holds a number that is too long")
        machine.push(int.from_bytes(machine.bytes(size), "little", signed=True))

    return step


def _quoted(machine: Machine) -> None:
    """A string of Python 2 as its source would show it."""
    text = bytes(machine.line()).strip()
    if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
        raise DamagedError("it holds a string without quotes")
    raw, _ = codecs.escape_decode(text[1:-1])
    machine.push(OldText(memoryview(raw)), 128 + len(raw))


def _escaped(machine: Machine) -> None:
    line = bytes(machine.line())
    text, _ = codecs.raw_unicode_escape_decode(line)
    machine.push(text, 64 + 4 * len(line))


def _sized(layout: struct.Struct, made: Callable[[memoryview], Any], copies: int) -> "_Step":
    """A length, and so many bytes that something is made of; `copies` bytes are needed for each."""

    def step(machine: Machine) -> None:
        raw = machine.bytes(machine.number(layout))
        machine.spend(copies * len(raw))
        machine.push(made(raw), 128)

    return step


def _put(machine: Machine, key: int) -> None:
    if not machine.stack:
        raise DamagedError("something is missing on its stack")
    if not 0 <= key < LARGEST_PLACE:
        raise DamagedError("it numbers what it keeps in an impossible way")
    machine.spend(100)
    machine.memo[key] = machine.stack[-1]


def _get(machine: Machine, key: int) -> None:
    if key not in machine.memo:
        raise DamagedError("it refers to something that it does not hold")
    machine.push(machine.memo[key], 16)


def _append(machine: Machine) -> None:
    value = machine.pop()
    machine.spend(16)
    machine.top(list).append(value)


def _appends(machine: Machine) -> None:
    items = machine.pop_items()
    machine.spend(16 * len(items))
    machine.top(list).extend(items)


def _add_items(machine: Machine) -> None:
    items = machine.pop_items()
    machine.spend(100 * len(items))
    machine.top(set).update(key_of(item) for item in items)


def _set_item(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.spend(200)
    machine.top(dict)[key_of(key)] = value


def _set_items(machine: Machine) -> None:
    items = machine.pop_items()
    machine.spend(100 * len(items))
    machine.top(dict).update(_pairs(items))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise DamagedError("a dictionary has a key without a value")
    return {key_of(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _of_items(made: Callable[[list[Any]], Any]) -> "_Step":
    """A container of all items above the last mark."""

    def step(machine: Machine) -> None:
        items = machine.pop_items()
        machine.push(made(items), 250 + 100 * len(items))

    return step


def _tuple(count: int) -> "_Step":
    def step(machine: Machine) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.push(tuple(reversed(items)), 100)

    return step


def _constant(value: Any) -> "_Step":
    return lambda machine: machine.push(value, 16)


def _empty(kind: type) -> "_Step":
    return lambda machine: machine.push(kind(), 250)


def _read(layout: struct.Struct) -> "_Step":
    return lambda machine: machine.push(machine.number(layout))


def _global(machine: Machine) -> None:
    module, name = (_text(machine.line()) for _ in range(2))
    machine.push(_known_name(module, name), 200)


def _stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise DamagedError("it names something by what is no text")
    machine.push(_known_name(module, name), 200)


def _known_name(module: str, name: str) -> Name:
    found = Name(module, name)
    if found not in MAKERS and found not in ONLY_NAMES:
        raise RefusedError(f"{module}.{name}"[:200])
    return found


def _reduce(machine: Machine) -> None:
    arguments, name = machine.pop(), machine.pop()
    if not isinstance(arguments, tuple) or not isinstance(name, Name):
        raise RefusedError("a call of what is no name")
    if name not in MAKERS:
        raise RefusedError(f"a call of {name}")
    fewest, most, make = MAKERS[name]
    if not fewest <= len(arguments) <= most:
        raise DamagedError(f"it gives {name} {len(arguments)} arguments")
    machine.push(make(machine, *arguments), 250)


def _build(machine: Machine) -> None:
    state = machine.pop()
    target = machine.stack[-1] if machine.stack else None
    if isinstance(target, DType):
        tell_dtype(target, state)
    elif isinstance(target, Array):
        tell_array(target, state)
    else:
        raise RefusedError("the state of something that is no array to be set")


_Step = Callable[[Machine], None]
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
        b"T": _sized(_U4, OldText, 0),
        b"U": _sized(_U1, OldText, 0),
        b"V": _escaped,
        b"X": _sized(_U4, _text, 4),
        b"\x8c": _sized(_U1, _text, 4),
        b"\x8d": _sized(_U8, _text, 4),
        b"B": _sized(_U4, memoryview, 0),
        b"C": _sized(_U1, memoryview, 0),
        b"\x8e": _sized(_U8, memoryview, 0),
        b"\x96": _sized(_U8, memoryview, 0),  # a bytearray
        # containers
        b"(": _constant(MARK),
        b"]": _empty(list),
        b"}": _empty(dict),
        b")": _empty(tuple),
        b"\x8f": _empty(set),
        b"l": _of_items(list),
        b"d": _of_items(_pairs),
        b"t": _of_items(tuple),
        b"\x91": _of_items(lambda items: {key_of(item) for item in items}),  # a frozenset
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
        raise DamagedError(f"it holds the unknown opcode {opcode:#04x}")
    return known


def run(machine: Machine) -> None:
    """Until the opcode that ends a pickle."""
    data, end = machine.data, len(machine.data)
    while machine.place < end:
        opcode = data[machine.place]
        machine.place += 1
        if opcode == _STOP:
            return
        step = _OPCODES.get(opcode)
        if step is None:
            raise RefusedError(_why_not(opcode))
        machine.steps += 1
        step(machine)
    raise DamagedError("it ends too early")
