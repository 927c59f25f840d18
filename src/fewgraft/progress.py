"""Progress on anything over a few seconds: a bar on a terminal, a line now and then in a log."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
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
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        for item in items:
            yield item
            bar.update(task, advance=1, description=f"{description} {status()}".strip())


def _lines(
    items: Iterable[T], description: str, total: int | None, status: Callable[[], str]
) -> Iterator[T]:
    start = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            line = f"{description}: {_so_far(done, total, now - start)} {status()}"
            print(line.strip(), file=sys.stderr, flush=True)


def _so_far(done: int, total: int | None, seconds: float) -> str:
    if not total:
        return f"{done} in {seconds:.0f} s"
    return f"{done}/{total} in {seconds:.0f} s, about {seconds / done * (total - done):.0f} s to go"


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
