"""Lessons that wait, run and end: one at a time, in the order in which they came."""

import json
import queue
import secrets
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from fewgraft.app.server import learner
from fewgraft.app.server.helpers import Helper, helpers
from fewgraft.app.server.lessons import Asked
from fewgraft.app.server.places import Place, Places
from fewgraft.app.server.refusals import Limits, RequestError
from fewgraft.app.server.versions import Serving, Versions, write_process
from fewgraft.errors import FewgraftError, why

State = Literal["queued", "running", "done", "failed", "kept", "discarded"]
REMEMBERED = 50  # lessons that are over


class LearnJob(BaseModel):
    """A lesson, as the API tells it."""

    id: str
    state: State = "queued"
    progress: float = 0.0  # of 1
    message: str = "waiting for its turn"
    taught: dict[str, int]  # photos of each class
    pile: int  # photos
    check: int
    learnt_from: str | None = None  # the version, once it runs
    version: str | None = None  # its name, once it is kept
    summary: dict[str, Any] | None = None  # lesson.json
    helpers: list[Helper] = []
    error: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Coming:
    """A lesson whose photos are still to come."""

    name: str
    folder: Path
    place: Place


@dataclass
class _Lesson:
    """What is known of a job in here."""

    job: LearnJob
    folder: Path
    photos: int
    process: "subprocess.Popen[str] | None" = field(default=None)


