"""Results on disk: one complete row a (method, setting, shots), per-episode scores beside them.

A row is appended to `results.jsonl` only when its scores are there, so that whatever was
interrupted is simply not there yet.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from fewgraft.errors import FewgraftError, nearest, writing
from fewgraft.files import append_line, behind_links, make_folder, write_atomically
from fewgraft.locks import Busy, Lock, hold_lock, take_lock
from fewgraft.metrics import Interval, Scores

FILE = "results.jsonl"


class Row(BaseModel):
    """Everything that is needed to print a result, and to compute it again."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    recipe: str  # name
    method: str
    title: str
    setting: str
    shots: int
    episodes: int
    split: str
    hyper: dict[str, Any]  # all hyper-parameters of the method
    stage: str  # which model
    models: str  # folder of the models
    weights: str  # hash
    backbone: str
    data: str  # name
    content: str  # hash of the data
    episode_settings: dict[str, Any]
    episode_hash: str
    n_base: int
    ways: int
    metrics: dict[str, tuple[float | None, float | None]]  # mean and half an interval, shares
    seconds: float
    versions: dict[str, str]
    machine: str

    def interval(self, metric: str) -> Interval:
        """A metric with its interval; NaN where the setting does not have it."""
        mean, half = (float("nan") if v is None else v for v in self.metrics[metric])
        return Interval(mean, half)


def row_id(identity: dict[str, Any]) -> str:
    """A name for what a row measures: the same settings give the same name."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


class Results:
    """A folder of results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self) -> list[Row]:
        """All rows in the order they were made; of rows with the same name, the last one."""
        path = self.folder / FILE
        if not path.is_file():
            return []
        found: dict[str, Row] = {}
        *lines, _ = path.read_text().split("\n")  # what follows the last line end is torn
        for number, line in enumerate(lines, 1):
            try:
                row = Row.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                raise FewgraftError(
                    f"{path}, line {number} is damaged: {first['msg']}",
                    "Remove that line; the same command makes the row again.",
                ) from None
            found[row.id] = row
        return list(found.values())

    def find(self, name: str) -> Row | None:
        """The row of exactly this name, if it is there."""
        return next((row for row in self.rows() if row.id == name), None)

    def row(self, name: str) -> Row:
        """A row by its name, or by the beginning of it."""
        rows = self.rows()
        matching = [row for row in rows if row.id.startswith(name)]
        if len(matching) != 1:
            problem = "several rows begin with" if matching else "there is no row"
            raise FewgraftError(
                f"{problem} '{name}' in {self.folder / FILE}", nearest(name, [r.id for r in rows])
            )
        return matching[0]

    def append(self, row: Row, scores: Scores) -> None:
        """Scores first, then the row; a row that another run has written meanwhile stays."""
        with writing(self.folder):
            make_folder(self.folder)
        with writing(self.folder), hold_lock(self.folder / ".writing", busy=None):
            if self.find(row.id) is None:
                self.write_scores(self._scores_path(row.id), scores)
                append_line(behind_links(self.folder / FILE), row.model_dump_json().encode())

    def lock(self, name: str) -> Lock | None:
        """The right to compute a row; None while another process has it."""
        try:
            return take_lock(self._lock_path(name), FewgraftError("the row is in work"))
        except Busy:
            return None

    def tidy(self, name: str) -> None:
        """Remove what a row that is there needs no more, if a kill kept that from being done."""
        parts = self.chunk_path(name, 0).parent
        if not parts.exists() and not self._lock_path(name).exists():
            return
        with contextlib.suppress(FewgraftError):  # read-only: it stays, and does no harm
            lock = self.lock(name)
            if lock:
                shutil.rmtree(parts, ignore_errors=True)
                lock.release()

    def scores(self, row: Row) -> Scores:
        """The per-episode scores of a row."""
        return self.read_scores(self._scores_path(row.id))

    def _scores_path(self, name: str) -> Path:
        return self.folder / "scores" / f"{name}.npz"

    def _lock_path(self, name: str) -> Path:
        return self.folder / "scores" / f"{name}.lock"

    def chunk_path(self, name: str, start: int) -> Path:
        """Where a slow row keeps a part of its scores until it is whole."""
        return self.folder / "scores" / f"{name}.parts" / f"{start}.npz"

    @staticmethod
    def write_scores(path: Path, scores: Scores) -> None:
        """As plain arrays, whole or not at all."""
        packed = io.BytesIO()
        arrays = {f.name: getattr(scores, f.name).numpy() for f in dataclasses.fields(Scores)}
        np.savez_compressed(packed, **arrays)
        with writing(path):
            write_atomically(path, packed.getvalue())

    @staticmethod
    def read_scores(path: Path) -> Scores:
        """What `write_scores` wrote."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return Scores(**{name: torch.from_numpy(arrays[name]) for name in arrays.files})
        except (OSError, ValueError, TypeError) as error:
            raise FewgraftError(
                f"{path} cannot be read: {error}", "Remove its row and run the command again."
            ) from None
