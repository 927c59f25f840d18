"""The server: a real process, a real browser, real kills."""

import base64
import http.client
import io
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import psutil
import pytest
from pages import LOOKS, logged, looked_at
from PIL import Image
from typer.testing import CliRunner

from fewgraft.app.features.embedding import Embedder
from fewgraft.app.learning.predicting import predict
from fewgraft.app.learning.saving import open_classifier
from fewgraft.app.server import guard, lessons, refusals, uploads, versions
from fewgraft.app.server.examples import Examples, examples_of
from fewgraft.cli import app, serve
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.progress import json_lines
from fewgraft.zoo import ZOO

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PATIENCE = 60  # seconds, before something that should happen is taken not to
TAUGHT = ("robot", "sun")
Files = list[tuple[str, tuple[str | None, bytes | str]]]


# --- a server, and photos for it ---


class Server:
    """A process of `fewgraft serve`, on a port of its own."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        (folder / "tmp").mkdir(exist_ok=True)
        own = {"FEWGRAFT_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), **environment}
        self.versions = folder / "icons.versions"
        self.temporary = folder / "tmp"
        with (folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fewgraft", "serve", "icons", "--port", "0", *options],
                cwd=folder,
                env={**os.environ, **own},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout
        said = self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)", said)
        assert found, (said, (folder / "server.log").read_text())
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"
        # No connection is kept: the server may close an idle one just as the next request is sent.
        once = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE, limits=once)

    def ask(self, method: str, path: str, files: Files | None = None) -> Any:
        response = self.client.request(method, f"/api/{path}", files=files)
        assert response.is_success, response.text
        return response.json()

    def learn(self, files: Files) -> str:
        response = self.client.post("/api/learn", files=files)
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    def job(self, name: str, *states: str) -> Any:
        """The job, once it is in one of these states."""
        return until(lambda: (j := self.ask("GET", f"jobs/{name}"))["state"] in states and j)

    def learner(self) -> psutil.Process:
        """The process of the lesson that runs."""
        children = psutil.Process(self.process.pid).children
        return until(lambda: next(iter(children()), None))

    def pending(self) -> list[Path]:
        return [*self.versions.glob(".pending-*"), *self.temporary.iterdir()]

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(PATIENCE)


def until(happens: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := happens()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


@contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[Server]:
    server = Server(folder, *options, **environment)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture
def server(served: Server) -> Server:
    """The one server of these tests, with the original in use and no lesson open."""
    served.ask("POST", "versions/original/use")
    for job in served.ask("GET", "jobs"):
        if job["state"] not in ("kept", "discarded"):
            served.ask("POST", f"jobs/{job['id']}/discard")
    until(lambda: not served.pending())
    return served


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    packed = io.BytesIO()
    Image.fromarray(pixels[:, :, 0]).save(packed, format="PNG")
    return packed.getvalue()


@pytest.fixture(scope="module")
def pictures(icons: ImageStore) -> Callable[[str, int], list[bytes]]:
    """The first pictures of a class, as PNG."""

    def of(name: str, count: int) -> list[bytes]:
        label = icons.classes.index(name)
        return [png(icons.pictures[i]) for i in np.flatnonzero(icons.labels == label)[:count]]

    return of


@pytest.fixture(scope="module")
def photo(pictures: Callable[[str, int], list[bytes]]) -> bytes:
    return pictures("robot", 1)[0]


Pictures = Callable[[str, int], list[bytes]]


def files(field: str, contents: Iterable[bytes], suffix: str = "png") -> Files:
    return [(field, (f"{n}.{suffix}", content)) for n, content in enumerate(contents)]


def named(number: int, name: str) -> Files:
    return [(f"class{number}", (None, name))]


def lesson(pictures: Pictures, name: str = "robot", shots: int = 2) -> Files:
    return named(1, name) + files("photos1", pictures(name, shots))


def packed(entries: dict[str | zipfile.ZipInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


# --- recognise ---


def test_answers_are_those_of_the_command(server: Server, pictures: Pictures) -> None:
    photos = [picture for name in ("alarm", "robot", "bag") for picture in pictures(name, 2)]
    told = server.ask("POST", "predict", files("photo", photos))
    assert told["version"] == "original"
    expected = list(predict(Embedder(open_classifier("icons"), keep=False), photos))
    for one, same in zip(told["photos"], expected, strict=True):
        assert one["label"] == same.label
        assert one["classes"][0] == {"name": same.best, "score": pytest.approx(same.score)}
        assert one["classes"][1]["name"] == same.second
        assert len(one["classes"]) == 5
    classes = server.ask("GET", "classes")["classes"]
    assert [one["name"] for one in classes] == list(open_classifier("icons").card.classes)


def test_one_damaged_photo_does_not_spoil_the_others(server: Server, photo: bytes) -> None:
    told = server.ask("POST", "predict", files("photo", [photo, photo[:60], b""]))["photos"]
    assert told[0]["label"]
    assert not told[0]["problem"]
    assert told[1]["problem"]
    assert told[2]["problem"] == "empty file"


def test_a_photo_of_a_telephone(server: Server, icons: ImageStore) -> None:
    """HEIC, without loss: the answer is that for the same picture as PNG."""
    pytest.importorskip("pillow_heif").register_heif_opener()
    image, told = Image.fromarray(icons.pictures[0][:, :, 0]).resize((64, 64)), []
    for kind, options in (("PNG", {}), ("HEIF", {"quality": -1})):
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        sent = files("photo", [stream.getvalue()], kind.lower())
        told.append(server.ask("POST", "predict", sent)["photos"][0])
    assert told[0]["label"] == told[1]["label"]
    assert told[1]["classes"][0]["score"] == pytest.approx(told[0]["classes"][0]["score"], abs=0.02)


def test_hundreds_at_once(server: Server, pictures: Pictures) -> None:
    photos = pictures("robot", 10)
    alone = [server.ask("POST", "predict", files("photo", [p]))["photos"][0] for p in photos]

    def ask(number: int) -> tuple[int, Any]:
        response = server.client.post("/api/predict", files=files("photo", [photos[number % 10]]))
        return response.status_code, response.json()["photos"][0]

    server.client.close()
    limits = httpx.Limits(max_connections=300, max_keepalive_connections=0)
    server.client = httpx.Client(base_url=server.url, timeout=PATIENCE, limits=limits)
    with ThreadPoolExecutor(300) as pool:
        answers = list(pool.map(ask, range(300)))
    for number, (status, answer) in enumerate(answers):
        assert status == 200
        assert answer["label"] == alone[number % 10]["label"]
        assert answer["classes"][0]["score"] == pytest.approx(
            alone[number % 10]["classes"][0]["score"], abs=1e-4
        )
    assert not server.pending()


def test_the_description_of_the_api_needs_nobody_else(server: Server) -> None:
    described = server.client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/api/predict",
        "/api/classes",
        "/api/learn",
        "/api/jobs",
        "/api/jobs/{name}",
        "/api/jobs/{name}/keep",
        "/api/jobs/{name}/discard",
        "/api/jobs/{name}/predict",
        "/api/examples",
        "/api/versions",
        "/api/versions/{name}/use",
    }
    for path in ("/docs", "/redoc", "/api/nothing", "/../pyproject.toml"):
        missing = server.client.get(path)
        assert missing.status_code == 404
        assert "openapi.json" in missing.json()["hint"]


# --- what is refused ---

LINK = zipfile.ZipInfo("link.png")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16


def encrypted(photo: bytes) -> bytes:
    """A zip that says that its entry is encrypted."""
    content = bytearray(packed({"secret.png": photo}))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def damaged(archive: bytes) -> bytes:
    return archive[:60] + b"...." + archive[64:]


BAD_ZIPS: dict[str, tuple[Callable[[bytes], bytes], str, int]] = {
    "dots": (lambda p: packed({"../evil.png": p}), "'evil.png' in 'bad.zip' leads out", 422),
    "absolute": (lambda p: packed({"/etc/evil.png": p}), "leads out of the zip", 422),
    "backslash": (lambda p: packed({"..\\evil.png": p}), "leads out of the zip", 422),
    "drive": (lambda p: packed({"C:/evil.png": p}), "leads out of the zip", 422),
    "link": (lambda _: packed({LINK: b"/etc/passwd"}), "'link.png' in 'bad.zip' is a link", 422),
    "encrypted": (encrypted, "'secret.png' in 'bad.zip' is encrypted", 422),
    "bomb": (lambda _: packed({"big.png": bytes(15_000_000)}), "packed too tightly", 413),
    "large": (lambda _: packed({"big.png": bytes(21_000_000)}), "larger than 20 MB", 413),
    "text": (lambda p: packed({"a.png": p, "notes.txt": b"hi"}), "'notes.txt' in 'bad.zip'", 422),
    "nothing": (lambda _: packed({"a/.hidden": b"", "b/": b""}), "'bad.zip' holds no photos", 422),
    "damaged": (lambda p: damaged(packed({"a.png": p})), "no zip that can", 422),
    "no zip": (lambda _: b"PK but not for long", "'bad.zip' is not a zip", 422),
    "cut": (lambda p: packed({"a.png": p})[30:], "no zip that can be opened", 422),
}


@pytest.mark.parametrize("kind", BAD_ZIPS)
def test_bad_zips_are_refused_by_name(
    server: Server, photo: bytes, pictures: Pictures, kind: str
) -> None:
    make, problem, status = BAD_ZIPS[kind]
    sent = [*lesson(pictures), ("pile", ("bad.zip", make(photo)))]
    refused = server.client.post("/api/learn", files=sent)
    assert refused.status_code == status, refused.text
    assert set(refused.json()) == {"error", "hint"}
    assert problem in refused.json()["error"]
    assert not server.pending(), "what was sent is still there"


BAD_FORMS: dict[str, tuple[Callable[[bytes], Files], str, int]] = {
    "no name": (lambda p: named(1, "  ") + files("photos1", [p]), "has no name", 422),
    "long name": (lambda p: named(1, "x" * 81) + files("photos1", [p]), "longer than 80", 422),
    "path": (lambda p: named(1, "../up") + files("photos1", [p]), "cannot be the name", 422),
    "hidden": (lambda p: named(1, ".git") + files("photos1", [p]), "cannot be the name", 422),
    "bell": (lambda p: named(1, "a\x07b") + files("photos1", [p]), "cannot be the name", 422),
    "unknown": (lambda p: named(1, "Unknown") + files("photos1", [p]), "can be called", 422),
    "twice": (
        lambda p: named(1, "a") + named(2, "a") + files("photos1", [p]) + files("photos2", [p]),
        "'a' is named twice",
        422,
    ),
    "no photo": (lambda _: named(1, "a"), "'a' has no photo", 422),
    "no class": (lambda p: files("pile", [p]), "no class to learn", 422),
    "misspelt": (
        lambda p: named(1, "a") + files("photos1", [p]) + files("piel", [p]),
        "no place for the files of 'piel'",
        422,
    ),
    "no picture": (
        lambda _: named(1, "a") + files("photos1", [b"hello"], "txt"),
        "'0.txt' cannot be used: not a picture",
        422,
    ),
    "many pixels": (
        lambda _: named(1, "a") + files("photos1", [enormous()]),
        "more than 80,000,000 pixels",
        422,
    ),
    "large file": (
        lambda _: named(1, "a") + files("photos1", [bytes(20_000_001)]),
        "'0.png' is larger than 20 MB",
        413,
    ),
    "check without folders": (
        lambda p: [
            *named(1, "a"),
            *files("photos1", [p]),
            ("check", ("c.zip", packed({"a.png": p}))),
        ],
        "'a.png' in 'c.zip' lies in no class folder",
        422,
    ),
}


def enormous() -> bytes:
    """A small file that claims to be 10,000 × 8,001 pixels."""
    content = bytearray(png(np.zeros((1, 1, 1), np.uint8)))
    content[16:24] = struct.pack(">II", 10_000, 8_001)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.parametrize("kind", BAD_FORMS)
def test_bad_forms_are_refused_by_name(server: Server, photo: bytes, kind: str) -> None:
    make, problem, status = BAD_FORMS[kind]
    refused = server.client.post("/api/learn", files=make(photo))
    assert refused.status_code == status, refused.text
    assert problem in refused.json()["error"]
    assert not server.pending()


def test_requests_that_are_no_forms(server: Server) -> None:
    post = server.client.post
    assert post("/api/predict", json={"photo": "x"}).status_code == 415
    assert post("/api/predict", files=files("picture", [b"x"])).status_code == 400
    kind = {"content-type": "multipart/form-data; boundary=x"}
    cut = post("/api/predict", headers=kind, content=b"--x\r\nContent-Disposition: form-data; na")
    assert cut.status_code == 400
    refused = post("/api/predict", files=files("photo", [b"hello"], "txt"))
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("'0.txt' cannot be used")
    odd = post("/api/predict?unknown=perhaps", files=files("photo", [b"hello"], "txt"))
    assert odd.status_code == 422
    assert odd.json()["error"].startswith("'unknown' cannot be read")
    for path in (
        "jobs/none/keep",
        "jobs/none/discard",
        "versions/..%2Fhome/use",
        "versions/v9/use",
    ):
        assert post(f"/api/{path}").status_code == 404
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.putrequest("POST", "/api/learn")
    connection.putheader("Content-Length", "500000001")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def received(folder: Path, sent: list[tuple[str, bytes]]) -> uploads.Received:
    made = uploads.Received({"class1": "a"})
    for number, (name, content) in enumerate(sent):
        path = folder / f"{number:05}"
        path.write_bytes(content)
        field = "pile" if number else "photos1"
        made.files.append(uploads.Upload(field, name, path))
    return made


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (refusals.Limits(unpacked=1_000), "hold more than"),
        (refusals.Limits(files=6), "more than 6 photos"),
    ],
)
def test_zips_share_one_allowance(
    tmp_path: Path, photo: bytes, limits: refusals.Limits, problem: str
) -> None:
    archive = packed({f"{n}.png": photo for n in range(3)})
    sent = [("a.png", photo), ("one.zip", archive), ("two.zip", archive)]
    (tmp_path / "within").mkdir()
    within = received(tmp_path / "within", sent[:2])
    assert lessons.lay_out(within, tmp_path / "within", refusals.Limits(files=4)).photos == 4
    with pytest.raises(refusals.RequestError, match=problem):
        lessons.lay_out(received(tmp_path, sent), tmp_path, limits)


def test_names_of_files_are_no_paths(tmp_path: Path, photo: bytes) -> None:
    hostile = ["../../up.png", "C:\\x\\..\\up.png", "/etc/passwd", "\x00\n", "….png" * 90]
    sent = received(tmp_path, [("a.png", photo), *((name, photo) for name in hostile)])
    asked = lessons.lay_out(sent, tmp_path, refusals.Limits())
    assert asked.pile == len(hostile)
    stored = sorted(path.name for path in (tmp_path / "pile").iterdir())
    assert stored[0] == "00000-up.png"
    assert len(stored) == len(hostile)
    assert all(re.fullmatch(r"\d{5}-[\w.]+", name, re.ASCII) and len(name) < 80 for name in stored)


# --- who may ask ---


def test_pages_of_others_may_not_ask(server: Server) -> None:
    def status(**headers: str) -> int:
        return server.client.get("/api/classes", headers=headers).status_code

    assert status() == status(Host="localhost:1") == status(Host=f"[::1]:{server.port}") == 200
    assert status(Host="rebound.example:8000") == status(Host="") == 403
    assert status(Host="127.0.0.1.example") == status(Host="localhost@evil.example") == 403
    assert status(Origin=server.url) == 200
    assert status(Origin="https://evil.example") == status(Origin="null") == 403
    assert status(Origin="http://127.0.0.1:3000") == 403
    assert server.client.get("/", headers={"Host": "rebound.example"}).status_code == 403


def test_what_is_local() -> None:
    assert all(map(guard.is_local, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(guard.is_local, ("0.0.0.0", "::", "192.168.1.4", "localhost.example", "")))


def test_a_token_is_a_must_beyond_localhost() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.4"):
        with pytest.raises(FewgraftError, match="a token is needed"):
            CliRunner().invoke(app, ["serve", "icons", "--host", host], catch_exceptions=False)


def test_the_token_opens_the_api_and_the_page_asks_for_it(
    browser: "Chrome", tmp_path: Path
) -> None:
    with serving(tmp_path, "--host", "0.0.0.0", FEWGRAFT_TOKEN="a long secret") as server:

        def status(given: str) -> int:
            headers = {b"Authorization": given.encode(), b"Host": b"photos.example"}
            return server.client.get("/api/classes", headers=headers).status_code

        assert status("Bearer a long secret") == 200
        for wrong in ("", "Bearer", "Bearer a long secre", "Basic a long secret", "Bearer é"):
            assert status(wrong) == 401, wrong
        assert server.client.post("/api/versions/original/use").status_code == 401
        browser.get(server.url)
        page = Page(browser)
        page.write("#token", "guess\n")
        page.until_text("#token-why", "not the right one")
        page.write("#token", "a long secret\n")
        page.until_text("#serving", "108 classes")


# --- the page ---


class Page:
    """What a person does with the page, by CSS selectors."""

    def __init__(self, browser: "Chrome") -> None:
        self.browser = browser

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str, words: str = "") -> Any:
        """The first that can be seen and says this, once there is one."""
        from selenium.common.exceptions import StaleElementReferenceException

        def found() -> Any:
            try:
                shown = (e for e in self.all(selector) if e.is_displayed() and words in e.text)
                return next(shown, None)
            except StaleElementReferenceException:  # the page was faster
                return None

        return until(found)

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def button(self, words: str) -> Any:
        return self.one("button", words)

    def write(self, selector: str, text: str) -> None:
        self.one(selector).send_keys(text)

    def choose(self, selector: str, paths: Iterable[Path]) -> None:
        self.all(selector)[-1].send_keys("\n".join(map(str, paths)))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
        return list(self.browser.execute_script(script, selector))

    def until_text(self, selector: str, words: str) -> None:
        until(lambda: words in " ".join(self.texts(selector)))


@pytest.fixture(scope="module")
def folder(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NAME/ with 3 examples and more to ask for, pile/ and pile.zip."""
    root = tmp_path_factory.mktemp("photos")
    (root / "pile").mkdir()
    in_zip: dict[str | zipfile.ZipInfo, bytes] = {"__MACOSX/._1.png": b"", "a/": b""}
    for name in (*TAUGHT, "bag", "alarm"):
        (root / name).mkdir()
        for number, content in enumerate(pictures(name, 29)):
            if number < 9:
                (root / name / f"{number}.png").write_bytes(content)
            elif number < 19:
                (root / "pile" / f"{name}-{number}.png").write_bytes(content)
            else:
                in_zip[f"a/{name}-{number}.png"] = content
    (root / "pile.zip").write_bytes(packed(in_zip))
    return root


