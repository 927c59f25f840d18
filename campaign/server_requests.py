"""Requests that no program of good will sends: refused in words, whatever they are."""

import contextlib
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaign.attack import Attack, Trial
from campaign.server_process import MB, Answer, Part, Served, form, head, photo, served, until

PATHS = (
    ("POST", "/api/predict"),
    ("GET", "/api/classes"),
    ("POST", "/api/learn"),
    ("GET", "/api/jobs"),
    ("GET", "/api/jobs/0123456789abcdef"),
    ("POST", "/api/jobs/0123456789abcdef/keep"),
    ("POST", "/api/jobs/0123456789abcdef/discard"),
    ("GET", "/api/versions"),
    ("POST", "/api/versions/original/use"),
)
TOKENS = b"a long secret"


# --- mutated requests ---

FRAGMENTS = (
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b"\xff", b": ", b" ", b"--", b"%00", b"%2e%2e/",
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 9999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Expect: 100-continue\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Host: evil.example\r\n", b"Host:\r\n",
    b"Content-Type: multipart/form-data\r\n", b"Origin: null\r\n", b"HTTP/1.0", b"HTTP/9.9",
    b'filename="', b"name=", b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"1;x=y\r\na\r\n",
)  # fmt: skip
METHODS = (b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"XYZ")


def bases() -> list[bytes]:
    """Sound requests to start from."""
    kind, body = form([("photo", "a.png", photo())])
    lesson, sent = form([("class1", None, b"a"), ("photos1", "a.png", b"no picture")])
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:50], body[50:])) + b"0\r\n\r\n"
    length, lesson_length = f"Content-Length: {len(body)}", f"Content-Length: {len(sent)}"
    return [
        head("POST", "/api/predict", f"Content-Type: {kind}", length) + b"\r\n" + body,
        head("POST", "/api/predict", f"Content-Type: {kind}", "Transfer-Encoding: chunked")
        + b"\r\n"
        + chunked,
        head("POST", "/api/learn", f"Content-Type: {lesson}", lesson_length) + b"\r\n" + sent,
        *(head(method, path) + b"\r\n" for method, path in PATHS if "predict" not in path),
    ]


def mutated(base: bytes, draw: random.Random) -> bytes:
    """One to six changes."""
    made = bytearray(base)
    for _ in range(draw.randint(1, 6)):
        place, end = draw.randrange(len(made) + 1), draw.randrange(len(made) + 1)
        match draw.randrange(7):
            case 0:
                made[place : place + 1] = draw.randbytes(1)
            case 1:
                made[place:place] = draw.choice(FRAGMENTS)
            case 2:
                del made[min(place, end) : min(place, end) + draw.randint(1, 40)]
            case 3:
                line = bytes(made).find(b"\r\n") + 2  # a header more
                made[line:line] = draw.choice(FRAGMENTS)
            case 4:
                made[place:place] = made[min(place, end) : max(place, end)]
            case 5:
                made[: max(0, bytes(made).find(b" "))] = draw.choice(METHODS)
            case 6:
                del made[max(place, 20) :]
    return bytes(made)


def raw(server: Served, content: bytes, wait: float = 0.15) -> bytes:
    """What comes back for these bytes within a moment."""
    got = b""
    with contextlib.suppress(OSError), server.connect(timeout=5) as one:
        with contextlib.suppress(OSError):
            one.sendall(content)
        one.settimeout(wait)
        while len(got) < MB and (more := one.recv(65536)):
            got += more
    return got


def parsed(answer: bytes) -> Answer:
    """The first answer in bytes that came back; 0 where there is none."""
    first, _, rest = answer.partition(b"\r\n")
    words = first.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        return Answer(0, answer)
    if words[1] == b"100":
        return parsed(rest.partition(b"\r\n")[2])
    return Answer(int(words[1]), rest.partition(b"\r\n\r\n")[2])


def mutated_requests(trial: Trial) -> None:
    """Each gets no answer, or one that is promised."""
    start = bases()
    with served(trial.folder) as server, ThreadPoolExecutor(8) as pool:
        for _ in trial.rounds(300, "mutated requests"):
            sent = [mutated(trial.random.choice(start), trial.random) for _ in range(16)]
            for one, got in zip(sent, pool.map(lambda c: raw(server, c), sent), strict=True):
                answer = parsed(got)
                trial.check(
                    answer.status != 500 and (not answer.body or answer.status > 0),
                    f"{answer.status} {got[:200]!r} for {one[:300]!r}",
                )
        _check_whole(trial, server)


