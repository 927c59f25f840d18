"""From jobs to rows, whatever a job measures: episodes or sessions.

A job is computed chunk by chunk by an engine, here or on a cluster, and becomes one row. Rows that
are there are not computed again, and several processes may share the work.
"""

import hashlib
import math
import platform
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

import fewgraft
from fewgraft.bench.results import Record, Rows, row_id
from fewgraft.devices import CPU
from fewgraft.methods import method_file
from fewgraft.methods.base import Method, MethodSpec
from fewgraft.metrics import Interval, join_scores
from fewgraft.progress import track
from fewgraft.split_features import SplitFeatures

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WAIT = 0.2  # seconds between two looks at a row that another process computes


class BenchJob(Protocol):
    """One row to be: all that determines its numbers."""

    @property
    def recipe(self) -> str: ...  # noqa: D102
    @property
    def method(self) -> str: ...  # noqa: D102
    @property
    def models(self) -> Path: ...  # noqa: D102
    @property
    def spec(self) -> MethodSpec: ...  # noqa: D102
    @property
    def configured(self) -> Method: ...  # noqa: D102
    @property
    def chunks(self) -> list[range]: ...  # noqa: D102


J = TypeVar("J", bound=BenchJob)
R = TypeVar("R", bound=Record)
S = TypeVar("S", bound="DataclassInstance")
J_contra = TypeVar("J_contra", bound=BenchJob, contravariant=True)
R_co = TypeVar("R_co", bound=Record, covariant=True)


class AnyBench(Protocol[J_contra, R_co, S]):
    """What jobs are computed with: data, models and draws, each opened once."""

    device: torch.device

    def split_features(self, job: J_contra) -> SplitFeatures:
        """Features for the job."""

    def chunk(self, job: J_contra, chunk: range) -> S:
        """Scores of consecutive episodes or draws."""

    def identity(self, job: J_contra) -> dict[str, Any]:
        """All that a row's numbers depend on."""

    def row(
        self, job: J_contra, scores: S, seconds: float, threads: int, feature_seconds: float = 0.0
    ) -> R_co:
        """The complete record of a finished job; features took time of their own."""


class Engine(Protocol):
    """Computes chunks of a job, in any order, and passes on each with its scores.

    One that computes elsewhere says with how many `threads` a chunk.
    """

    def __call__(
        self, bench: AnyBench[J, R, S], job: J, chunks: Sequence[range]
    ) -> Iterator[tuple[range, S]]:
        """Every chunk once."""


def method_identity(job: BenchJob, features: SplitFeatures, learnt: str) -> dict[str, Any]:
    """What every row's numbers depend on: method, model, data, and what was learnt beforehand."""
    return {
        "method": job.spec.name,
        "hyper": job.configured.hyper,
        "weights": features.weights_hash,
        "content": features.content,
        **({"learnt": learnt} if learnt else {}),
        **({"code": code} if (code := code_of(job.method)) else {}),
    }


def job_record(
    job: BenchJob,
    features: SplitFeatures,
    identity: dict[str, Any],
    seconds: float,
    feature_seconds: float,
    machine: str,
) -> dict[str, Any]:
    """What every row says of its job, beside its identity."""
    return {
        "id": row_id(identity),
        "recipe": job.recipe,
        "title": job.spec.title,
        "file": str(method_file(job.method)[0] or ""),
        "stage": job.spec.stage,
        "models": str(job.models),
        "backbone": features.backbone,
        "data": features.data,
        "seconds": round(seconds, 3),
        "feature_seconds": round(feature_seconds, 3),
        "versions": versions(),
        "machine": machine,
        **identity,
    }


def measured(interval: Interval) -> tuple[float | None, float | None]:
    """Mean and half an interval as a row keeps them: JSON has no NaN."""
    mean, half = (None if math.isnan(v) else v for v in (interval.mean, interval.half))
    return mean, half


def code_of(method: str) -> str:
    """A hash of the file that a method is in, which gives new rows once edited; "" without one."""
    path, _ = method_file(method)
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path else ""


def machine_of(device: torch.device, threads: int) -> str:
    """What a row was computed on."""
    elsewhere = "" if device == CPU else f", {device}"
    return f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}{elsewhere}"


def versions() -> dict[str, str]:
    """Of whatever the numbers may depend on."""
    names = ("torch", "numpy")
    return {"fewgraft": fewgraft.__version__, "python": platform.python_version()} | {
        name: metadata.version(name) for name in names
    }


def in_this_process(
    bench: AnyBench[J, R, S], job: J, chunks: Sequence[range]
) -> Iterator[tuple[range, S]]:
    """One chunk after the other."""
    for chunk in chunks:
        yield chunk, bench.chunk(job, chunk)


def run(
    wanted: Iterable[J],
    results: Rows[R, S],
    bench: AnyBench[J, R, S],
    engine: Engine = in_this_process,
) -> Iterator[tuple[R, bool]]:
    """Rows for all jobs, each with whether it had to be computed here.

    Several processes may run on one folder: each takes the rows that no other has in hand, and in
    the end waits for those that others have.
    """
    there = {row.id: row for row in results.rows()}
    todo, met = deque(wanted), set[str]()
    while todo:
        job = todo.popleft()
        name = row_id(bench.identity(job))
        if name in there:
            results.tidy(name)
            yield there[name], False
        elif lock := results.lock(name):
            met.clear()
            try:
                found = results.find(name)  # another process was quicker
                there[name] = found or _compute(job, name, results, bench, engine)
            finally:
                lock.release()
            results.tidy(name)
            yield there[name], found is None
        else:
            if name in met:  # all that is left is in other hands
                time.sleep(WAIT)
            met.add(name)
            todo.append(job)


def _compute(job: J, name: str, results: Rows[R, S], bench: AnyBench[J, R, S], engine: Engine) -> R:
    start = time.perf_counter()
    features = bench.split_features(job)
    _ = features.bank  # first, so that computing it has a progress and a time of its own
    _ = features.lengths if job.configured.uses_lengths else None
    _ = features.mid if job.configured.uses_mid_features else None
    before, kept = time.perf_counter(), features.keeping_seconds
    scores = run_job(job, name, results, bench, engine)
    kept = features.keeping_seconds - kept
    seconds = time.perf_counter() - before - kept
    threads = getattr(engine, "threads", None) or torch.get_num_threads()
    row = bench.row(job, scores, seconds, threads, before - start + kept)
    results.append(row, scores)
    return row


def run_job(job: J, name: str, results: Rows[R, S], bench: AnyBench[J, R, S], engine: Engine) -> S:
    """The scores of one job; a slow one keeps its chunks, so that it can be interrupted."""
    slow = job.configured.moves_network
    done: dict[int, S] = {}
    for chunk in job.chunks:
        path = results.chunk_path(name, chunk.start)
        if slow and path.is_file():
            done[chunk.start] = results.read_scores(path)
    todo = [chunk for chunk in job.chunks if chunk.start not in done]
    for chunk, scores in track(engine(bench, job, todo), str(job), len(todo)):
        done[chunk.start] = scores
        if slow:
            results.write_scores(results.chunk_path(name, chunk.start), scores)
    return join_scores(done[chunk.start] for chunk in job.chunks)
