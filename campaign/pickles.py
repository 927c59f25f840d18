"""Hostile pickles: valid files that were damaged, and programs of random opcodes.

They are loaded in a process of its own, which may neither die nor do anything but read: a call that
Python audits (opening another file, starting a process, importing, compiling) counts as a failure.
"""

import collections
import contextlib
import io
import pickle
import random
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from campaign.attack import Attack, Trial

BATCH = 2000
MEMORY = 3 << 30  # bytes that the loading process may map
WATCHED = ("os.", "subprocess.", "open", "exec", "compile", "import", "socket.", "ctypes.", "code")
PLAIN = (type(None), bool, int, float, str, bytes)
NAMES = (
    b"numpy\nndarray\n",
    b"numpy\ndtype\n",
    b"numpy.core.multiarray\n_reconstruct\n",
    b"numpy._core.multiarray\nscalar\n",
    b"numpy._core.numeric\n_frombuffer\n",
    b"_codecs\nencode\n",
    b"collections\nOrderedDict\n",
    b"__builtin__\nset\n",
    b"builtins\nbytearray\n",
    b"os\nsystem\n",
    b"builtins\neval\n",
    b"copyreg\n_reconstructor\n",
    b"numpy\nload\n",
)
PYTHON_2 = (  # {"data": array([[97, 98], [99, 100]], uint8)}, protocol 0
    b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n"
    b"(I0\ntp4\nS'b'\np5\ntp6\nRp7\n(I1\n(I2\nI2\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\nI1\n"
    b"tp11\nRp12\n(I3\nS'|'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\nS'abcd'\np15\ntp16\nbs."
)
BARE = [bytes([code]) for code in b"(tRb)]}RbaesuldN"] + [
    bytes([code]) for code in (0x94, 0x85, 0x86, 0x87, 0x93, 0x8F, 0x90)
]
STATES = ("u1", "i8", "O8", "O", "V8", "U3", "S4", "f8", "b1", "<", "|", "latin1", "hex", "")


def valid_pickles() -> list[bytes]:
    """What data sets are made of, in all protocols."""
    contents: list[Any] = [
        {
            "data": np.arange(24, dtype=np.uint8).reshape(2, 12),
            "fine_labels": [1, 2],
            "filenames": ["a.png", "ä.png"],
        },
        {"labels": np.array([3, 4]), "catname2label": {"n01532829": 0, b"old": 1}, "x": {1, 2}},
        [np.arange(5, dtype=np.uint8)[:, None], np.array(["a", "bc"]), np.float32(1.5), b"", (1,)],
        collections.OrderedDict(names=np.array(["a", [1]], dtype=object), t=(None, True, 10**12)),
    ]
    return [PYTHON_2, *(pickle.dumps(content, p) for content in contents for p in range(6))]


def mutated(valid: bytes, other: bytes, chance: random.Random) -> bytes:
    """A damaged copy: bytes changed, cut, repeated, or spliced with another file."""
    data = bytearray(valid)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        place = chance.randrange(len(data) + 1)
        length = chance.choice((1, 1, 2, 8, 32))
        kind = chance.randrange(6)
        if kind == 0 and place < len(data):
            data[place] = chance.randrange(256)
        elif kind == 1:
            del data[place : place + length]
        elif kind == 2:
            data[place:place] = data[place : place + length] * chance.choice((1, 2, 50))
        elif kind == 3:
            start = chance.randrange(len(other))
            data[place:place] = other[start : start + length]
        elif kind == 4:
            data[place : place + 4] = chance.choice((b"\xff" * 4, b"\x7f" + b"\xff" * 3, bytes(4)))
        else:
            data[place:place] = chance.choice(NAMES)
    return bytes(data)


def program(chance: random.Random) -> bytes:
    """Opcodes in random order, with arguments that make sense for each."""
    out = io.BytesIO()
    out.write(b"\x80\x04")
    for _ in range(chance.randrange(2, 60)):
        out.write(_instruction(chance))
    out.write(b".")
    return out.getvalue()


def _instruction(chance: random.Random) -> bytes:
    text = chance.choice(STATES).encode()
    raw = chance.randbytes(chance.choice((0, 1, 8, 64)))
    number = chance.choice((0, 1, 2, 3, -1, 8, 2**31 - 1, -(2**31)))
    with_arguments = (
        b"c" + chance.choice(NAMES),
        chance.choice((b"U", b"\x8c", b"C")) + bytes([len(text)]) + text,
        b"J" + struct.pack("<i", number),
        chance.choice((b"h", b"q")) + bytes([chance.randrange(6)]),
        chance.choice((b"B", b"T")) + struct.pack("<I", len(raw)) + raw,
        bytes([chance.randrange(256)]),
    )
    return chance.choice((*with_arguments, *(chance.choice(BARE) for _ in range(3))))


def load_all(folder: str, files: list[bytes]) -> list[str]:
    """In the child: what went wrong with each file, or nothing."""
    import resource

    from fewgraft.data.safe_pickle import load_plain_pickle
    from fewgraft.errors import FewgraftError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    path = Path(folder) / "hostile.pickle"
    audit = Audit(path)
    found = []
    for content in files:
        path.write_bytes(content)
        with audit.listening():
            try:
                problem = not_plain(load_plain_pickle(path))
            except FewgraftError as error:
                problem = "" if str(path) in str(error) else f"names no file: {error}"
            except BaseException as error:
                problem = f"{type(error).__name__}: {error}"
        found.append(problem or "".join(audit.calls[:1]))
    return found


class Audit:
    """Hears the audited calls of this process; a hook stays for the life of the process."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._listening = False
        self.calls: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._listening or not event.startswith(WATCHED):
            return
        if event != "open" or str(arguments[0]) != self._path:
            self.calls.append(f"it called {event}")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what is called inside."""
        self.calls.clear()
        self._listening = True
        yield
        self._listening = False


def not_plain(value: Any, depth: int = 0) -> str:
    """Why a value is more than containers, scalars and arrays; empty if it is not."""
    if isinstance(value, np.ndarray):
        return (
            "" if value.dtype.kind in "biufSU" and not value.flags.writeable else str(value.dtype)
        )
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if type(value) in (list, tuple, set):
        if depth > 60:
            return "it nests too deeply"
        return next((why for item in value if (why := not_plain(item, depth + 1))), "")
    return "" if type(value) in PLAIN else f"it holds a {type(value)}"


def hostile_pickles(trial: Trial) -> None:
    """≥ 100,000 files, in batches; a batch whose process dies is looked at file by file."""
    valid = valid_pickles()
    context = get_context("spawn")
    pool = ProcessPoolExecutor(1, context, max_tasks_per_child=1)
    for number in trial.rounds(60, f"pickles, {BATCH} at a time"):
        chance = trial.random
        files = [
            mutated(chance.choice(valid), chance.choice(valid), chance)
            if number % 2
            else program(chance)
            for _ in range(BATCH)
        ]
        try:
            problems = pool.submit(load_all, str(trial.folder), files).result(timeout=300)
        except BrokenProcessPool:
            pool = ProcessPoolExecutor(1, context, max_tasks_per_child=1)
            problems = ["the process died on one of these"] * len(files)
        for content, problem in zip(files, problems, strict=True):
            trial.check(not problem, f"{problem}: {content[:200]!r}")
    pool.shutdown()


ATTACKS = (
    Attack(
        "hostile pickles",
        "plain data or a reason; no call, no crash, bounded memory",
        hostile_pickles,
    ),
)
