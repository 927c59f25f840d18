"""What the server refuses: slow senders, crowds, and forms and zips that are too much."""

import asyncio
import contextlib
import io
import logging
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fewgraft.app.features.embedding import Embedder
from fewgraft.app.learning.saving import open_classifier
from fewgraft.app.server import connections, guard, log, places
from fewgraft.app.server.api import create_app
from fewgraft.app.server.guard import Guard
from fewgraft.app.server.jobs import Jobs
from fewgraft.app.server.lessons import lay_out
from fewgraft.app.server.refusals import Budget, Limits, RequestError
from fewgraft.app.server.run import Server, configured, run
from fewgraft.app.server.scratch import Scratch
from fewgraft.app.server.uploads import Received, Upload
from fewgraft.app.server.versions import Versions
from fewgraft.app.server.zips import unpack
from fewgraft.errors import FewgraftError
from fewgraft.zoo import ZOO

PATIENCE = 60  # seconds, before something that should happen is taken not to
HOST = b"Host: localhost\r\n"
FORM = b"Content-Type: multipart/form-data; boundary=x\r\n"
PART = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n'
END = b"\r\n--x--\r\n"


@contextlib.contextmanager
def listening(app: ASGIApp, limits: Limits) -> Iterator[int]:
    """The port of an application that is served in this process, under other limits."""
    server = Server(configured(app, limits))
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            yield int(door.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@contextlib.contextmanager
def serving(folder: Path, **limits: Any) -> Iterator[int]:
    own = Limits(**limits)
    with listening(create_app(Versions("icons", folder, own), None, own), own) as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def answer(one: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while more := one.recv(65536):
            got += more
    return got


def ask(port: int, content: bytes) -> tuple[int, bytes]:
    with connect(port) as one:
        one.sendall(content)
        got = answer(one)
    return int(got.split()[1]) if got else 0, got


def get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path.encode(), HOST)


def post(path: str, body: bytes, kind: bytes = FORM) -> bytes:
    length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\n%s%s%s%s" % (path.encode(), HOST, kind, length, body)


# --- time and crowds ---


def test_slow_senders_are_told_and_lose_their_connection(tmp_path: Path) -> None:
    with serving(tmp_path, head_time=0.5, pace=(0.5, 1_000), linger=0.5) as port:
        head = b"POST /api/predict HTTP/1.1\r\n" + HOST
        silent, in_head, in_body, refused = (connect(port) for _ in range(4))
        in_head.sendall(head)
        in_body.sendall(head + FORM + b"Content-Length: 9000\r\n\r\n" + PART)
        refused.sendall(head + b"Content-Length: 999999999\r\n\r\nabc")
        assert answer(silent) == b""
        assert b" 408 " in answer(in_head)
        assert b"the upload is too slow" in answer(in_body)
        assert b" 413 " in answer(refused)
        assert ask(port, get("/api/classes"))[0] == 200
        for one in (silent, in_head, in_body, refused):
            one.close()


def test_answers_that_nobody_reads_are_given_up() -> None:
    sent, gone = 0, threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        if scope["type"] != "http":
            raise NotImplementedError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while sent < 1_000:
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
            sent += 1
            if (await asyncio.wait_for(receive(), 1))["type"] == "http.disconnect":
                break
        gone.set()

    async def reads_on(scope: Scope, receive: Receive, send: Send) -> None:
        async def empty() -> Any:
            return {"type": "http.request"} if sent < 1 else await _soon(receive)

        await app(scope, empty, send)

    with listening(reads_on, Limits(answer=0.5)) as port, connect(port) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.sendall(get("/"))
        assert gone.wait(PATIENCE)
    assert sent < 1_000


async def _soon(receive: Receive) -> Any:
    try:
        return await asyncio.wait_for(receive(), 0.001)
    except TimeoutError:
        return {"type": "http.request"}


def test_few_answers_are_computed_for_who_does_not_read() -> None:
    asked = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal asked
        if scope["type"] != "http":
            return
        asked += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a" * 30_000})

    with listening(app, Limits()) as port, connect(port) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        one.sendall((b"GET / HTTP/1.1\r\n" + HOST + b"\r\n") * 300)
        before = -1
        while asked != before:
            before = asked
            time.sleep(0.3)
        assert 1 <= asked < 50


def test_in_a_crowd_whoever_waits_gives_way(tmp_path: Path) -> None:
    with serving(tmp_path, connections=4) as port:
        crowd = [connect(port) for _ in range(12)]
        for one in crowd:
            with contextlib.suppress(ConnectionError):
                one.sendall(b"POST /api/learn HTTP/1.1\r\n" + HOST)
        assert ask(port, get("/api/classes"))[0] == 200
        for one in crowd:
            one.close()


def test_whoever_has_just_come_is_not_the_slowest(tmp_path: Path) -> None:
    head = b"POST /api/predict HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: 9000\r\n\r\n"
    with serving(tmp_path, connections=3, share=1) as port:
        crowd = [connect(port) for _ in range(3)]
        for one in crowd:
            one.sendall(head + PART)
        time.sleep(2 * connections.FRESH)
        new, newer = connect(port), connect(port)
        newer.sendall(head + PART)  # it is in
        new.sendall(get("/api/classes"))
        assert b" 200 " in answer(new)
        for one in (*crowd, new, newer):
            one.close()


def test_where_all_are_taken_the_address_that_has_most_gives_way() -> None:
    class Waiting:
        loop = asyncio.new_event_loop()

        def __init__(self, address: str, worth: float) -> None:
            self.address, self.transport, self.gone = address, self, False
            self.worth = lambda _: worth

        def waits(self) -> bool:
            return True

        def abort(self) -> None:
            self.gone = True

    door: Any = connections.Door(Limits(connections=4, share=1))
    few, *many = Waiting("a", -9), *(Waiting("b", worth) for worth in (5, 3, 4))
    assert all(door.enter(one) for one in (few, *many, Waiting("c", 0)))
    assert [one.gone for one in (few, *many)] == [False, False, True, False]
    Waiting.loop.close()


def test_where_all_are_at_work_the_next_is_told() -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        begun.release()
        await asyncio.to_thread(go.wait, PATIENCE)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with listening(app, Limits(connections=2, share=1)) as port:
        working = [connect(port) for _ in range(2)]
        for one in working:
            one.sendall(get("/"))
        assert all(begun.acquire(timeout=PATIENCE) for _ in working)
        with connect(port) as late:
            assert b" 503 " in answer(late)
        go.set()
        assert all(b" 204 " in answer(one) for one in working)


def test_files_that_may_be_open_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4_096))
    door = connections.Door(Limits())
    assert 100 <= door._share < door._most < 200


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    resource = pytest.importorskip("resource")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < connections.FILES:
        pytest.skip("the system allows few")
    asked = "import resource as r; from fewgraft.app.server.connections import allow_files;"
    asked += f"r.setrlimit(r.RLIMIT_NOFILE, (256, {most})); allow_files();"
    asked += "print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)
    assert int(told.stdout) == connections.FILES


