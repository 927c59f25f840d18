"""Sessions in the benchmark: every method on the same draws, each as one complete row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, field_validator

from fewgraft.bench.results import Measured, Record, Rows, interval_of
from fewgraft.bench.rows import job_record, machine_of, measured, method_identity
from fewgraft.bench.runner import Bench
from fewgraft.data.store import ImageStore
from fewgraft.devices import CPU
from fewgraft.errors import FewgraftError, nearest
from fewgraft.imported import is_import
from fewgraft.methods import method_spec
from fewgraft.methods.base import Method, MethodSpec
from fewgraft.metrics import Interval, interval
from fewgraft.parsing import validated
from fewgraft.session_features import BASES, SessionFeatures
from fewgraft.session_scores import OVER_SESSIONS, SESSION_METRICS, SessionScores
from fewgraft.sessions import SessionDraws, SessionSettings, draw_sessions
from fewgraft.training.recipe import Recipe
from fewgraft.zoo import stage_model

CHUNK = 10  # draws at a time
MIX = SessionSettings().mix  # of no unlabelled sets, so that there is one such row only
METHODS = (
    "nearest-prototype",
    "nearest-prototype+bias",
    "teen",
    "meta-inc-baseline",
    "+pr",
    "+pr+bias",
    "proposed-without-adaptation",
    "proposed-without-adaptation+bias",
)


@dataclass(frozen=True)
class SessionJob:
    """One row to be: all that determines its numbers."""

    recipe: str  # name, for the record
    data: str
    method: str  # name, or Python file
    hyper: dict[str, Any]
    settings: SessionSettings
    draws: int
    models: Path
    base: str = "weights"  # what base classes begin with

    @property
    def spec(self) -> MethodSpec:
        """The method's entry in the registry."""
        return method_spec(self.method)

    @property
    def configured(self) -> Method:
        """The method with this job's hyper-parameters."""
        return self.spec.method.changed(**self.hyper)

    @property
    def chunks(self) -> list[range]:
        """Consecutive draws that are computed together."""
        starts = range(0, self.draws, CHUNK)
        return [range(start, min(start + CHUNK, self.draws)) for start in starts]

    def __str__(self) -> str:
        """For progress."""
        return f"{self.spec.name}, {self.settings.sessions} sessions"


def session_jobs(
    recipe: Recipe,
    models: Path,
    methods: Sequence[str],
    settings: SessionSettings,
    draws: int,
    base: str = "weights",
    earlier: Sequence[int] = (),
    *,
    without: bool = False,
) -> list[SessionJob]:
    """A job for each method, with what validation sessions have chosen for it.

    Of a method that can refine classes of earlier sessions, a job for each value of `earlier`, if
    there are any, and not the chosen one. `without` unlabelled sets, one more job comes first for
    each method that uses them: on the same shots and tests.
    """
    if any(count < 0 for count in earlier):
        raise FewgraftError("a class of an earlier session cannot count for less than 0 pictures")
    if base not in BASES:
        raise FewgraftError(f"base classes cannot begin with '{base}'", nearest(base, BASES))
    for name in methods:
        spec = method_spec(name)
        if not spec.joint or spec.method.moves_network or spec.method.uses_pictures:
            raise FewgraftError(
                f"'{name}' cannot go from session to session",
                "Sessions are for methods on features that tell base and novel classes apart.",
            )
    if is_import(models):
        raise FewgraftError(
            "sessions need pictures and a model; imported features have neither",
            "Give the folder of a training run with --models.",
        )
    found = []
    for name in methods:
        method = method_spec(name).method
        hyper = recipe.session_hyper(name, settings.shots, base)
        job = SessionJob(recipe.name, recipe.data, name, hyper, settings, draws, models, base)
        if without and method.uses_unlabelled and settings.unlabelled:
            found.append(replace(job, settings=replace(settings, unlabelled=0, mix=MIX)))
        counts = earlier if "earlier" in method.over_sessions else ()
        found += [replace(job, hyper=hyper | {"earlier": count}) for count in counts] or [job]
    return found


