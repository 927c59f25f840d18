"""What a run writes: one JSON object a line, and TensorBoard where that is installed."""

import json
import os
from pathlib import Path
from typing import Any

from fewgraft.errors import writing
from fewgraft.files import write_atomically


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
        rows = [json.loads(line) for line in self._path.read_text().splitlines() if _whole(line)]
        kept = [json.dumps(row) + "\n" for row in rows if row["step"] <= step]
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


def _whole(line: str) -> bool:
    """A killed run may leave half a line."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step)