def _check_whole(trial: Trial, server: Served) -> None:
    """After an attack: it answers, and has nothing to say in its log."""
    trial.check(server.predict(photo()).status == 200, "no answer after the attack")
    trial.check(server.quiet, f"the log: {server.log.read_text(errors='replace')[-1500:]}")
    left = until(lambda: not list((server.folder / "tmp").iterdir()), 20)
    trial.check(bool(left), "uploads were left behind")
    trial.check(server.peak < 1_000 * MB, f"{server.peak // MB} MB of memory")
    trial.notes.append(f"peak {server.peak // MB} MB")


# --- forms ---


def hostile_forms(draw: random.Random) -> list[tuple[str, str, bytes]]:
    """(what, content type, body) of forms that are sound HTTP and otherwise not sound."""
    kind = "multipart/form-data; boundary=x"
    part = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n'
    end = b"\r\n--x--\r\n"
    wide = b"".join(b"H%d: v\r\n" % n for n in range(5_000))
    return [
        ("empty parts", kind, b"--x\r\n\r\n\r\n" * draw.randint(7_000, 2_000_000) + b"--x--\r\n"),
        ("nameless parts", kind, b"--x\r\nA: b\r\n\r\nc\r\n" * 300_000 + b"--x--\r\n"),
        ("empty files", kind, (part + b"\r\n\r\n") * 6_000 + b"--x--\r\n"),
        ("many headers", kind, part + wide + b"\r\n" + end),
        ("a long header", kind, part + b"H: " + b"v" * 5_000_000 + b"\r\n\r\n" + end),
        ("a long header name", kind, b"--x\r\n" + b"v" * 5_000_000 + b": a\r\n\r\n" + end),
        ("a long field name", kind, b"--x\r\nContent-Disposition: form-data; name="
         + b"n" * 3_000 + b"\r\n\r\nv" + end),
        ("a long text", kind, b'--x\r\nContent-Disposition: form-data; name="class1"\r\n\r\n'
         + b"v" * 3_000_000 + end),
        ("no end", kind, part + b"\r\nabc"),
        ("only line ends", kind, b"\r\n" * 3_000_000),
        ("a long boundary", f"multipart/form-data; boundary={'b' * draw.randint(71, 9_000)}", b"x"),
        ("an empty boundary", "multipart/form-data; boundary=", b"--\r\n\r\n\r\n----\r\n"),
        ("an odd boundary", 'multipart/form-data; boundary="a\\"; b=c', b"--a\r\n"),
        ("a mixed type", "multipart/mixed; boundary=x", part + b"\r\nabc" + end),
        ("noise", kind, draw.randbytes(200_000)),
        ("noise in a part", kind, part + b"\r\n" + draw.randbytes(200_000) + end),
        ("a damaged part", kind, part.replace(b":", b";") + b"\r\nabc" + end),
        ("many semicolons", kind, b"--x\r\nContent-Disposition: form-data" + b";" * 3_900
         + b"\r\n\r\nv" + end),
        ("many options", kind, b"--x\r\nContent-Disposition: form-data"
         + b"".join(b";a%d=b" % n for n in range(500)) + b"\r\n\r\nv" + end),
    ]  # fmt: skip


def forms(trial: Trial) -> None:
    """Each is refused within seconds and in words."""
    with served(trial.folder) as server:
        for _ in trial.rounds(8, "hostile forms"):
            for what, kind, body in hostile_forms(trial.random):
                for path in ("/api/predict", "/api/learn"):
                    answer = server.ask("POST", path, body, {"Content-Type": kind})
                    # An answer before the end of a body may get lost with the connection.
                    refused = answer.fair and 400 <= answer.status < 500
                    trial.check(
                        refused or (not answer.status and len(body) > 100_000),
                        f"{what} at {path}: {answer.status} {answer.body[:200]!r}",
                    )
            crumbs = b"1\r\na\r\n" * 200_000
            kind = "Content-Type: multipart/form-data; boundary=x"
            begin = head("POST", "/api/predict", kind, "Transfer-Encoding: chunked") + b"\r\n"
            status = parsed(raw(server, begin + crumbs, 5)).status
            trial.check(status in (0, 400), f"a body in crumbs: {status}")
        _check_whole(trial, server)


# --- names ---

NAMES = (
    "", " ", ".", "..", "../up", "a/b", "a\\b", "C:", "\u202egnp", "a\x00b", "a\nb", "x" * 81,
    "é" * 80, "\U0001f600" * 61, "unknown", "UNKNOWN", "\ufffd", "\ufeff", "con", "a\u0301",
    "'; drop", "<img src=x onerror=alert(1)>", "$(reboot)", "-rf", "--out", "~", "%s%n", "{0}",
)  # fmt: skip


