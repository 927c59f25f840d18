"""Locks between real processes, which race for them and are killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from fewgraft.errors import FewgraftError
from fewgraft.locks import hold_lock, take_lock

BUSY = FewgraftError("it is in use", "Wait.")
# Takes the lock, says so, and holds it until it is told to go on or killed.
HOLDER = """
import sys
from pathlib import Path
from fewgraft.errors import FewgraftError
from fewgraft.locks import hold_lock
with hold_lock(Path(sys.argv[1]), FewgraftError("it is in use")):
    print("held", flush=True)
    sys.stdin.readline()
"""
# Adds one to a number in a file, again and again, each time under the lock.
COUNTER = """
import sys
from pathlib import Path
from fewgraft.errors import FewgraftError
from fewgraft.locks import hold_lock
lock, count = Path(sys.argv[1]), Path(sys.argv[2])
added = 0
while added < 200:
    try:
        with hold_lock(lock, FewgraftError("it is in use")):
            count.write_text(str(int(count.read_text()) + 1))
            added += 1
    except FewgraftError as error:
        assert error.problem.startswith("it is in use"), error
"""


def process(code: str, *words: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe)


def test_one_at_a_time_also_within_a_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    lock = take_lock(path, BUSY)
    with pytest.raises(FewgraftError, match=r"in use \(by process \d+\)") as told:
        take_lock(path, BUSY)
    assert told.value.hint == "Wait."
    lock.release()
    lock.release()
    assert not path.exists()
    with hold_lock(path, BUSY), pytest.raises(FewgraftError):
        take_lock(path, BUSY)
    path.write_text("what an older release wrote")
    take_lock(path, BUSY).release()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = process(HOLDER, path)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(FewgraftError, match=rf"\(by process {holder.pid}\)"):
        take_lock(path, BUSY)
    holder.kill()
    holder.communicate()
    take_lock(path, BUSY).release()


def test_processes_that_race_never_hold_it_both(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    racing = [process(COUNTER, tmp_path / "lock", count) for _ in range(3)]
    for one in racing:
        one.communicate()
        assert one.returncode == 0
    assert count.read_text() == "600"


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FewgraftError, match="cannot write"):
        take_lock(tmp_path / "file" / "lock", BUSY)
