"""One lesson in a process of its own: predictions go on beside it, and it may die alone."""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from fewgraft.errors import FewgraftError

SAID = {
    "examples": "looking at the new photos",
    "check photos": "looking at the check photos",
    "pile": "looking through the pile",
}
LAST = "weighing what it saw"
LINES = 20  # of what it said last, to tell why it failed


def start(classifier: str, folder: Path, device: str = "cpu") -> "subprocess.Popen[str]":
    """Learn what is in `folder`; the result is `folder`/learnt, whole or absent."""
    words = ["learn", classifier, "--new", "new", "--out", "learnt", "--progress-json"]
    words += ["--device", device]
    for option, name in (("--unlabelled", "pile"), ("--check", "check")):
        if (folder / name).is_dir():
            words += [option, name]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fewgraft", *words],
        cwd=folder,  # so that photos are called pile/..., not by a folder that is cleared away
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


def watch(
    process: "subprocess.Popen[str]", photos: int, tell: Callable[[float, str], None]
) -> None:
    """Wait for the end and tell how far it is, of 1; a lesson that fails is a `FewgraftError`."""
    assert process.stderr is not None
    said: deque[str] = deque(maxlen=LINES)
    before, done = 0, 0
    what = ""
    for line in process.stderr:
        step = _progress(line)
        if step is None:
            said.append(line.rstrip())
            continue
        if step[0] != what:
            before += done
        what, done = step
        seen = before + done
        tell(0.05 + 0.85 * seen / photos, SAID.get(what, what) if seen < photos else LAST)
    if process.wait():
        raise _failure(process.returncode, list(said))


def _progress(line: str) -> tuple[str, int] | None:
    """(what, done) of a line of progress."""
    try:
        step = json.loads(line)
        return str(step["what"]), int(step["done"])
    except (ValueError, TypeError, KeyError):
        return None


def _failure(code: int, said: list[str]) -> FewgraftError:
    """What it said itself, where it did; a kill leaves no words."""
    for place, line in enumerate(said):
        if line.startswith("error: "):
            return FewgraftError(line.removeprefix("error: "), " ".join(said[place + 1 :]))
    if code < 0:
        return FewgraftError(
            f"the lesson was killed (signal {-code})",
            "Perhaps the machine ran out of memory. Nothing has changed; try it with fewer photos.",
        )
    return FewgraftError(
        f"the lesson broke off (exit code {code})", said[-1] if said else "Nothing has changed."
    )


def _environment() -> dict[str, str]:
    """Ours, with paths that stay right in another folder."""
    own = dict(os.environ)
    if paths := own.get("PYTHONPATH"):
        own["PYTHONPATH"] = os.pathsep.join(map(_absolute, paths.split(os.pathsep)))
    if home := own.get("FEWGRAFT_HOME"):
        own["FEWGRAFT_HOME"] = _absolute(home)
    return own


def _absolute(path: str) -> str:
    return str(Path(path).resolve())
