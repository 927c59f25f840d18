"""Chunks of episodes on a Ray cluster: the cores of this machine, or many machines.

Workers are processes with data, models and episodes of their own; features come from the bank on
disk, which is written here before a worker asks for it (a machine with another disk computes its
own). Paths of models and the version of everything must be the same on all machines.

What the numbers depend on: chunks are fixed by the job, so neither the number of workers, nor who
computes what, nor a death in between changes a bit. Each worker uses one thread of PyTorch:
the bits are those of `in_this_process` after `torch.set_num_threads(1)`. With more threads, or
on another kind of processor, sums are added up in another order, and a query that lies on a
border may fall to the other side.
"""

import contextlib
import dataclasses
import os
import socket
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from fewgraft.bench.rows import AnyBench, BenchJob, J, R, S, versions
from fewgraft.bench.runner import Bench
from fewgraft.devices import limit_threads
from fewgraft.errors import FewgraftError
from fewgraft.ray_cluster import RayCluster, home_of_this_process

THREADS = 1  # of each worker
LOOK_EVERY = 5  # seconds without an answer, then: is the cluster still there?
TRIES = 3  # workers that may die on the same chunk


def ray_engine(address: str | None = None, workers: int | None = None) -> "RayEngine":
    """An engine on the cluster at `address`, else on one that it starts on this machine.

    `workers` is one for each core if not given. Close the engine after use, or use it in a `with`.
    """
    return RayEngine(RayCluster(address, workers), workers)


@dataclass(frozen=True)
class Greeting:
    """What a worker says of itself when it is ready."""

    pid: int
    host: str
    versions: dict[str, str]

    def __str__(self) -> str:
        """For messages."""
        return f"worker {self.pid} on {self.host}"


def check_versions(greeting: Greeting) -> None:
    """Refuse a worker whose numbers may be others."""
    for name, version in versions().items():
        if greeting.versions[name] != version:
            raise FewgraftError(
                f"{greeting.host} has {name} {greeting.versions[name]}, this machine {version}",
                "Numbers may depend on it: install the same version on all machines.",
            )


class ClusterLostError(FewgraftError):
    """Nobody is left who could compute."""

    def __init__(self) -> None:
        super().__init__(
            "the Ray cluster is gone: its head, or all of its machines, died",
            "Start it and the same command again: what is finished is kept.",
        )


def _is_there(ray: Any) -> bool:
    """Whether the cluster's head answers and a machine is left."""
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError:
        return False
    return any(node["Alive"] for node in ray.nodes())


class Worker:
    """What runs in each process of the cluster."""

    def __init__(self, environment: Mapping[str, str], bench: type[Any] = Bench) -> None:
        os.environ.update(environment)
        limit_threads(THREADS)
        self._bench = bench()

    def greet(self) -> Greeting:
        """Say that this process is ready."""
        return Greeting(os.getpid(), socket.gethostname(), versions())

    def chunk(self, job: BenchJob, chunk: range) -> Any:
        """Scores of consecutive episodes or draws."""
        features = self._bench.split_features(job)
        with contextlib.suppress(OSError):  # of two workers that write one bank, one comes too late
            _ = features.bank
        return self._bench.chunk(job, chunk)


