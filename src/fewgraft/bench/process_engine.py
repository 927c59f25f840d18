"""Chunks of episodes in several processes of this machine, one thread each.

Threads of PyTorch share out single products, and those of most methods are too small for that: two
processes that compute a chunk each are done sooner. Chunks are fixed by the job, so the bits are
those of `in_this_process` after `torch.set_num_threads(1)`, however many processes there are.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from types import TracebackType
from typing import Any, Self

from fewgraft.bench.rows import AnyBench, BenchJob, J, R, S
from fewgraft.devices import limit_threads
from fewgraft.errors import FewgraftError

THREADS = 1  # of each process


class ProcessEngine:
    """An engine whose processes start when they are first needed and stay from job to job.

    `workers` is one for each core if not given. Close the engine after use, or use it in a `with`.
    """

    threads = THREADS

    def __init__(self, workers: int | None = None) -> None:
        self._size = workers or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def __call__(
        self, bench: AnyBench[J, R, S], job: J, chunks: Sequence[range]
    ) -> Iterator[tuple[range, S]]:
        """Chunks with their scores, in the order in which they are finished."""
        if not chunks:
            return
        _ = bench.split_features(job).bank  # written once, before all processes want it
        if self._pool is None:
            # A fork would share locks of the threads that PyTorch has started.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._size, spawn, limit_threads, (THREADS,))
        asked: dict[Future[Any], range] = {}
        try:
            kind = type(bench)
            asked |= {self._pool.submit(_scores, kind, job, chunk): chunk for chunk in chunks}
            for answer in as_completed(asked):
                yield asked[answer], answer.result()
        except BrokenProcessPool:
            self.close()
            raise FewgraftError(
                "a process that computed episodes died",
                "Each needs memory for data and model. The same command goes on; --workers 1 needs "
                "the least.",
            ) from None
        finally:
            for answer in asked:
                answer.cancel()

    def close(self) -> None:
        """End the processes after the chunks that they have in hand."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

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


@cache
def _bench(kind: Callable[[], Any]) -> Any:
    """Data, models and draws of this process."""
    return kind()


def _scores(kind: Callable[[], Any], job: BenchJob, chunk: range) -> Any:
    return _bench(kind).chunk(job, chunk)