def test_no_file_is_open_while_more_is_waited_for(tmp_path: Path) -> None:
    head = b"POST /api/learn HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: 9000\r\n\r\n"
    with serving(tmp_path) as port, connect(port) as one:
        one.sendall(head + PART + b"\r\n" + b"some bytes" * 10)
        until = time.monotonic() + PATIENCE
        while not any(p.stat().st_size for p in tmp_path.glob(".pending-*/received/*")):
            assert time.monotonic() < until
        names = [Path(file.path).name for file in psutil.Process().open_files()]
        assert "00000" not in names


def test_requests_share_a_temporary_folder_which_the_last_one_clears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch = Scratch()

    async def requests() -> None:
        async with scratch.folder() as first:
            async with scratch.folder() as second:
                assert first != second
                assert first.parent == second.parent
            assert first.is_dir()
            assert not second.exists()
            shutil.rmtree(first.parent)  # as somebody may who clears all temporary folders
            async with scratch.folder() as third:
                assert third.is_dir()
        assert not list(tmp_path.iterdir())

    for _ in range(2):
        asyncio.run(requests())


def test_who_waits_when_the_server_stops_is_told(caplog: pytest.LogCaptureFixture) -> None:
    begun = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        begun.set()
        await asyncio.sleep(PATIENCE)

    with ThreadPoolExecutor(1) as reader, contextlib.ExitStack() as server:
        port = server.enter_context(listening(Guard(app, None, Limits()), Limits()))
        told = reader.submit(ask, port, get("/"))
        assert begun.wait(PATIENCE)
        server.close()
        assert b"the server stops" in told.result(PATIENCE)[1]
    assert not [record for record in caplog.records if record.exc_info]