def names(trial: Trial) -> None:
    """A class of any name is refused in words or learnt under that name."""
    with served(trial.folder) as server:
        for number in trial.rounds(150, "class names"):
            name = NAMES[number % len(NAMES)]
            if number >= len(NAMES):
                points = [trial.random.choice((32, 90, 255, 0x10FFFF)) for _ in range(9)]
                text = "".join(chr(trial.random.randrange(p) + 1) for p in points)
                name = text.encode(errors="replace").decode()
            sent: list[Part] = [("class1", None, name.encode()), ("photos1", name, photo())]
            answer = server.send("/api/learn", sent)
            trial.check(answer.fair, f"{name!r}: {answer.status} {answer.body[:200]!r}")
            if answer.status == 202:
                known = unicodedata.normalize("NFC", name.strip())  # the same to the eye
                trial.check(list(answer.told["taught"]) == [known], f"{name!r} is another")
                server.ask("POST", f"/api/jobs/{answer.told['id']}/discard")
            else:
                trial.check(answer.status in (400, 413, 422), f"{name!r}: {answer.status}")
        outside = {"tmp", "home", "icons.versions", "server.log"}
        found = {path.name for path in trial.folder.iterdir()}
        trial.check(found <= outside, f"files out of place: {found - outside}")
        _check_whole(trial, server)


# --- zips ---


