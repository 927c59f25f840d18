"""What an attack is, and what it leaves: how often it was tried and what failed."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fewgraft.progress import track

SHOWN = 20  # failures that are told one by one


@dataclass
class Trial:
    """One run of an attack: where it works, how long it goes on, and what it found."""

    folder: Path  # empty, and its own
    scale: float  # 1: the whole campaign
    random: random.Random
    tried: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # figures for the table, such as "peak 240 MB"

    def rounds(self, whole: int, what: str) -> Iterator[int]:
        """0 … n−1 with progress, where n is `whole` times the scale and at least 1."""
        count = max(1, round(whole * self.scale))
        yield from track(range(count), what, count)

    def check(self, held: bool, failure: str) -> None:
        """Count one try; `failure` says what did not hold, and with which input."""
        self.tried += 1
        if held:
            return
        self.failed += 1
        if len(self.failures) < SHOWN:
            self.failures.append(failure)


@dataclass(frozen=True)
class Attack:
    """A row of the table."""

    name: str  # as the table calls it: "mutated pictures"
    promise: str  # what must hold: "a reason, never an exception"
    run: Callable[[Trial], None]
    needs: tuple[str, ...] = ()  # programs of the system, such as strace


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def clean(self) -> bool:
        """Done, or refused in words; neither a traceback nor a crash."""
        return self.code in (0, 2) and "Traceback" not in self.err


def fewgraft(
    *words: str | Path,
    home: Path,
    cwd: Path | None = None,
    timeout: float = 600,
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> Said:
    """Run the real command in a process of its own; `before` are words in front, such as strace."""
    command = [*before, sys.executable, "-P", "-m", "fewgraft", *map(str, words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
        cwd=cwd,
        env=environment(home) | dict(env or {}),
        stdin=subprocess.DEVNULL,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def environment(home: Path) -> dict[str, str]:
    """This process's, with data and features in `home`, and one thread per process."""
    own = {"FEWGRAFT_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return dict(os.environ) | own