class RayEngine:
    """An engine that starts when it is first needed and keeps its workers from job to job."""

    threads = THREADS

    def __init__(self, cluster: RayCluster, workers: int | None) -> None:
        self._cluster = cluster
        self._ray = cluster.ray
        self._wanted = workers
        self._crew: _Crew | None = None

    def __call__(
        self, bench: AnyBench[J, R, S], job: J, chunks: Sequence[range]
    ) -> Iterator[tuple[range, S]]:
        """Chunks with their scores, in the order in which they are finished."""
        if not chunks:
            return
        _ = bench.split_features(job).bank  # written once, before all workers want it
        if self._crew is not None and self._crew.bench is not type(bench):
            self._crew.dismiss()  # episodes and sessions have crews of their own
            self._crew = None
        if self._crew is None:
            self._cluster.connect()
            self._crew = _Crew(self._ray, self._size(), type(bench))
        there: Any = dataclasses.replace(job, models=job.models.absolute())  # type: ignore[type-var]
        yield from self._crew.compute(there, chunks)

    @property
    def workers(self) -> list[Greeting]:
        """All that are ready and, as far as is known, alive."""
        return list(self._crew.known.values()) if self._crew else []

    def _size(self) -> int:
        return self._wanted or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        crew, self._crew = self._crew, None
        if crew is not None and not crew.lost:
            crew.dismiss()
        self._cluster.close(lost=crew is not None and crew.lost)

    def __enter__(self) -> Self:
        """The engine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


class _Crew:
    """Workers, each with at most one question in hand."""

    def __init__(self, ray: Any, size: int, bench: type[Any]) -> None:
        self._ray = ray
        self.bench = bench  # that every worker has
        self._size = size
        self._actor = ray.remote(num_cpus=1)(Worker)
        self._free: list[Any] = []
        self._asked: dict[Any, tuple[Any, range | None]] = {}  # None: asked to greet
        self.known: dict[Any, Greeting] = {}
        self.lost = False  # with the whole cluster

    def compute(self, job: BenchJob, chunks: Sequence[range]) -> Iterator[tuple[range, Any]]:
        """Every chunk, whoever dies."""
        todo, lost = deque(chunks), Counter[range | None]()
        try:
            while todo or self._in_hand():
                self._assign(job, todo)
                worker, chunk, answer = self._next_answer()
                if isinstance(answer, self._ray.exceptions.RayError):
                    lost[chunk] += chunk is not None or worker not in self.known
                    self._report_death(worker, chunk, answer, last=lost[chunk] == TRIES)
                    todo.extendleft([] if chunk is None else [chunk])
                    self._call_the_roll()
                elif chunk is None:
                    self._welcome(worker, answer)
                else:
                    self._free.append(worker)
                    self._assign(job, todo)  # whoever takes our scores may take its time
                    yield chunk, answer
        except ClusterLostError:
            self.lost = True
            raise
        finally:
            if not self.lost:
                self._drop(self._in_hand())

    def _in_hand(self) -> list[Any]:
        """Questions that are not greetings."""
        return [question for question, (_, chunk) in self._asked.items() if chunk is not None]

    def _assign(self, job: BenchJob, todo: deque[range]) -> None:
        """Work for the free, and more workers as long as there is work for them."""
        while todo and self._free:
            worker, chunk = self._free.pop(), todo.popleft()
            self._asked[worker.chunk.remote(job, chunk)] = (worker, chunk)
        starting = len(self._asked) - len(self._in_hand())
        while starting < len(todo) and len(self._asked) + len(self._free) < self._size:
            self._free.append(self._actor.remote(home_of_this_process(), self.bench))
            self._call_the_roll()
            starting += 1

    def _call_the_roll(self) -> None:
        """Who is free says so: a machine takes more than one worker with it, and a chunk that is
        given to one dead worker after the other would seem to kill them.
        """
        while self._free:
            worker = self._free.pop()
            self._asked[worker.greet.remote()] = (worker, None)

    def _next_answer(self) -> tuple[Any, range | None, Any]:
        """Who answers first, what it was asked, and its answer or what it died of.

        An error in a method is no death: it is raised here as it was there.
        """
        answered: list[Any] = []
        while not answered:
            answered, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=LOOK_EVERY)
            if not answered and not _is_there(self._ray):
                raise ClusterLostError
        question = answered[0]
        worker, chunk = self._asked.pop(question)
        try:
            return worker, chunk, self._ray.get(question)
        except self._ray.exceptions.RayTaskError as error:
            self._free.append(worker)
            raise error.cause from error
        except self._ray.exceptions.RayError as death:
            return worker, chunk, death

    def _welcome(self, worker: Any, greeting: Greeting) -> None:
        check_versions(greeting)
        self._free.append(worker)
        if worker in self.known:
            return
        self.known[worker] = greeting
        _tell(f"{greeting} is ready ({len(self.known)} of {self._size})")

    def _report_death(
        self, worker: Any, chunk: range | None, death: Exception, *, last: bool
    ) -> None:
        name = self.known.pop(worker, "a new worker")
        at = f"at episodes {chunk.start}–{chunk.stop - 1}" if chunk else "before it had work"
        if last:
            raise FewgraftError(
                f"{TRIES} workers died {at}, the last one of: {death}",
                "Each needs memory for data and model, and all that this machine has installed.",
            )
        _tell(f"{name} died {at}: another one takes over, {len(self.known)} are left")

    def _drop(self, questions: Sequence[Any]) -> None:
        """End workers whose answers nobody waits for any more."""
        for question in questions:
            worker, _ = self._asked.pop(question)
            self.known.pop(worker, None)
            self._ray.kill(worker)

    def dismiss(self) -> None:
        """End all workers."""
        self._drop(list(self._asked))
        for worker in self._free:
            self._ray.kill(worker)
        self._free.clear()
        self.known.clear()


def _tell(message: str) -> None:
    print(f"ray: {message}", file=sys.stderr, flush=True)