class SessionRow(Record):
    """Everything that is needed to print a result over sessions, and to compute it again."""

    draws: int = Field(ge=1)
    base: str
    session_settings: dict[str, Any]
    draw_hash: str
    sessions: dict[str, tuple[Measured, ...]]  # each metric after sessions 0 … T
    over_sessions: dict[str, Measured]

    @field_validator("session_settings")
    @classmethod
    def _are_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        try:
            meant = validated(SessionSettings, settings).record()
        except FewgraftError as error:
            raise ValueError(error.problem) from None
        if meant != settings:
            raise ValueError("they are not settings of sessions")
        return settings

    @property
    def count(self) -> int:
        """Draws."""
        return self.draws

    def after(self, metric: str) -> list[Interval]:
        """A metric after sessions 0 … T; NaN where there is none."""
        return [interval_of(one) for one in self.sessions[metric]]

    def over(self, metric: str) -> Interval:
        """A metric of all sessions together."""
        return interval_of(self.over_sessions[metric])


class SessionResults(Rows[SessionRow, SessionScores]):
    """A folder of results over sessions."""

    file = "sessions.jsonl"
    row_kind = SessionRow
    scores_kind = SessionScores
    dimensions = 2


class SessionBench:
    """Data, models and draws, each opened once; `features` is where features are kept."""

    def __init__(self, features: Path | None = None, device: torch.device = CPU) -> None:
        self._features = features
        self.device = device
        self._stores = Bench(features, device)
        self._opened: dict[tuple[str, Path, str, str, int], SessionFeatures] = {}
        self._draws: dict[tuple[str, SessionSettings, int], SessionDraws] = {}

    def store(self, data: str) -> ImageStore:
        """A data set by name."""
        return self._stores.store(data)

    def split_features(self, job: SessionJob) -> SessionFeatures:
        """The model of the job's stage over the pictures of the sessions."""
        split, queries = job.settings.split, job.settings.queries
        key = (job.data, job.models, job.spec.stage, split, queries)
        if key not in self._opened:
            model = stage_model(job.models, job.spec.stage).to(self.device)
            store = self.store(job.data)
            self._opened[key] = SessionFeatures(
                model, store, split, queries, self._features, job.models
            )
        return self._opened[key]

    def draws(self, job: SessionJob) -> SessionDraws:
        """The job's frozen draws."""
        key = (job.data, job.settings, job.draws)
        if key not in self._draws:
            pools = self.split_features(job).pools
            self._draws[key] = draw_sessions(pools, job.settings, job.draws)
        return self._draws[key]

    def chunk(self, job: SessionJob, chunk: range) -> SessionScores:
        """Scores of consecutive draws."""
        features = self.split_features(job)
        return features.session_scores(job.configured, self.draws(job), chunk, job.base)

    def identity(self, job: SessionJob) -> dict[str, Any]:
        """All that a row's numbers depend on."""
        features, method = self.split_features(job), job.configured
        learnt = features.learnt_hash(method, job.settings.shots)
        return {
            "session_settings": job.settings.record(),
            "draws": job.draws,
            "base": job.base,
            **method_identity(job, features, learnt),
        }

    def row(
        self,
        job: SessionJob,
        scores: SessionScores,
        seconds: float,
        threads: int,
        feature_seconds: float = 0.0,
    ) -> SessionRow:
        """The complete record of a finished job; features took time of their own."""
        features, draws = self.split_features(job), self.draws(job)
        machine = machine_of(self.device, threads)
        return SessionRow(
            shots=job.settings.shots,
            split=job.settings.split,
            n_base=draws.n_base,
            ways=job.settings.ways,
            draw_hash=draws.hash,
            sessions={
                name: tuple(measured(interval(one)) for one in getattr(scores, name).T)
                for name in SESSION_METRICS
            },
            over_sessions={
                name: measured(interval(getattr(scores, name))) for name in OVER_SESSIONS
            },
            **job_record(job, features, self.identity(job), seconds, feature_seconds, machine),
        )
