"""Senders and readers that take their time: the others are served meanwhile."""

import contextlib
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from campaign.attack import Attack, Trial
from campaign.server_process import MB, Served, head, open_files, photo, served

SECONDS = 20.0  # in which a polite request must be answered
HELD = 20.0  # seconds that the attack goes on, at scale 1
FRESH = 3.0  # seconds after which a sender may be called slow
PACE = 2_000  # bytes at a time, which is no crawling
MANY = 50  # photos that any request may have
Begin = Callable[[socket.socket], None]


def half_head(one: socket.socket) -> None:
    """Headers that never end."""
    one.sendall(head("POST", "/api/predict", "X-Slow: yes"))


def half_body(one: socket.socket) -> None:
    """A body of which a little comes."""
    kind = "Content-Type: multipart/form-data; boundary=x"
    begin = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n\r\n'
    one.sendall(head("POST", "/api/predict", kind, "Content-Length: 100000") + b"\r\n" + begin)


def half_chunks(one: socket.socket) -> None:
    """A lesson in chunks of which a few come."""
    kind = "Content-Type: multipart/form-data; boundary=x"
    begin = head("POST", "/api/learn", kind, "Transfer-Encoding: chunked") + b"\r\n"
    one.sendall(begin + b"5\r\n--x\r\n\r\n")


def never_read(one: socket.socket) -> None:
    """Many requests, one after the other, whose answers nobody reads."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        one.send((head("GET", "/openapi.json") + b"\r\n") * 1_000)


def nothing(_: socket.socket) -> None:
    """A connection, and no more."""


def attack(trial: Trial, begin: Begin, before: Sequence[str] = ()) -> None:
    """Hold 1,200 connections, feed them a byte at a time, and ask politely in between."""
    with served(trial.folder, before=before) as server:
        one = photo()
        trial.check(server.predict(one).status == 200, "no answer before the attack")
        held = _hold(server, trial, begin)
        end = time.monotonic() + HELD * min(1, max(0.1, trial.scale))
        while True:
            start = time.monotonic()
            status = server.predict(one).status
            took = time.monotonic() - start
            trial.check(status == 200, f"{begin.__name__}: status {status} amid slow senders")
            trial.check(took < SECONDS, f"{begin.__name__}: {took:.0f} s for a photo amid them")
            for slow in held:
                with contextlib.suppress(OSError):
                    slow.send(b"a")
            if time.monotonic() > end:
                break
            time.sleep(1)
        for slow in held:
            slow.close()
        trial.check(server.predict(one).status == 200, f"{begin.__name__}: no answer afterwards")
        trial.check(server.quiet, f"{begin.__name__}: the log: {_end(server.log)}")
        trial.check(server.peak < 1_000 * MB, f"{begin.__name__}: {server.peak // MB} MB")
        trial.notes.append(f"{begin.__name__} {len(held):,}, {server.peak // MB} MB")


def _hold(server: Served, trial: Trial, begin: Begin) -> list[socket.socket]:
    most = open_files()
    held: list[socket.socket] = []
    for _ in trial.rounds(1_200, begin.__name__):
        if len(held) >= most:
            break
        with contextlib.suppress(OSError):
            one = server.connect()
            held.append(one)
            begin(one)
    return held


def _end(log: Path) -> str:
    return f"{log.stat().st_size:,} bytes … {log.read_text(errors='replace')[-600:]}"


def half_lesson(one: socket.socket) -> None:
    """A lesson whose first photo comes, at a pace that the server allows."""
    kind = "Content-Type: multipart/form-data; boundary=x"
    begin = head("POST", "/api/learn", kind, "Content-Length: 10000000") + b"\r\n"
    one.sendall(begin + _part("photos1") + b"a" * PACE)


def half_of_many(one: socket.socket) -> None:
    """A request of more photos than most have."""
    kind = "Content-Type: multipart/form-data; boundary=x"
    begin = head("POST", "/api/predict", kind, "Content-Length: 10000000") + b"\r\n"
    one.sendall(begin + (_part("photo") + b"\r\n") * MANY + _part("photo") + b"a" * PACE)


def _part(field: str) -> bytes:
    name = f'Content-Disposition: form-data; name="{field}"; filename="a.png"'
    return f"--x\r\n{name}\r\n\r\n".encode()


def places(trial: Trial) -> None:
    """Hold every place for lessons, and for large requests; then teach, and ask for much."""
    with served(trial.folder) as server:
        for begin in (half_lesson, half_of_many):
            held = [server.connect() for _ in trial.rounds(40, begin.__name__)]
            for slow in held:
                begin(slow)
            time.sleep(FRESH)
            for _ in trial.rounds(10, "polite requests"):
                for slow in held:
                    with contextlib.suppress(OSError):
                        slow.send(b"a" * PACE)
                job = server.learn()
                trial.check(bool(job), f"{begin.__name__}: a lesson is refused")
                server.ask("POST", f"/api/jobs/{job}/discard")
                status = server.predict(*[photo()] * (MANY + 1)).status
                trial.check(status == 200, f"{begin.__name__}: {status} for many photos")
            for slow in held:
                slow.close()
        trial.check(server.quiet, f"the log: {_end(server.log)}")


FEW_FILES = (nothing, half_body)


def slow(trial: Trial) -> None:
    """Every kind of slowness, each against a server of its own."""
    for begin in (nothing, half_head, half_body, half_chunks, never_read):
        folder = trial.folder / begin.__name__
        folder.mkdir()
        part = Trial(folder, trial.scale, trial.random)
        # Some under a system that allows few open files.
        few = ("prlimit", "--nofile=256") if begin in FEW_FILES and shutil.which("prlimit") else ()
        attack(part, begin, few)
        trial.tried += part.tried
        trial.failed += part.failed
        trial.failures += part.failures
        trial.notes += part.notes


ATTACKS = (
    Attack(
        "slow senders and readers",
        "with 1,200 connections held half-way, others are served; the log stays below 1 MB",
        slow,
    ),
    Attack(
        "places held by slow senders",
        "with all places for lessons and large requests taken, the slowest gives way",
        places,
    ),
)
