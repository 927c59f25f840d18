"""Progress on anything over a few seconds: a bar on a terminal, a line now and then in a log."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
_around: ContextVar["Progress | None"] = ContextVar("_around", default=None)  # the bars on screen
SECONDS_BETWEEN_LINES = 10.0


def track(
    items: Iterable[T],
    description: str,
    total: int | None = None,
    status: Callable[[], str] = str,
) -> Iterator[T]:
    """Pass `items` on and show on standard error how far they are and when they will be done.

    `status` gives a few words on how it goes, such as the loss.
    """
    if sys.stderr.isatty():
        yield from _bar(items, description, total, status)
    else:
        yield from _lines(items, description, total, status)


def _bar(
    items: Iterable[T], description: str, total: int | None, status: Callable[[], str]
) -> Iterator[T]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    if around := _around.get():  # work inside work has a bar below
        yield from _task(around, items, description, total, status)
        return
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        token = _around.set(bar)
        try:
            yield from _task(bar, items, description, total, status)
        finally:
            with contextlib.suppress(ValueError):  # given up in another context
                _around.reset(token)


def _task(
    bar: "Progress",
    items: Iterable[T],
    description: str,
    total: int | None,
    status: Callable[[], str],
) -> Iterator[T]:
    task = bar.add_task(description, total=total)
    try:
        for item in items:
            yield item
            bar.update(task, advance=1, description=f"{description} {status()}".strip())
    finally:
        bar.remove_task(task)


def _lines(
    items: Iterable[T], description: str, total: int | None, status: Callable[[], str]
) -> Iterator[T]:
    start = last = time.monotonic()
    first = 0.0  # seconds of the first one, which often waits for what all of them need
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        first = first or now - start
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            line = f"{description}: {_so_far(done, total, now - start, first)} {status()}"
            print(line.strip(), file=sys.stderr, flush=True)


def _so_far(done: int, total: int | None, seconds: float, first: float) -> str:
    """The rest is estimated from the steady rate: that of all but the first."""
    if not total:
        return f"{done} in {seconds:.0f} s"
    if done == 1:
        return f"1/{total} in {seconds:.0f} s"
    left = (seconds - first) / (done - 1) * (total - done)
    return f"{done}/{total} in {seconds:.0f} s, about {left:.0f} s to go"


def json_lines(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Pass `items` on and tell another program on standard error how far they are.

    One line per percent: {"what": "photos", "done": 30, "total": 500}.
    """
    told = 0
    for done, item in enumerate(items, 1):
        yield item
        if done == total or 100 * (done - told) >= total:
            told = done
            line = json.dumps({"what": what, "done": done, "total": total})
            print(line, file=sys.stderr, flush=True)