def zipped(entries: dict[str, bytes], comment: bytes = b"") -> bytes:
    """A sound zip."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        archive.comment = comment
    return made.getvalue()


def zip64(count: int) -> bytes:
    """An index of many entries that only a ZIP64 end record tells of."""
    entry = b"PK\1\2" + struct.pack("<6H3L5H2L", 20, 20, *[0] * 7, 1, *[0] * 6) + b"a"
    index = entry * count
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(index), 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(index), 1)
    most = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    return index + end + locator + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *most, 0)


def many_entries(count: int, stated: int) -> bytes:
    """An index of many entries whose number is a lie."""
    made = zip64(count)
    index = made[: made.index(b"PK\6\6")]
    record = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, stated, stated, len(index), 0, 0)
    return index + record


def hostile_zips() -> dict[str, Callable[[], bytes]]:
    """Each must be refused."""
    good = zipped({"a.png": photo()})
    return {
        "zip64": lambda: zip64(2_000_000),
        "zip64, small": lambda: zip64(3),
        "a lie of few": lambda: many_entries(170_000, 1),
        "a lie of none": lambda: many_entries(100_000, 0),
        "two ends": lambda: good + good[-22:],
        "an end in the comment": lambda: zipped({"a.png": photo()}, good[-22:] + b"x"),
        "a prefix": lambda: b"#!/bin/sh\n" * 100 + good,
        "rest": lambda: good + b"rest",
        "cut": lambda: good[:-5],
        "bomb": lambda: zipped({"a.png": bytes(19 * MB)}),
        "bombs": lambda: zipped({f"{n}.png": bytes(99_000) for n in range(5_100)}),
        "many": lambda: zipped({f"{n}.png": b"" for n in range(5_100)}),
        "folders": lambda: zipped({f"{n}/": b"" for n in range(30_000)}),
        "out": lambda: zipped({"../../../a.png": photo()}),
        "nested": lambda: zipped({"a.zip": good}),
    }


def zips(trial: Trial) -> None:
    """Hostile zips are refused; mutated ones are refused or learnt from, never a failure."""
    lesson: list[Part] = [("class1", None, b"a"), ("photos1", "a.png", photo())]
    with served(trial.folder) as server:
        for what, make in hostile_zips().items():
            answer = server.send("/api/learn", [*lesson, ("pile", "a.zip", make())])
            trial.check(
                answer.fair and answer.status in (413, 422),
                f"{what}: {answer.status} {answer.body[:200]!r}",
            )
        good = zipped({f"a/{n}.png": photo(n) for n in range(3)})
        for _ in trial.rounds(1_500, "mutated zips"):
            damaged = bytearray(good)
            index = good.index(b"PK\1\2")
            for _ in range(trial.random.randint(1, 4)):
                place = trial.random.randrange(trial.random.choice((0, index)), len(damaged))
                damaged[place : place + 1] = trial.random.randbytes(trial.random.choice((0, 1, 1)))
            field = trial.random.choice(("pile", "check"))
            answer = server.send("/api/learn", [*lesson, (field, "a.zip", bytes(damaged))])
            trial.check(
                answer.fair and answer.status in (202, 413, 422),
                f"{answer.status} {answer.body[:200]!r} for {bytes(damaged).hex()}",
            )
            if answer.status == 202:
                server.ask("POST", f"/api/jobs/{answer.told['id']}/discard")
        _check_whole(trial, server)


# --- tokens ---


def tokens(trial: Trial) -> None:
    """No path of the API answers without the token, however it is written."""
    token = TOKENS.decode()
    with served(trial.folder, "--host", "127.0.0.1", FEWGRAFT_TOKEN=token) as server:
        right = {"Authorization": f"Bearer {token}"}
        trial.check(server.ask("GET", "/api/classes", headers=right).status == 200, "the right one")
        for _ in trial.rounds(30, "wrong tokens"):
            draw = trial.random
            wrong = [
                "", "Bearer", "Bearer ", token, f"Basic {token}", f"Bearer {token[:-1]}",
                f"Bearer {token}{token}", f"Bearer {token.upper()}", "Bearer \xe9", "Bearer " * 500,
                "Bearer " + "".join(draw.choices("abc \t", k=draw.randint(1, 30))),
            ]  # fmt: skip
            for method, path in PATHS:
                for given in wrong:
                    answer = server.ask(method, path, headers={"Authorization": given})
                    trial.check(
                        answer.status in (401, 400) and answer.fair,
                        f"{method} {path} with {given!r}: {answer.status}",
                    )
                for other in ("/%61pi" + path[4:], "//" + path, "/./" + path, "/api/../" + path,
                              "http://localhost" + path, path + "/", path.upper()):  # fmt: skip
                    asked = head(method, other, "Connection: close") + b"\r\n"
                    status = parsed(raw(server, asked, 5)).status
                    trial.check(status in (400, 401, 404, 405), f"{method} {other}: {status}")
        trial.check(server.quiet, f"the log: {server.log.read_text(errors='replace')[-600:]}")


# --- schemathesis ---

ALWAYS = (  # what holds also where nothing is answered but 401
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def described(trial: Trial) -> None:
    """/openapi.json tells the truth: schemathesis finds no answer that it does not describe."""
    command = _schemathesis()
    if command is None:
        trial.check(False, "schemathesis is not installed: pip install -e '.[dev]'")
        return
    for token in ("", TOKENS.decode()):
        folder = trial.folder / ("open" if not token else "token")
        folder.mkdir()
        with served(folder, **({"FEWGRAFT_TOKEN": token} if token else {})) as server:
            for given in {"", token}:
                _run_schemathesis(trial, server, command, given, refused=bool(token and not given))
            trial.check(server.quiet, f"the log: {server.log.read_text(errors='replace')[-900:]}")
            _discard_all(server, token)


def _schemathesis() -> list[str] | None:
    beside = Path(sys.executable).with_name("schemathesis")
    found = str(beside) if beside.exists() else shutil.which("schemathesis")
    return [found] if found else None


def _run_schemathesis(
    trial: Trial, server: Served, command: list[str], token: str, refused: bool
) -> None:
    examples = max(5, round(60 * trial.scale))
    words = ["run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks", "all"]
    words += ["--max-examples", str(examples), "--seed", str(trial.random.randrange(1 << 30))]
    phases = "examples,coverage,fuzzing" if trial.scale > 0.1 else "fuzzing"
    words += ["--phases", phases, "--no-color"]
    words += ["--header", f"Authorization: Bearer {token}"] if token else []
    # What is sent at random is rarely a photo, and no operation deletes anything.
    words += ["--exclude-checks", "positive_data_acceptance"]
    if refused:
        words[words.index("all")] = ",".join(ALWAYS)
        words = words[: words.index("--exclude-checks")]
    done = subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        cwd=server.folder,
        env=dict(os.environ) | {"PYTHONPATH": "", "COLUMNS": "120"},
        timeout=900,
        check=False,
    )
    trial.check(done.returncode == 0, f"schemathesis: {done.stdout[-6000:]}{done.stderr[-500:]}")


def _discard_all(server: Served, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for job in json.loads(server.ask("GET", "/api/jobs", headers=headers).body or b"[]"):
        server.ask("POST", f"/api/jobs/{job['id']}/discard", headers=headers)


ATTACKS = (
    Attack("mutated requests", "an answer in words or none; never 500, never a traceback",
           mutated_requests),
    Attack("hostile forms", "refused in words, whatever is in them", forms),
    Attack("hostile class names", "refused in words or learnt as they are; no file out of place",
           names),
    Attack("hostile zips", "refused before they are unpacked; never a failure", zips),
    Attack("wrong tokens", "401 on every path of the API", tokens),
    Attack("schemathesis", "/openapi.json describes every answer", described),
)  # fmt: skip