def test_who_does_not_read_when_the_server_stops_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = threading.Semaphore(0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        begun.release()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(20_000_000)})

    with contextlib.ExitStack() as server:
        port = server.enter_context(listening(Guard(app, None, Limits()), Limits()))
        with connect(port) as one:
            one.sendall((b"GET / HTTP/1.1\r\n" + HOST + b"\r\n") * 2)
            assert all(begun.acquire(timeout=PATIENCE) for _ in range(2))
            server.close()
    assert not [record for record in caplog.records if "without starting" in record.message]


def test_lessons_that_were_still_being_sent_are_cleared_away(tmp_path: Path) -> None:
    versions = Versions("icons", tmp_path)
    jobs = Jobs(versions, Limits())
    folder = jobs.open().folder
    assert folder.is_dir()
    jobs.close()
    assert not folder.exists()
    versions.close()


# --- who may ask ---


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("localhost", True), ("LOCALHOST:80", True), ("127.0.0.1:", True), ("[::1]:8000", True),
        ("evil@localhost", False), ("localhost#.evil", False), ("localhost/.evil", False),
        ("localhost.", False), ("127.1", False), ("0.0.0.0", False), ("[::1%25lo]", False),
        ("127.0.0.1:a", False), ("[", False), ("", False),
    ],
)  # fmt: skip
def test_names_of_this_machine(host: str, fine: bool) -> None:
    with contextlib.nullcontext() if fine else pytest.raises(RequestError):
        guard._check_names(Headers({"host": host}))
    own = [(b"host", host.encode()), (b"origin", f"http://{host}".encode())]
    with pytest.raises(RequestError):
        guard._check_names(Headers(raw=[*own, (b"origin", b"http://evil")]))


@pytest.mark.parametrize("token", ["tök", " a", "a\n", "a\udcff"])
def test_tokens_that_no_header_can_hold(tmp_path: Path, token: str) -> None:
    with pytest.raises(FewgraftError, match="cannot be sent"):
        run("icons", "127.0.0.1", 0, token, tmp_path, print)


# --- bytes that are no good HTTP ---


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 17_000, 400),
        (b"GET /api/classes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"HEAD /api/jobs HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\nzz\r\n" % HOST, 400),
        (
            b"POST /api/predict HTTP/1.1\r\n%s%sTransfer-Encoding: chunked\r\n\r\n" % (HOST, FORM)
            + b"1\r\na\r\n" * 5_000,
            400,
        ),
        (get("/api/classes/"), 404),
        (post("/api/versions", b""), 405),
    ],
)  # fmt: skip
def test_bad_requests_are_answered_and_leave_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, status: int
) -> None:
    with serving(tmp_path, linger=0.5) as port:
        got, told = ask(port, sent)
        assert got == status
        assert (b"allow: GET" in told) == sent.startswith(b"POST /api/versions")
    assert not [record for record in caplog.records if record.exc_info]


# --- forms ---

FORMS: dict[str, tuple[bytes, bytes, int, bytes]] = {
    "a long boundary": (b"multipart/form-data; boundary=" + b"b" * 300, b"", 400, b"boundary"),
    "an empty boundary": (b"multipart/form-data; boundary=", b"----", 400, b"boundary"),
    "empty parts": (b"", b"--x\r\n\r\n\r\n" * 8_000 + b"--x--\r\n", 413, b"too many parts"),
    "many headers": (b"", PART + b"A: b\r\n" * 9 + b"\r\n" + END, 400, b"header"),
    "long headers": (b"", PART + b"A: " + b"b" * 4_000 + b"\r\n\r\n" + END, 400, b"too long"),
    "a long name": (
        b"",
        b"--x\r\nContent-Disposition: form-data; name=" + b"n" * 101 + b"\r\n\r\nv" + END,
        422,
        b"too long",
    ),
    "a field twice": (
        b"",
        b'--x\r\nContent-Disposition: form-data; name="class1"\r\n\r\nv\r\n' * 2 + END[2:],
        422,
        b"given twice",
    ),
}


@pytest.mark.parametrize("kind", FORMS)
def test_forms_that_are_too_much(tmp_path: Path, kind: str) -> None:
    content_type, body, status, words = FORMS[kind]
    header = b"Content-Type: %s\r\n" % content_type if content_type else FORM
    with serving(tmp_path) as port:
        got, told = ask(port, post("/api/learn", body, header))
    assert got == status
    assert words in told
    assert not list(tmp_path.glob(".pending-*"))


