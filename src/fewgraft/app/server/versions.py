"""The versions of a classifier in one folder, and which of them serves.

    v2/, v3/, ...       classifiers as `fewgraft learn` writes them, and version.json beside
    current.json        which one serves: "original" is the classifier that the server was given
    .pending-.../       a lesson in work; after a crash the next server clears it away
    .server             locked by the process that serves this folder

A version that was kept is never changed. Killed at any moment, the folder is as it was before or
after the step in hand.
"""

import contextlib
import datetime
import json
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from pydantic import BaseModel

from fewgraft.app.features.embedding import Embedder, untracked
from fewgraft.app.learning.saving import open_classifier
from fewgraft.app.server.decoding import Decoders
from fewgraft.app.server.examples import examples_of
from fewgraft.app.server.refusals import Limits, RequestError
from fewgraft.devices import CPU
from fewgraft.errors import FewgraftError, reading
from fewgraft.files import write_atomically
from fewgraft.locks import take_lock
from fewgraft.model import ModelCard
from fewgraft.runtime import Runtime

ORIGINAL = "original"
PENDING = ".pending-"
EXPECTED = 500  # photos that a server recognises at least: what its network is prepared for


class Version(BaseModel):
    """One line of the list of versions."""

    name: str
    current: bool
    classes: int
    lesson: str = ""  # what was learnt last, such as "2026-10-01: robot (5) with a pile of 500"
    learnt_from: str | None = None
    kept: str | None = None  # when
    problem: str = ""  # why it cannot be used


class _Facts(BaseModel):
    """version.json."""

    learnt_from: str
    kept: str


@dataclass(frozen=True)
class Serving:
    """A version that is loaded."""

    name: str
    embed: Embedder
    embed_heavy: Embedder  # the same, for photos that are decoded one at a time


