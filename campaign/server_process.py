"""A real server to attack: its memory, its log, and ways to talk to it politely or not."""

import contextlib
import http.client
import io
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from PIL import Image

from campaign.attack import environment

MB = 1_000_000
PATIENCE = 120.0  # seconds, before something that should happen is taken not to
Part = tuple[str, str | None, bytes]  # field, file name, content


class Answer(NamedTuple):
    """What came back; status 0: the connection ended without an answer."""

    status: int
    body: bytes

    @property
    def told(self) -> Any:
        """The JSON in it; None where there is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def fair(self) -> bool:
        """An answer of the kinds that are promised: no 500, and errors in words."""
        if self.status >= 400:
            told = self.told
            return self.status != 500 and isinstance(told, dict) and bool(told.get("error"))
        return self.status >= 200


DECODER = "fewgraft.data.heic.decoder"


class Served:
    """A process of `fewgraft serve icons` with folders of its own below `folder`."""

    def __init__(self, folder: Path, *options: str, before: Sequence[str] = (), **env: str) -> None:
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.versions = folder / "icons.versions"
        self.log = folder / "server.log"
        self.peak = 0  # bytes of memory, as seen so far
        own = environment(folder / "home") | {"TMPDIR": str(folder / "tmp")} | env
        words = ["-P", "-m", "fewgraft", "serve", "icons", "--port", "0", *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, *words],
                cwd=folder,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout
        self.said = self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)", self.said)
        self.port = int(found[1]) if found else 0
        self._watched = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(psutil.Error):
            while not self._watched.wait(0.02):
                self.rss()

    def rss(self) -> int:
        """Bytes of memory now, with those of the processes that decode HEIC; lessons are apart."""
        process = psutil.Process(self.process.pid)
        now = int(process.memory_info().rss)
        for child in process.children():
            with contextlib.suppress(psutil.Error):  # it may end meanwhile
                now += child.memory_info().rss if DECODER in child.cmdline() else 0
        self.peak = max(self.peak, now)
        return now

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    @property
    def quiet(self) -> bool:
        """Whether its log is short and without a traceback."""
        return self.log.stat().st_size < MB and b"Traceback" not in self.log.read_bytes()

    def connect(self, timeout: float = PATIENCE) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> Answer:
        """A whole request; an answer of status 0 where the connection is refused or cut."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.read())
        except (OSError, http.client.HTTPException):
            return Answer(0, b"")
        finally:
            connection.close()

    def send(self, path: str, parts: Sequence[Part], **headers: str) -> Answer:
        """A form."""
        kind, body = form(parts)
        return self.ask("POST", path, body, {"Content-Type": kind, **headers})

    def predict(self, *photos: bytes) -> Answer:
        """Ask what is on photos."""
        return self.send("/api/predict", [("photo", f"{n}.png", p) for n, p in enumerate(photos)])

    def learn(self, name: str = "robot", shots: int = 2) -> str:
        """Start a small lesson; its job, or nothing where it was refused."""
        photos: list[Part] = [("photos1", f"{n}.png", photo(n)) for n in range(shots)]
        told = self.send("/api/learn", [("class1", None, name.encode()), *photos])
        return str(told.told["id"]) if told.status == 202 else ""

    def job(self, name: str) -> Any:
        """A job, as it is told."""
        return self.ask("GET", f"/api/jobs/{name}").told

    def stop(self) -> None:
        """As a person stops it."""
        self._watched.set()
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9."""
        self._watched.set()
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def served(folder: Path, *options: str, before: Sequence[str] = (), **env: str) -> Iterator[Served]:
    """A server for the length of a block."""
    server = Served(folder, *options, before=before, **env)
    try:
        if not server.port:
            raise RuntimeError(f"no server: {server.said} {server.log.read_text()}")
        yield server
    finally:
        server.stop()


def until(happens: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What `happens` gives, once that is anything; None after so many seconds."""
    end = time.monotonic() + seconds
    while not (found := happens()):
        if time.monotonic() > end:
            return None
        time.sleep(0.05)
    return found


def form(parts: Sequence[Part], boundary: str = "0123456789abcdef") -> tuple[str, bytes]:
    """(content type, body) of a multipart form."""
    body = io.BytesIO()
    for field, name, content in parts:
        file = f'; filename="{name}"' if name is not None else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"{file}\r\n\r\n'
        body.write(head.encode() + content + b"\r\n")
    body.write(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", body.getvalue()


def photo(seed: int = 0, side: int = 32) -> bytes:
    """A small picture of noise, as PNG."""
    packed = io.BytesIO()
    noise = random.Random(seed).randbytes(side * side)
    Image.frombytes("L", (side, side), noise).save(packed, "PNG")
    return packed.getvalue()


def head(method: str, path: str, *headers: str) -> bytes:
    """The beginning of a request, without its last, empty line."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode()


def open_files() -> int:
    """How many connections this process may hold."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100