def teach(page: Page, folder: Path) -> None:
    page.click("#tab-teach")
    for number, name in enumerate(TAUGHT):
        if number:
            page.click("#add-class")
        page.all(".class .name")[-1].send_keys(name)
        page.choose(".class .photos", [folder / name / f"{n}.png" for n in range(3)])
    page.choose("#pile", [*sorted((folder / "pile").iterdir()), folder / "pile.zip"])
    page.until_text("#pile-count", "40 photos and 1 zip")
    page.click("#start")


def test_teach_discard_teach_keep_and_roll_back(
    browser: "Chrome", server: Server, folder: Path
) -> None:
    page = Page(browser)
    logged(browser, "browser")
    browser.get(f"{server.url}/#recognise")
    page.until_text("#serving", "original · 108 classes")
    asked = sorted(path for name in (*TAUGHT, "bag") for path in (folder / name).iterdir())

    teach(page, folder)
    page.until_text(".job h2", "Learnt robot, sun")
    facts = " ".join(page.texts(".facts li"))
    assert "not measured" in facts
    assert re.search(r"\d+ of 80", facts)
    helpers = page.all(".helpers img")
    assert helpers
    assert all(image.get_property("naturalWidth") == 96 for image in helpers)
    page.until_text("#serving", "original")
    page.button("Discard").click()
    until(lambda: not page.all(".job"))
    assert not server.pending()
    page.click("#tab-versions")
    page.until_text("#version-list", "108 classes")
    assert len(page.all("#version-list li")) == 1

    teach(page, folder)
    page.until_text(".job h2", "Learnt robot, sun")
    browser.refresh()  # a decision that is open outlives the page
    page.button("Keep").click()
    page.until_text(".job h2", "v2 knows robot, sun")
    page.until_text("#serving", "v2 · 110 classes")
    assert not server.pending()
    page.click("#tab-recognise")
    page.choose("#photo", asked)
    sent = files("photo", [path.read_bytes() for path in asked])
    labels = [one["label"] for one in server.ask("POST", "predict", sent)["photos"]]
    assert {"robot", "sun"} <= set(labels)
    assert "unknown" not in labels, "without check photos nothing says when to reject"
    sure = server.ask("POST", "predict?unknown=false", sent)["photos"]
    assert [one["label"] for one in sure] == [one["classes"][0]["name"] for one in sure]
    until(lambda: page.texts(".answer .label") == [n.replace("unkn", "Unkn") for n in labels])
    assert len(page.all(".answer:first-child .bars li")) == 5

    page.click("#tab-versions")
    page.click("[aria-label='Use original']")
    page.until_text("#serving", "original · 108 classes")
    assert json.loads((server.versions / "current.json").read_text()) == {"current": "original"}
    assert {v["name"]: v["current"] for v in server.ask("GET", "versions")["versions"]} == {
        "v2": False,
        "original": True,
    }
    loud = [line for line in logged(browser, "browser") if line["level"] != "DEBUG"]
    assert [line["message"] for line in loud] == []


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_fits_and_asks_this_server_only(
    browser: "Chrome", server: Server, folder: Path, width: int, scheme: str
) -> None:
    looked_at(browser, width, scheme)
    browser.get("about:blank")
    browser.get(server.url)
    page = Page(browser)
    page.choose("#photo", [folder / "robot" / "3.png"])
    page.until_text(".answer", "%")
    for tab in ("recognise", "teach", "versions"):
        page.click(f"#tab-{tab}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect()"
        assert browser.execute_script(f"return {wide}.right > innerWidth).length") == 0
        nameless = (
            "return [...document.querySelectorAll('input, button')].filter(e => !e.labels?.length"
            " && !e.textContent.trim() && !e.ariaLabel).length"
        )
        assert browser.execute_script(nameless) == 0
    entries = "performance.getEntriesByType('resource').map(e => e.name)"
    asked = browser.execute_script(f"return {entries}")
    assert asked
    assert all(name.startswith((server.url, "blob:", "data:")) for name in asked)
    body = "getComputedStyle(document.body).backgroundColor"
    assert (browser.execute_script(f"return {body}") == "rgb(20, 23, 26)") == (scheme == "dark")


BROKEN_FIGURES = """
    return [...document.querySelectorAll('.value, .facts .meaning')].flatMap((element) => {
      const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
      const texts = [];
      while (walker.nextNode()) texts.push(walker.currentNode);
      return texts.flatMap((text) => [...text.data.matchAll(/[\\d.]+\\s%/g)].filter((figure) => {
        const range = document.createRange();
        range.setStart(text, figure.index);
        range.setEnd(text, figure.index + figure[0].length);
        return new Set([...range.getClientRects()].map((box) => box.top)).size > 1;
      }).map((figure) => figure[0]));
    })
"""


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_visitor_without_photos(
    browser: "Chrome", server: Server, width: int, scheme: str
) -> None:
    """Examples to click; the result above the emptied form, and first what is not known."""
    looked_at(browser, width, scheme)
    browser.get("about:blank")
    browser.get(server.url)
    page = Page(browser)
    page.one("#examples button")
    robot = page.all("#examples button")[-2]
    robot.click()
    page.until_text(".answer .file", "robot")
    [before] = page.texts(".answer .label")
    assert before != "robot"
    page.click("#tab-teach")
    page.click("#example-lesson")
    page.until_text("#pile-count", "40 photos")
    page.click("#start")
    page.until_text(".job h2", "Learnt robot, sun")
    assert [name.get_property("value") for name in page.all(".class .name")] == [""]
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    assert browser.execute_script(top, ".job") < browser.execute_script(top, "#lesson")
    order = "return [...document.querySelector('.job').children].map(e => e.className)"
    assert browser.execute_script(order)[1] == "warning"
    page.until_text(".job .sides", "Before (original)")
    assert page.texts(".sides .label") == [before, "robot"]
    assert "%" in " ".join(page.texts(".job .value"))
    assert browser.execute_script(BROKEN_FIGURES) == []
    wide = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect()"
    assert browser.execute_script(f"return {wide}.right > innerWidth).length") == 0

    page.button("Measure it").click()
    assert [name.get_property("value") for name in page.all(".class .name")] == ["robot", "sun"]
    assert len(page.all(".class .thumbs img")) == 6
    page.until_text("#pile-count", "40 photos")
    assert browser.switch_to.active_element.get_attribute("id") == "check"
    page.button("Keep").click()
    page.until_text(".job h2", "knows robot, sun")
    assert page.texts(".sides .label") == [before, "robot"]


PASTE = """
    const bytes = Uint8Array.from(atob(arguments[0]), (byte) => byte.charCodeAt(0));
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File([bytes], "image.png", { type: "image/png" }));
    document.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
"""


def test_photos_that_are_pasted_or_taken(browser: "Chrome", server: Server, photo: bytes) -> None:
    looked_at(browser, 1280, "light")
    browser.get("about:blank")
    browser.get(server.url)
    page = Page(browser)
    browser.execute_script(PASTE, base64.b64encode(photo).decode())
    page.until_text(".answer .file", "image.png")
    page.click("#camera-photo")
    until(lambda: browser.execute_script("return document.getElementById('video').videoWidth"))
    page.button("Take it").click()
    page.until_text(".answer .file", "camera.jpg")
    assert browser.execute_script("return document.getElementById('video').srcObject") is None
    page.click("#tab-teach")
    browser.execute_script(PASTE, base64.b64encode(photo).decode())
    until(lambda: len(page.all(".class .thumbs img")) == 1)
    page.click(".class .camera")
    until(lambda: browser.execute_script("return document.getElementById('video').videoWidth"))
    page.button("Cancel").click()
    assert len(page.all(".class .thumbs img")) == 1


def test_what_a_browser_cannot_show_has_a_name(
    browser: "Chrome", server: Server, tmp_path: Path
) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.new("RGB", (64, 64), "red").save(tmp_path / "mine.heic", "HEIF")
    browser.get("about:blank")
    browser.get(server.url)
    page = Page(browser)
    page.choose("#photo", [tmp_path / "mine.heic"])
    page.until_text(".answer .noimage", "mine.heic")
    page.until_text(".answer .bars", "%")


def test_tabs_by_keyboard_and_errors_in_words(
    browser: "Chrome", server: Server, tmp_path: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    (tmp_path / "notes.png").write_text("no picture")
    browser.get("about:blank")
    browser.get(server.url)
    page = Page(browser)
    page.choose("#photo", [tmp_path / "notes.png"])
    page.until_text("#alert", "'notes.png' cannot be used: not a picture of a known format.")
    page.write("#tab-recognise", Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element.get_attribute("id") == "tab-teach"
    assert not page.one("#teach").get_attribute("hidden")
    page.click("#start")
    page.until_text("#alert", "A class has no name.")


# --- lessons that wait, die and outlive ---


def test_lessons_queue_and_predictions_go_on(
    server: Server, pictures: Pictures, photo: bytes
) -> None:
    first = server.learn(lesson(pictures))
    server.learner().suspend()  # for as long as we look
    second = server.learn(lesson(pictures, "sun"))
    third = server.learn(lesson(pictures, "wallet"))
    assert server.job(first, "running")["learnt_from"] == "original"
    assert server.ask("POST", "predict", files("photo", [photo]))["photos"][0]["label"]
    assert [server.ask("GET", f"jobs/{name}")["state"] for name in (second, third)] == [
        "queued",
        "queued",
    ]
    assert server.client.post(f"/api/jobs/{first}/keep").status_code == 409
    assert server.ask("POST", f"jobs/{third}/discard")["state"] == "discarded"
    server.learner().resume()
    done = server.job(first, "done")
    assert done["progress"] == 1
    assert done["summary"]["taught"] == {"robot": 2}
    server.job(second, "done")
    kept = server.ask("POST", f"jobs/{first}/keep")
    assert kept["state"] == "kept"
    conflict = server.client.post(f"/api/jobs/{second}/keep")
    assert conflict.status_code == 409, "it would drop what the first one taught"
    assert "learnt on top of 'original'" in conflict.json()["error"]
    server.ask("POST", f"jobs/{second}/discard")
    assert not server.pending()


def test_a_lesson_answers_before_it_is_kept(
    server: Server, pictures: Pictures, tmp_path: Path
) -> None:
    asked = files("photo", pictures("robot", 6))
    first = server.learn(lesson(pictures))
    server.job(first, "done")
    before = server.ask("POST", "predict", asked)
    after = server.ask("POST", f"jobs/{first}/predict", asked)
    assert (before["version"], after["version"]) == ("original", first)
    assert "robot" in {one["label"] for one in after["photos"]}
    assert "robot" not in {one["label"] for one in before["photos"]}
    other = server.learn(lesson(pictures, "sun"))
    server.job(other, "done")
    named = {
        one["classes"][0]["name"]
        for one in server.ask("POST", f"jobs/{other}/predict", files("photo", pictures("sun", 6)))[
            "photos"
        ]
    }
    assert "sun" in named
    assert server.ask("POST", f"jobs/{first}/predict", asked)["photos"] == after["photos"]
    server.ask("POST", f"jobs/{first}/keep")
    kept = server.ask("POST", "predict", asked)
    assert kept["photos"] == after["photos"]
    assert server.client.post(f"/api/jobs/{first}/predict", files=asked).status_code == 409
    assert server.client.post("/api/jobs/none/predict", files=asked).status_code == 404


def test_examples_are_offered_where_there_are_any(server: Server) -> None:
    offered = server.ask("GET", "examples")
    assert len(offered["photos"]) == 7
    assert [one["name"] for one in offered["classes"]] == ["robot", "sun"]
    pictures = [*offered["photos"], *offered["pile"]]
    pictures += [photo for one in offered["classes"] for photo in one["photos"]]
    assert len({one["picture"] for one in pictures}) == len(pictures), "no picture comes twice"
    assert examples_of("/my/icons") == examples_of("v1") == Examples()


def test_a_lesson_that_is_killed_changes_nothing(
    server: Server, pictures: Pictures, photo: bytes
) -> None:
    before = server.ask("GET", "versions")
    name = server.learn(lesson(pictures))
    server.learner().kill()
    failed = server.job(name, "failed")
    assert "killed (signal 9)" in failed["error"]
    assert server.ask("GET", "versions") == before
    assert server.ask("POST", "predict", files("photo", [photo]))["version"] == before["current"]
    assert not server.pending()


def test_what_the_command_refuses_is_told(server: Server, photo: bytes) -> None:
    sent = named(1, "a") + files("photos1", [photo]) + named(2, "b") + files("photos2", [photo])
    failed = server.job(server.learn(sent), "failed")
    assert "the same picture is an example of 'a' and of 'b'" in failed["error"]
    assert failed["hint"] == "Take one of them away."


def test_a_server_that_is_killed_serves_the_old_version_again(
    tmp_path: Path, pictures: Pictures
) -> None:
    killed = Server(tmp_path)
    running = killed.learn(lesson(pictures))
    learner = killed.learner()
    killed.job(running, "running")
    learner.suspend()
    waiting = killed.learn(lesson(pictures, "sun"))
    killed.process.kill()
    killed.process.wait()
    assert len(killed.pending()) == 2
    with serving(tmp_path) as server:
        assert not server.pending()
        assert not learner.is_running() or learner.status() == psutil.STATUS_ZOMBIE
        told = server.ask("GET", "versions")
        assert (told["current"], len(told["versions"])) == ("original", 1)
        assert server.ask("POST", "predict", files("photo", pictures("sun", 1)))["photos"]
        for name in (running, waiting):
            assert server.client.get(f"/api/jobs/{name}").status_code == 404
        with pytest.raises(FewgraftError, match="is served already"):
            versions.Versions("icons", server.versions)
    assert sorted(path.name for path in server.versions.iterdir()) == []


# --- the folder of versions ---


def test_current_json_decides_and_is_not_guessed(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    shutil.copytree(ZOO / "icons" / "algorithm-1", folder / "v7")
    (folder / "current.json").write_text('{"current": "v7"}')
    made = versions.Versions("icons", folder)
    assert made.serving.name == "v7"
    assert [v.name for v in made.listed()] == ["v7", "original"]
    assert made.listed()[0].problem, "there is no version.json in it"
    made.close()
    for content, problem in (("{", "is damaged"), ('{"current": "v8"}', "which is not there")):
        (folder / "current.json").write_text(content)
        with pytest.raises(FewgraftError, match=problem):
            versions.Versions("icons", folder)
        assert not (folder / ".server").exists()


def test_where_versions_are_kept(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    assert versions.default_folder(str(tmp_path / "v1")) == tmp_path / "v1.versions"
    assert versions.default_folder("icons/algorithm-1") == Path("icons.versions")


# --- the command ---


def test_help_has_examples() -> None:
    result = CliRunner().invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    assert "fewgraft serve icons" in result.output
    assert "--token" in result.output
    assert "--progress-json" not in CliRunner().invoke(app, ["learn", "--help"]).output


def test_what_is_missing_or_taken_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def invoke(*words: str) -> None:
        CliRunner().invoke(app, ["serve", "icons", *words], catch_exceptions=False)

    with pytest.raises(FewgraftError, match=r"cannot listen on 127\.0\.0\.1"):
        invoke("--port", str(server.port))
    monkeypatch.setattr(serve, "NEEDED", ("fastapi", "no_such_package"))
    with pytest.raises(FewgraftError, match="no_such_package") as told:
        invoke()
    assert told.value.hint == "pip install 'fewgraft[serve]'"


def test_progress_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(json_lines(range(250), "pile", 250)) == list(range(250))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert 50 <= len(lines) <= 100
    assert lines[-1] == {"what": "pile", "done": 250, "total": 250}
    list(json_lines(range(2), "examples", 2))
    assert len(capsys.readouterr().err.splitlines()) == 2