class Versions:
    """The folder, and the version in memory."""

    def __init__(
        self,
        classifier: str,
        folder: Path,
        limits: Limits | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.device = device  # of the network
        self.folder = folder.resolve()
        self._original = _absolute(classifier)
        self.examples = examples_of(self._original)
        self._lock = threading.Lock()
        self.decoders = Decoders(limits or Limits())  # one for all versions and requests
        busy = f"{self.folder} is served already"
        # One server per folder: two would not know of each other's steps.
        self._owner = take_lock(
            self.folder / ".server",
            FewgraftError(busy, "Stop that one, or give another --versions."),
        )
        try:
            self.clear()
            self._n_original = len(open_classifier(self._original).card.classes)
            self.serving = self._load_first(self._read_current())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another server have the folder."""
        self._owner.release()
        self.decoders.close()

    def pending(self, name: str) -> Path:
        """A new folder for a lesson in work."""
        path = self.folder / f"{PENDING}{name}"
        path.mkdir()
        return path

    def classifier(self, name: str) -> str:
        """What `fewgraft learn` takes for a version."""
        if name == ORIGINAL:
            return self._original
        if name not in self._names():
            raise RequestError(f"there is no version '{name[:40]}'", status=404)
        return str(self.folder / name)

    def listed(self) -> list[Version]:
        """All versions, the newest first."""
        kept = [self._described(name) for name in sorted(self._names(), key=_number, reverse=True)]
        current = self.serving.name == ORIGINAL
        return [*kept, Version(name=ORIGINAL, current=current, classes=self._n_original)]

    def use(self, name: str) -> None:
        """Serve this version from now on; one that cannot be loaded changes nothing."""
        with self._lock:
            self._use(name)

    def keep(self, learnt: Path, learnt_from: str) -> str:
        """Make a version of a finished lesson and serve it; gives its name."""
        with self._lock:
            if learnt_from != self.serving.name:
                raise RequestError(
                    f"this was learnt on top of '{learnt_from}', but '{self.serving.name}' serves",
                    f"Keeping it would drop what '{self.serving.name}' has learnt. Discard it and "
                    f"teach it again, or go back to '{learnt_from}' first.",
                    status=409,
                )
            name = self._next()
            now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
            facts = _Facts(learnt_from=learnt_from, kept=now)
            write_atomically(learnt / "version.json", facts.model_dump_json().encode())
            learnt.rename(self.folder / name)
            try:
                self._use(name)
            except BaseException:  # a full disk: it is still a lesson that can be kept
                (self.folder / name).rename(learnt)
                raise
            return name

    def _use(self, name: str) -> None:
        serving = self._load(name)
        write_atomically(self.folder / "current.json", json.dumps({"current": name}).encode())
        self.serving = serving

    def _load(self, name: str) -> Serving:
        return self.loaded(name, self.classifier(name))

    def loaded(self, name: str, classifier: str) -> Serving:
        """A classifier that can answer, under any name."""
        model = open_classifier(classifier)
        runtime = Runtime(model, self.device)
        runtime.expect(EXPECTED)
        light, heavy = (
            Embedder(model, keep=False, tracker=untracked, decoders=pool, runtime=runtime)
            for pool in (self.decoders.light, self.decoders.heavy)
        )
        return Serving(name, light, heavy)

    def _load_first(self, name: str) -> Serving:
        try:
            return self._load(name)
        except FewgraftError as error:
            if name == ORIGINAL:
                raise
            hint = f"Delete {self.folder / 'current.json'} to serve the original classifier."
            raise FewgraftError(error.problem, hint) from None

    def _names(self) -> list[str]:
        return [name for name in self._taken() if (self.folder / name / "model.json").is_file()]

    def _taken(self) -> list[str]:
        """The names of versions, and of what is left of damaged ones."""
        names = (path.name for path in self.folder.iterdir())
        return [name for name in names if re.fullmatch(r"v[1-9][0-9]{0,17}", name)]

    def _next(self) -> str:
        return f"v{max(map(_number, self._taken()), default=1) + 1}"

    def _described(self, name: str) -> Version:
        folder = self.folder / name
        version = Version(name=name, current=self.serving.name == name, classes=0)
        try:
            with reading(folder):
                card = ModelCard.model_validate_json((folder / "model.json").read_bytes())
                facts = _Facts.model_validate_json((folder / "version.json").read_bytes())
        except FewgraftError:
            return version.model_copy(update={"problem": "its files are damaged"})
        lesson = card.lessons[-1] if card.lessons else ""
        known = {"classes": len(card.classes), "lesson": lesson}
        return version.model_copy(update={**known, **facts.model_dump()})

    def _read_current(self) -> str:
        path = self.folder / "current.json"
        if not path.exists():
            return ORIGINAL
        try:
            with reading(path):
                name = json.loads(path.read_bytes())["current"]
        except FewgraftError:
            raise FewgraftError(
                f"{path} is damaged", "Delete it to serve the original classifier."
            ) from None
        if name != ORIGINAL and name not in self._names():
            raise FewgraftError(
                f"{path} names '{name}', which is not there",
                "Put the folder back, or delete the file to serve the original classifier.",
            )
        return str(name)

    def clear(self) -> None:
        """Lessons in work, as a killed server leaves them: they end, and no upload is kept."""
        for left in self.folder.glob(f"{PENDING}*"):
            if process := written_process(left / "process"):
                with contextlib.suppress(psutil.Error):
                    process.kill()
                    process.wait()
            shutil.rmtree(left, ignore_errors=True)


def default_folder(classifier: str) -> Path:
    """Beside a classifier's folder; for one inside the package, in the current directory."""
    path = Path(classifier)
    if path.is_dir():
        return path.resolve().with_name(f"{path.resolve().name}.versions")
    return Path(f"{classifier.partition('/')[0]}.versions")


def write_process(path: Path, pid: int) -> None:
    """A process by its number and start: numbers alone are used again."""
    write_atomically(path, f"{pid} {psutil.Process(pid).create_time():.2f}".encode())


def written_process(path: Path) -> psutil.Process | None:
    """The process that was written down, if it lives."""
    try:
        pid, start = path.read_text().split()
        process = psutil.Process(int(pid))
        return process if abs(process.create_time() - float(start)) < 3 else None
    except (OSError, ValueError, psutil.Error):
        return None


def _absolute(classifier: str) -> str:
    path = Path(classifier)
    return str(path.resolve()) if (path / "model.json").is_file() else classifier


def _number(name: str) -> int:
    return int(name.removeprefix("v"))
