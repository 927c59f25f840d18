"""Foreign pickles, read without running them: plain containers and NumPy arrays, nothing else.

A pickle is a program, and NumPy's own constructors are not safe on hostile input. So Python's
unpickler is not used at all. `opcodes` interprets the opcodes that data sets are made of, one table
of them. What they build is inert (`inert`): numbers, text, bytes, containers of our own making, and
descriptions of arrays. A name such as `numpy.core.multiarray._reconstruct` stays a name; a second
table (`makers`) says which description its call stands for. Arrays are made at the very end
(`finish`), by `np.frombuffer`, after dtype, shape and size were checked.

The memory that a file may ask for is bounded by its size (`machine`).
"""

import mmap
from pathlib import Path
from typing import Any

from fewgraft.data.safe_pickle.finish import Finish
from fewgraft.data.safe_pickle.inert import DamagedError, RefusedError
from fewgraft.data.safe_pickle.machine import FREE, Machine
from fewgraft.data.safe_pickle.opcodes import run
from fewgraft.errors import FewgraftError, reading

LARGEST_FILE = 1 << 34  # bytes
SHARED = 10  # how many times more items than opcodes may be reached, by sharing containers


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
        except RefusedError as refused:
            raise FewgraftError(
                f"{path} asks for {refused} while it is loaded: refused",
                "Only plain containers and NumPy arrays are read from pickles. Do not open this "
                "file with anything else unless you know who made it.",
            ) from None


def _loaded(path: Path) -> Any:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            raise DamagedError("it is empty")
        if size > LARGEST_FILE:
            raise DamagedError(f"it is larger than {LARGEST_FILE >> 30} GB")
        return interpret(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def interpret(data: memoryview) -> Any:
    """What the pickle in `data` describes."""
    machine = Machine(data)
    run(machine)
    finish = Finish(SHARED * machine.steps + 1000, SHARED * len(data) + FREE)
    return finish.value(machine.pop(), 0)


def _with_text_keys(content: Any) -> Any:
    """Python 2 wrote keys as bytes or as text, as it happened."""
    if isinstance(content, dict):
        return {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()}
    return content
