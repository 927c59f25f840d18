"""Results on disk: one complete row per thing measured, scores of episodes or draws beside them.

A row is appended to `results.jsonl` only when its scores are there, so that whatever was
interrupted is simply not there yet.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fewgraft.data.npz import npz_arrays
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError, nearest, reading, writing
from fewgraft.files import append_line, behind_links, make_folder, write_atomically
from fewgraft.locks import Busy, Lock, hold_lock, take_lock
from fewgraft.metrics import METRICS, Interval, Scores
from fewgraft.parsing import first_problem, read_whole, validated

FILE = "results.jsonl"
LARGEST = 1 << 30  # bytes
_SHARED = ("setting", "shots", "split", "ways")


_AGAIN = "Remove its row and run the command again."


Measured = tuple[float | None, float | None]  # mean and half an interval, shares


class Record(BaseModel):
    """What every row says of its method, model and data, whatever it measures."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str = Field(pattern=r"^[\w-]{1,64}$")  # of a file, too
    recipe: str  # name
    method: str
    title: str
    shots: int = Field(ge=1)
    split: str
    hyper: dict[str, Any]  # all hyper-parameters of the method
    stage: str  # which model
    models: str  # folder of the models
    weights: str  # hash
    learnt: str = ""  # hash of the method's pieces or of its base knowledge, where it has some
    file: str = ""  # that the method is in, and
    code: str = ""  # a hash of it, where the method is not of the registry
    backbone: str
    data: str  # name
    content: str  # hash of the data
    n_base: int = Field(ge=0)
    ways: int = Field(ge=1)
    seconds: float  # without those for features, which are
    feature_seconds: float = 0.0
    versions: dict[str, str]
    machine: str

    @property
    def count(self) -> int:
        """How many episodes or draws were measured."""
        raise NotImplementedError


class Row(Record):
    """Everything that is needed to print a result, and to compute it again."""

    setting: str
    episodes: int = Field(ge=1)
    views: int = Field(default=1, ge=1)  # of each picture
    episode_settings: dict[str, Any]
    episode_hash: str
    metrics: dict[str, Measured]

    @property
    def count(self) -> int:
        """Episodes."""
        return self.episodes

    @field_validator("episode_settings")
    @classmethod
    def _are_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        meant = dataclasses.asdict(validated(EpisodeSettings, settings))
        if other := [name for name, value in settings.items() if meant.get(name) != value]:
            raise ValueError(f"'{other[0]}' is no setting of episodes, or has no such value")
        return settings

    @field_validator("metrics")
    @classmethod
    def _has_all_metrics(cls, metrics: dict[str, Any]) -> dict[str, Any]:
        if missing := [name for name in METRICS if name not in metrics]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return metrics

    @model_validator(mode="after")
    def _is_of_its_settings(self) -> Self:
        settings = {name: self.episode_settings.get(name) for name in _SHARED}
        if settings != {name: getattr(self, name) for name in _SHARED}:
            raise ValueError("the row and its settings of episodes contradict each other")
        return self

    def interval(self, metric: str) -> Interval:
        """A metric with its interval; NaN where the setting does not have it."""
        return interval_of(self.metrics[metric])


def interval_of(measured: Measured) -> Interval:
    """A number of a row with its interval; NaN where there is none."""
    return Interval(*(float("nan") if v is None else v for v in measured))


