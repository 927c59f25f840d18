"""What a run writes: one JSON object a line, and TensorBoard where that is installed."""

import json
import os
from pathlib import Path
from typing import Any

from fewgraft.errors import reading, writing
from fewgraft.files import write_atomically
from fewgraft.parsing import read_whole

LARGEST = 1 << 30  # bytes


class RunLog:
    """Appends to `log.jsonl`; after a resume, lines beyond the resumed step are dropped."""

    def __init__(self, folder: Path, phase: str, step: int) -> None:
        self._path = folder / f"{phase}.jsonl"
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._keep_until(step)
            self._board = _tensorboard(folder / "tensorboard" / phase, step)

    def _keep_until(self, step: int) -> None:
        if not self._path.exists():
            return
        kept = [json.dumps(row) + "\n" for row in read_log(self._path) if row["step"] <= step]
        with writing(self._path):
            write_atomically(self._path, "".join(kept).encode())

    def write(self, step: int, **values: float) -> None:
        """One line, on disk at once."""
        with writing(self._path), self._path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint that is there has the log that led to it
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)


def read_log(path: Path) -> list[dict[str, float]]:
    """The rows of a log; what is none is skipped: a killed run may leave half a line."""
    with reading(path, "readable log"):
        lines = read_whole(path, LARGEST).decode(errors="replace").splitlines()
    return [row for row in map(_row, lines) if row]


def _row(line: str) -> dict[str, float]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(row, dict) or "step" not in row:
        return {}
    return row if all(type(value) in (int, float) for value in row.values()) else {}


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step)