def test_few_requests_of_many_files_at_a_time(tmp_path: Path) -> None:
    files = (PART + b"\r\n\r\n") * 3
    head = b"POST /api/predict HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: 9000\r\n\r\n"
    busy = post("/api/predict", files + END[2:])
    with serving(tmp_path, few=2, large=1) as port, contextlib.ExitStack() as senders:
        while (got := _beside_a_sender(port, head + files, busy, senders)) == 422:
            pass  # it was quicker than the sender, which had to go: another one takes the place
        assert got == 503
        assert ask(port, post("/api/predict", PART + b"\r\n" + END))[0] == 422, "one file is fine"
        senders.close()
        while (got := ask(port, busy)[0]) == 503:
            pass
        assert got == 422


def test_slow_lessons_give_way_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "FRESH", 1e-6)
    head = b"POST /api/learn HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: 9000\r\n\r\n" + PART
    with serving(tmp_path, lessons=2, linger=0.1) as port, contextlib.ExitStack() as senders:
        slow = [senders.enter_context(connect(port)) for _ in range(2)]
        for one in slow:
            one.sendall(head)
        deadline = time.monotonic() + PATIENCE
        while len(list(tmp_path.glob(".pending-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ask(port, post("/api/learn", PART + b"\r\n" + END))[0] == 422, "it is heard"
        told = b""
        for one in slow:
            one.sendall(b"more")
            one.settimeout(5.0)
            with contextlib.suppress(TimeoutError):
                told += answer(one)
        assert told.count(b"gave way to another") == 1, "the other one is still waited for"


def test_places_go_from_the_slowest_but_not_from_who_has_sent_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("fewgraft.app.server.places.time.monotonic", lambda: now)
    all_places = places.Places(3)
    slow, quick, whole = (all_places.enter() for _ in range(3))
    assert slow
    assert quick
    assert whole
    slow.receive(10)
    quick.receive(1_000)
    whole.end()
    assert all_places.enter() is None, "nobody can be called slow yet"
    now += places.FRESH
    fresh = all_places.enter()
    assert fresh
    with pytest.raises(FewgraftError, match="gave way"):
        slow.receive(1)
    assert all_places.enter(), "the quick one was slower than none"
    with pytest.raises(FewgraftError, match="gave way"):
        quick.end()
    assert all_places.enter() is None, "one has sent all, and two have just come"
    slow.leave()  # which it has lost
    assert all_places.enter() is None
    whole.leave()
    assert all_places.enter()
    assert all_places.enter(taken=3) is None


def _beside_a_sender(port: int, begun: bytes, request: bytes, senders: contextlib.ExitStack) -> int:
    """The status of a request while another one, which was begun before, is being sent."""
    senders.enter_context(connect(port)).sendall(begun)
    return ask(port, request)[0]


@pytest.mark.parametrize("names", [("\u00e9", "e\u0301"), ("Robot", "robot")])
def test_two_classes_of_nearly_one_name(tmp_path: Path, names: tuple[str, str]) -> None:
    received = Received(texts={f"class{n}": name for n, name in enumerate(names)})
    with pytest.raises(RequestError, match=r"twice|nearly the same"):
        lay_out(received, tmp_path, Limits())


# --- zips ---


def zipped(comment: bytes = b"") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.png", b"some bytes")
        archive.comment = comment
    return made.getvalue()


def indexed(count: int, stated: int, between: bytes = b"") -> bytes:
    """A zip of nothing but an index of `count` entries, which states that it has `stated`."""
    entry = b"PK\1\2" + struct.pack("<6H3L5H2L", 20, 20, *[0] * 7, 1, *[0] * 6) + b"a"
    index = entry * count
    return (
        index + between + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, stated, stated, len(index), 0, 0)
    )


ZIPS: dict[str, tuple[Callable[[], bytes], str]] = {
    "zip64": (lambda: indexed(3, 3, struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)), "ZIP64"),
    "many": (lambda: indexed(60_000, 60_000), "too many files"),
    "many, and a lie": (lambda: indexed(60_000, 1), "its index is damaged"),
    "too long an index": (lambda: indexed(200_000, 1), "too many files"),
    "a prefix": (lambda: b"#!" + zipped(), "its end does not fit"),
    "a rest": (lambda: zipped() + b"rest", "its end does not fit"),
    "two ends": (lambda: zipped() + zipped()[-22:], "its end does not fit"),
    "an end in the comment": (lambda: zipped(zipped()[-22:] + b"x"), "its end does not fit"),
}


@pytest.mark.parametrize("kind", ZIPS)
def test_zips_are_refused_by_their_index(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, problem = ZIPS[kind]
    (tmp_path / "a.zip").write_bytes(make())
    monkeypatch.setattr(zipfile, "ZipFile", None)  # which must not come so far
    with pytest.raises(RequestError, match=problem):
        unpack(Upload("pile", "a.zip", tmp_path / "a.zip"), tmp_path, Budget(Limits()))


def test_zips_whose_files_overlap(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in ("a.png", "b.png"):
            archive.writestr(name, b"some bytes")
    content = made.getvalue().replace(b"b.png", b"a.png")
    index = bytearray(content[content.index(b"PK\1\2") :])
    struct.pack_into("<L", index, index.rindex(b"PK\1\2") + 42, 0)  # where the second one begins
    (tmp_path / "a.zip").write_bytes(content[: -len(index)] + index)
    with pytest.raises(RequestError, match="overlap"):
        unpack(Upload("pile", "a.zip", tmp_path / "a.zip"), tmp_path, Budget(Limits()))


def test_zips_together_have_a_number_of_entries(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(b"a comment does no harm"))
    archive = Upload("pile", "a.zip", tmp_path / "a.zip")
    budget = Budget(Limits(entries=2))
    for _ in range(2):
        assert [one.path.read_bytes() for one in unpack(archive, tmp_path, budget)] == [
            b"some bytes"
        ]
    with pytest.raises(RequestError, match="too many files"):
        unpack(archive, tmp_path, budget)


# --- the rest ---


def test_a_log_that_cannot_be_filled(capsys: pytest.CaptureFixture[str]) -> None:
    with log.sparing_log():
        for number in range(1_000):
            logging.getLogger("asyncio").error("out of files %d", number)
    assert len(capsys.readouterr().err.splitlines()) == log.LINES


def test_small_photos_do_not_wait_for_large_ones(tmp_path: Path) -> None:
    limits, go = Limits(light=100), threading.Event()
    versions = Versions("icons", tmp_path, limits)
    small, large = ((PART + b"\r\n" + _png(side) + END) for side in (9, 11))
    with (
        listening(create_app(versions, None, limits), limits) as port,
        ThreadPoolExecutor(8) as many,
    ):
        versions.decoders.heavy.submit(go.wait, PATIENCE)
        waiting = [many.submit(ask, port, post("/api/predict", large)) for _ in range(8)]
        try:
            for _ in range(4):
                assert ask(port, post("/api/predict", small))[0] == 200
            assert not any(one.done() for one in waiting)
        finally:
            go.set()
        assert {one.result()[0] for one in waiting} == {200}


def _png(side: int) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (side, side)).save(made, "PNG")
    return made.getvalue()


def test_decoders_are_shared_and_outlive_a_call() -> None:
    model = open_classifier("icons")
    photos = [np.full((40, 40, 3), shade, np.uint8) for shade in range(0, 250, 5)]
    alone = Embedder(model, keep=False)(photos)
    names: set[str] = set()

    class Counted(ThreadPoolExecutor):
        def submit(self, work: Any, /, *words: Any, **options: Any) -> Any:
            def named() -> Any:
                names.add(threading.current_thread().name)
                return work(*words, **options)

            return super().submit(named)

    with Counted(1) as pool:
        embed = Embedder(model, keep=False, decoders=pool)
        for _ in range(2):
            np.testing.assert_allclose(embed(photos).features, alone.features, atol=1e-5)
    assert len(names) == 1


def test_a_lesson_that_cannot_be_kept_is_still_there(tmp_path: Path) -> None:
    versions = Versions("icons", tmp_path / "kept")
    learnt = versions.pending("lesson") / "learnt"
    shutil.copytree(ZOO / "icons" / "algorithm-1", learnt)
    (versions.folder / "current.json").mkdir()  # which no file can replace
    with pytest.raises(OSError):
        versions.keep(learnt, "original")
    assert (learnt / "model.json").is_file()
    assert [one.name for one in versions.listed()] == ["original"]
    (versions.folder / "current.json").rmdir()
    assert versions.keep(learnt, "original") == "v2"
    for odd in ("[1]", '{"kept": 1}', "[" * 100_000, '{"current": true, "kept": "", "name": "x"}'):
        (versions.folder / "v2" / "version.json").write_text(odd)
        assert versions.listed()[0].problem == "its files are damaged"
    (versions.folder / "v7" / "rest").mkdir(parents=True)  # of a version that is gone
    shutil.copytree(ZOO / "icons" / "algorithm-1", learnt)
    assert versions.keep(learnt, "v2") == "v8"
    versions.close()
    (versions.folder / "v8" / "model.json").write_text("[]")
    with pytest.raises(FewgraftError, match=r"Delete .*current\.json"):
        Versions("icons", tmp_path / "kept")