def row_id(identity: dict[str, Any]) -> str:
    """A name for what a row measures: the same settings give the same name."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]


AnyRow = TypeVar("AnyRow", bound=Record)
AnyScores = TypeVar("AnyScores")


class Rows(Generic[AnyRow, AnyScores]):
    """A folder of rows of one kind."""

    file: ClassVar[str]
    row_kind: ClassVar[type[Any]]
    scores_kind: ClassVar[type[Any]]  # a dataclass of tensors of one shape, episodes first
    dimensions: ClassVar[int]  # of each tensor

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parsed: dict[bytes, AnyRow] = {}  # a run reads the table twice per row

    def rows(self) -> list[AnyRow]:
        """All rows in the order they were made; of rows with the same name, the last one."""
        path = self.folder / self.file
        if not path.is_file():
            return []
        found: dict[str, AnyRow] = {}
        with reading(path, "readable table of results"):
            *lines, _ = read_whole(path, LARGEST).split(b"\n")  # after the last line end: torn
        for number, line in enumerate(lines, 1):
            try:
                row = self._row(line)
            except ValidationError as error:
                raise FewgraftError(
                    f"{path}, line {number} is damaged: {first_problem(error)}",
                    "Remove that line; the same command makes the row again.",
                ) from None
            found[row.id] = row
        return list(found.values())

    def _row(self, line: bytes) -> AnyRow:
        if line not in self._parsed:
            self._parsed[line] = self.row_kind.model_validate_json(line)
        return self._parsed[line]

    def find(self, name: str) -> AnyRow | None:
        """The row of exactly this name, if it is there."""
        return next((row for row in self.rows() if row.id == name), None)

    def row(self, name: str) -> AnyRow:
        """A row by its name, or by the beginning of it."""
        rows = self.rows()
        matching = [row for row in rows if row.id.startswith(name)]
        if len(matching) != 1:
            problem = "several rows begin with" if matching else "there is no row"
            raise FewgraftError(
                f"{problem} '{name}' in {self.folder / self.file}",
                nearest(name, [r.id for r in rows]),
            )
        return matching[0]

    def append(self, row: AnyRow, scores: AnyScores) -> None:
        """Scores first, then the row; a row that another run has written meanwhile stays."""
        self.extend([(row, scores)])

    def extend(self, found: Sequence[tuple[AnyRow, AnyScores]]) -> None:
        """The same for several rows, for which the table is read once."""
        with writing(self.folder):
            make_folder(self.folder)
        with writing(self.folder), hold_lock(self.folder / ".writing", busy=None):
            there = {row.id for row in self.rows()}
            new = [(row, scores) for row, scores in found if row.id not in there]
            for row, scores in new:
                self.write_scores(self._scores_path(row.id), scores)
            if new:
                lines = b"\n".join(row.model_dump_json().encode() for row, _ in new)
                append_line(behind_links(self.folder / self.file), lines)

    def lock(self, name: str) -> Lock | None:
        """The right to compute a row; None while another process has it."""
        try:
            return take_lock(self._lock_path(name), FewgraftError("the row is being computed"))
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

    def scores(self, row: AnyRow) -> AnyScores:
        """The scores of a row, one per episode or draw."""
        scores: Any = self.read_scores(self._scores_path(row.id))
        if len(scores.acc) != row.count:
            raise FewgraftError(
                f"{self._scores_path(row.id)} has scores of {len(scores.acc)} episodes, not of "
                f"{row.count}",
                _AGAIN,
            )
        found: AnyScores = scores
        return found

    def _scores_path(self, name: str) -> Path:
        return self.folder / "scores" / f"{name}.npz"

    def _lock_path(self, name: str) -> Path:
        return self.folder / "scores" / f"{name}.lock"

    def chunk_path(self, name: str, start: int) -> Path:
        """Where a slow row keeps a part of its scores until it is whole."""
        return self.folder / "scores" / f"{name}.parts" / f"{start}.npz"

    @classmethod
    def write_scores(cls, path: Path, scores: AnyScores) -> None:
        """As plain arrays, whole or not at all."""
        packed = io.BytesIO()
        names = [field.name for field in dataclasses.fields(cls.scores_kind)]
        arrays = {name: getattr(scores, name).numpy() for name in names}
        np.savez_compressed(packed, **arrays)
        with writing(path):
            write_atomically(path, packed.getvalue())

    @classmethod
    def read_scores(cls, path: Path) -> AnyScores:
        """What `write_scores` wrote."""
        with reading(path, "readable file of scores", _AGAIN):
            names = [field.name for field in dataclasses.fields(cls.scores_kind)]
            arrays = npz_arrays(path, names, np.float64)
            shapes = {array.shape for array in arrays.values()}
            if len(shapes) > 1 or arrays["acc"].ndim != cls.dimensions:
                raise ValueError("its arrays are not one number for each episode")
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            found: AnyScores = cls.scores_kind(**tensors)
            return found


class Results(Rows[Row, Scores]):
    """A folder of results of episodes."""

    file = FILE
    row_kind = Row
    scores_kind = Scores
    dimensions = 1
