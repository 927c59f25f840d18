"""Progress that is honest: the rest from the steady rate, work inside work on the same screen."""

import io
import sys

import pytest

from fewgraft import progress
from fewgraft.progress import track


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("fewgraft.progress.time.monotonic", lambda: now[0])
    return now


def test_the_first_one_does_not_spoil_the_estimate(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits 60 s for features; the others take 20 s each."""
    for number in track(range(4), "rows", 4):
        clock[0] += 60 if number == 0 else 20
    assert capsys.readouterr().err.splitlines() == [
        "rows: 1/4 in 60 s",
        "rows: 2/4 in 80 s, about 40 s to go",
        "rows: 3/4 in 100 s, about 20 s to go",
        "rows: 4/4 in 120 s, about 0 s to go",
    ]


def test_bars_inside_bars_share_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    shown = []
    for outer in track([0, 1], "outside", 2):
        bar = progress._around.get()
        assert bar is not None
        for inner in track("ab", "inside", 2):
            shown.append((outer, inner, [task.description for task in bar.tasks]))
        assert len(bar.tasks) == 1, "the inner one goes with its work"
    both = ["outside", "inside"]
    assert [(o, i, [d.strip() for d in names]) for o, i, names in shown] == [
        (outer, inner, both) for outer in (0, 1) for inner in "ab"
    ]
    assert progress._around.get() is None
