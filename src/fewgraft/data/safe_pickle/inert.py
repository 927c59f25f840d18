"""What a pickle builds here: numbers, text, bytes, containers and descriptions of arrays."""

from dataclasses import dataclass, field
from typing import Any

LONGEST_KEY = 1000  # bytes or characters
LARGEST_KEY = 1 << 63  # far larger integers can be chosen so that they all have the same hash
MOST_DIMENSIONS = 8
OBJECT = "O"


class RefusedError(Exception):
    """The pickle asks for something that is neither a container nor an array."""


class DamagedError(Exception):
    """The bytes are no pickle, or describe an impossible array."""


class _Mark:
    """Where the items of a container begin on the stack."""


MARK = _Mark()


@dataclass(frozen=True)
class Name:
    """A module and a name in it; never what they stand for."""

    module: str
    name: str

    def __str__(self) -> str:
        """As Python would write it."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class OldText:
    """A string of Python 2: text for whoever reads it, bytes where it is the data of an array."""

    raw: memoryview

    def __str__(self) -> str:
        """Each byte is a character."""
        return str(self.raw, "latin1")


@dataclass
class DType:
    """The description of a dtype."""

    kind: str  # such as "u1", "U12" or "O"
    order: str = "="


@dataclass
class Array:
    """The description of an array, empty until it is told its state."""

    shape: tuple[int, ...] = (0,)
    dtype: DType = field(default_factory=lambda: DType("u1"))
    fortran: bool = False
    data: memoryview | list[Any] = field(default_factory=lambda: memoryview(b""))
    axes: tuple[int, ...] | None = None  # their order, where it is not the usual one


def short_text(value: Any) -> str:
    """Text in whatever way it was written, if it is short."""
    if isinstance(value, bytes | memoryview) and len(value) <= 20:
        return str(value, "latin1")
    if isinstance(value, OldText) and len(value.raw) <= 20:
        return str(value)
    if isinstance(value, str) and len(value) <= 20:
        return value
    raise DamagedError("a short text is missing")


def shape_of(value: Any) -> tuple[int, ...]:
    """A shape that an array can have."""
    sizes = value if isinstance(value, tuple) else (value,)
    if len(sizes) > MOST_DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 40 for n in sizes):
        raise DamagedError("an array has an impossible shape")
    return sizes


def dtype_of(value: Any) -> DType:
    """A description of a dtype."""
    if not isinstance(value, DType):
        raise DamagedError("an array has no dtype")
    return value


def content_of(value: Any) -> memoryview | list[Any]:
    """The bytes of an array, or the list of its objects."""
    if isinstance(value, OldText):
        return value.raw
    if isinstance(value, bytes | memoryview):
        return memoryview(value)
    if isinstance(value, list):
        return value
    raise DamagedError("an array holds no bytes")


def scalar(inert: Any) -> Any:
    """Numbers, text and bytes as they are; whatever else was left over is refused."""
    if isinstance(inert, OldText):
        return str(inert)
    if isinstance(inert, memoryview):
        return bytes(inert)
    if inert is None or isinstance(inert, str | bytes | int | float):
        return inert
    raise DamagedError(f"it holds a bare {type(inert).__name__.strip('_').lower()}")


def key_of(value: Any) -> Any:
    """Keys and members of sets are short scalars: others could be made to hash for ever."""
    size = value.raw.nbytes if isinstance(value, OldText) else _length(value)
    if size > LONGEST_KEY:
        raise DamagedError("it uses a long text as a key")
    if isinstance(value, int) and not -LARGEST_KEY <= value < LARGEST_KEY:
        raise DamagedError("it uses a large number as a key")
    return scalar(value)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | memoryview) else 0