class Jobs:
    """All lessons, and the one thread that runs them."""

    def __init__(self, versions: Versions, limits: Limits) -> None:
        self._versions = versions
        self._limits = limits
        self._places = Places(limits.lessons)  # of those that are still to come
        self._lessons: dict[str, _Lesson] = {}
        self._waiting: queue.Queue[_Lesson | None] = queue.Queue()
        self._lock = threading.RLock()
        self._tried: Serving | None = None
        self._trying = threading.Lock()
        # One request at a time: each may hold much in memory.
        self.unpacking = ThreadPoolExecutor(1, "unpack")
        self._worker = threading.Thread(target=self._work, name="lessons", daemon=True)
        self._worker.start()

    def open(self) -> Coming:
        """A name, a folder and a place for a lesson whose photos are still to come."""
        with self._lock:
            queued = sum(lesson.job.state == "queued" for lesson in self._lessons.values())
            place = self._places.enter(queued)
            if place is None:
                raise RequestError(
                    f"{self._limits.lessons} lessons wait already",
                    "Try again when some are done.",
                    status=503,
                )
            name = secrets.token_hex(8)
            try:
                return Coming(name, self._versions.pending(name), place)
            except BaseException:  # a full disk
                place.leave()
                raise

    def forget(self, coming: Coming) -> None:
        """A lesson whose photos did not come."""
        coming.place.leave()
        shutil.rmtree(coming.folder, ignore_errors=True)

    def add(self, coming: Coming, asked: Asked) -> LearnJob:
        """Queue a lesson."""
        job = LearnJob(id=coming.name, taught=asked.taught, pile=asked.pile, check=asked.check)
        lesson = _Lesson(job, coming.folder, asked.photos)
        with self._lock:
            coming.place.leave()
            self._lessons[coming.name] = lesson
            self._forget()
        self._waiting.put(lesson)
        return job

    def job(self, name: str) -> LearnJob:
        """How a lesson is."""
        return self._lesson(name).job

    def all(self) -> list[LearnJob]:
        """The newest first."""
        return [lesson.job for lesson in reversed(list(self._lessons.values()))]

    def keep(self, name: str) -> LearnJob:
        """Make a version of it and serve that."""
        with self._lock:
            lesson = self._lesson(name)
            if lesson.job.state != "done":
                raise RequestError(f"the lesson is {lesson.job.state}, not done", status=409)
            learnt_from = str(lesson.job.learnt_from)
            version = self._versions.keep(lesson.folder / "learnt", learnt_from)
            self._change(lesson, state="kept", version=version, message=f"kept as {version}")
            shutil.rmtree(lesson.folder, ignore_errors=True)
            return lesson.job

    def tried(self, name: str) -> Serving:
        """What a lesson that is done would answer with; the last one asked stays loaded."""
        with self._lock:
            lesson = self._lesson(name)
            if lesson.job.state != "done":
                raise RequestError(f"the lesson is {lesson.job.state}, not done", status=409)
        with self._trying:
            if self._tried is None or self._tried.name != name:
                self._tried = self._versions.loaded(name, str(lesson.folder / "learnt"))
            return self._tried

    def discard(self, name: str) -> LearnJob:
        """Throw it away, also while it waits or runs."""
        with self._lock:
            lesson = self._lesson(name)
            if lesson.job.state == "kept":
                raise RequestError(
                    "the lesson is kept already", "Go back to another version instead.", status=409
                )
            self._change(lesson, state="discarded", message="discarded", helpers=[])
            if lesson.process:
                lesson.process.kill()  # its end clears the folder
            else:
                shutil.rmtree(lesson.folder, ignore_errors=True)
            return lesson.job

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        for job in self.all():
            if job.state != "kept":
                self.discard(job.id)
        self._waiting.put(None)
        self._worker.join()
        self._versions.clear()  # what is being unpacked fails now
        self.unpacking.shutdown(cancel_futures=True)
        self._versions.clear()

    def _lesson(self, name: str) -> _Lesson:
        try:
            return self._lessons[name]
        except KeyError:
            raise RequestError(
                f"there is no lesson '{name[:40]}'",
                "A restart of the server forgets lessons that were not kept.",
                status=404,
            ) from None

    def _change(self, lesson: _Lesson, **news: Any) -> None:
        """Jobs are replaced, never changed, so that whoever holds one sees one moment of it."""
        lesson.job = lesson.job.model_copy(update=news)

    def _forget(self) -> None:
        over = [
            lesson
            for lesson in self._lessons.values()
            if lesson.job.state not in ("queued", "running")
        ]
        for lesson in over[:-REMEMBERED]:
            shutil.rmtree(lesson.folder, ignore_errors=True)
            del self._lessons[lesson.job.id]

    def _work(self) -> None:
        while lesson := self._waiting.get():
            try:
                if self._begin(lesson):
                    self._run(lesson)
            except FewgraftError as error:
                self._end(lesson, state="failed", error=error.problem, hint=error.hint)
            except OSError as error:
                problem = f"the server cannot store this: {why(error)}"
                self._end(lesson, state="failed", error=problem)
            except Exception as error:  # whatever it is, the next lesson is to run
                self._end(lesson, state="failed", error=f"{type(error).__name__}: {why(error)}")

    def _begin(self, lesson: _Lesson) -> bool:
        """Start the process, unless the lesson was discarded while it waited."""
        with self._lock:
            if lesson.job.state != "queued":
                return False
            version = self._versions.serving.name
            lesson.process = learner.start(
                self._versions.classifier(version), lesson.folder, str(self._versions.device)
            )
            try:
                write_process(lesson.folder / "process", lesson.process.pid)
            except BaseException:  # a full disk: nobody would know of the process
                lesson.process.kill()
                lesson.process.wait()
                raise
            self._change(
                lesson, state="running", learnt_from=version, message="starting", progress=0.02
            )
            return True

    def _run(self, lesson: _Lesson) -> None:
        assert lesson.process is not None

        def tell(progress: float, message: str) -> None:
            with self._lock:
                if lesson.job.state == "running":
                    self._change(lesson, progress=progress, message=message)

        learner.watch(lesson.process, lesson.photos, tell)
        summary = json.loads((lesson.folder / "learnt" / "lesson.json").read_bytes())
        shown = helpers(lesson.folder, self._versions.decoders)
        self._end(lesson, state="done", summary=summary, helpers=shown)

    def _end(self, lesson: _Lesson, state: State, **news: Any) -> None:
        """Done or failed, unless it was discarded in between; the uploads are of no use now."""
        with self._lock:
            lesson.process = None
            if lesson.job.state == "discarded":
                shutil.rmtree(lesson.folder, ignore_errors=True)
                return
            progress = 1.0 if state == "done" else lesson.job.progress
            self._change(lesson, state=state, message=state, progress=progress, **news)
            if state != "done":
                shutil.rmtree(lesson.folder, ignore_errors=True)
                return
            for name in ("new", "pile", "check"):
                shutil.rmtree(lesson.folder / name, ignore_errors=True)
            (lesson.folder / "process").unlink(missing_ok=True)
