"""The page and the JSON API: each request is a few lines over versions, jobs and uploads."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib import resources
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from fewgraft import __version__
from fewgraft.app.server.answers import PhotoAnswer, answer
from fewgraft.app.server.examples import Examples
from fewgraft.app.server.guard import Guard, refusal
from fewgraft.app.server.jobs import Jobs, LearnJob
from fewgraft.app.server.lessons import lay_out
from fewgraft.app.server.refusals import Limits, RequestError
from fewgraft.app.server.scratch import Scratch
from fewgraft.app.server.uploads import Form, Large, Upload
from fewgraft.app.server.versions import Serving, Version, Versions
from fewgraft.errors import FewgraftError
from fewgraft.model import Unknown

T = TypeVar("T")
PAGE = {"": ("page.html", "text/html"), "page.css": ("page.css", "text/css")}
PAGE["page.js"] = ("page.js", "text/javascript")


class KnownClass(BaseModel):
    """A class; `examples` are the photos it was learnt from, where that is known."""

    name: str
    examples: int | None = None


class Classes(BaseModel):
    """What the serving version knows."""

    version: str
    classes: list[KnownClass]
    unknown: Unknown | None  # when it answers "unknown"; null: never


class PhotoAnswers(BaseModel):
    """What the photos show."""

    version: str
    photos: list[PhotoAnswer]


class AllVersions(BaseModel):
    """The versions, the newest first."""

    current: str
    versions: list[Version]


class Failure(BaseModel):
    """Every error."""

    error: str
    hint: str = ""


def create_app(versions: Versions, token: str | None, limits: Limits | None = None) -> FastAPI:
    """The whole application; it owns `versions` and closes them."""
    limits = limits or Limits()
    jobs = Jobs(versions, limits)
    large, scratch = Large(limits), Scratch()

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(jobs.close)
        await asyncio.to_thread(scratch.close)
        versions.close()

    app = FastAPI(
        title="Fewgraft",
        version=__version__,
        description="Recognise photos, teach new classes, keep, discard and roll back.",
        docs_url=None,  # the usual pages load their scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # which would write it anew for every request
        redirect_slashes=False,  # which would lead to whatever host the request names
        lifespan=life,
        responses={
            "4XX": {"model": Failure, "description": "Refused, with a reason."},
            "5XX": {"model": Failure, "description": "Too busy, or no room on the disk."},
        },
    )
    app.add_middleware(Guard, token=token, limits=limits)
    _tell_errors(app)
    _add_page(app)
    _add_recognising(app, versions, jobs, large, scratch)
    _add_teaching(app, jobs, large)
    _add_versions(app, versions)
    return app


def _tell_errors(app: FastAPI) -> None:
    @app.exception_handler(FewgraftError)
    async def refused(_: Request, error: FewgraftError) -> Response:
        known = (
            error if isinstance(error, RequestError) else RequestError(error.problem, error.hint)
        )
        return refusal(known)

    @app.exception_handler(RequestValidationError)
    async def misunderstood(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        problem = f"'{first['loc'][-1]}' cannot be read: {first['msg']}"
        return refusal(RequestError(problem, "/openapi.json lists what there is."))

    @app.exception_handler(OSError)
    async def full(_: Request, error: OSError) -> Response:
        problem = f"the server cannot store this: {error.strerror or error}"
        return refusal(RequestError(problem, status=507))

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        problem = f"{request.method} {request.scope['path'][:80]}: {error.detail}"
        hint = "/openapi.json lists what there is."
        told = refusal(RequestError(problem, hint, error.status_code))
        told.headers.update(error.headers or {})  # such as which methods there are
        return told

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        problem = f"the server failed: {type(error).__name__}"
        return refusal(RequestError(problem, "Its terminal shows more.", 500))


def _add_page(app: FastAPI) -> None:
    folder = resources.files("fewgraft.app.server")

    def serve(path: str, name: str, kind: str) -> None:
        @app.get(f"/{path}", include_in_schema=False)
        def file() -> Response:
            return Response((folder / name).read_bytes(), media_type=f"{kind}; charset=utf-8")

    for path, (name, kind) in PAGE.items():
        serve(path, name, kind)

    @cache
    def described() -> bytes:
        return json.dumps(app.openapi(), ensure_ascii=False).encode()

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> Response:
        return Response(described(), media_type="application/json")


def _add_recognising(
    app: FastAPI, versions: Versions, jobs: Jobs, large: Large, scratch: Scratch
) -> None:
    # As many photos at a time as there are cores: more would only wait for each other.
    light = ThreadPoolExecutor(os.cpu_count() or 1, "recognise")
    heavy = ThreadPoolExecutor(1, "recognise-heavy")  # those who wait for it hold up nobody else

    async def answers(
        request: Request, unknown: bool, serves: Callable[[], Serving]
    ) -> PhotoAnswers:
        named, told = partial(answer, unknown=unknown), list[PhotoAnswer]()
        async with scratch.folder() as folder:
            with Form(request, folder, large) as form:
                received = await form.receive()
                photos = received.of("photo")
                if not photos or len(photos) < len(received.files):
                    raise RequestError(
                        "there is no photo", "Send files in the field photo.", status=400
                    )
                serving = await _in(light, serves)
                for turn in _turns(photos, large.limits.turn):
                    paths, names = [one.path for one in turn], [one.name for one in turn]
                    if await _in(light, partial(versions.decoders.any_heavy, paths)):
                        told += await _in(heavy, partial(named, serving.embed_heavy, paths, names))
                    else:
                        told += await _in(light, partial(named, serving.embed, paths, names))
                    if await request.is_disconnected():  # nobody waits for the others
                        break
        if all(one.problem for one in told):
            raise RequestError(f"'{told[0].photo}' cannot be used: {told[0].problem}")
        return PhotoAnswers(version=serving.name, photos=told)

    @app.post("/api/predict", openapi_extra=_form("photo"))
    async def predict(request: Request, unknown: bool = True) -> PhotoAnswers:
        """Name what is on photos; with ?unknown=false by a class, however badly it fits."""
        return await answers(request, unknown, lambda: versions.serving)

    @app.post("/api/jobs/{name}/predict", openapi_extra=_form("photo"))
    async def predict_after(request: Request, name: str, unknown: bool = True) -> PhotoAnswers:
        """Name what is on photos as a lesson that is done would, before it is kept."""
        return await answers(request, unknown, lambda: jobs.tried(name))

    @app.get("/api/examples")
    def examples() -> Examples:
        """List pictures to try it with, where the classifier is one of the package's."""
        return versions.examples

    @app.get("/api/classes")
    def classes() -> Classes:
        """List the classes that the serving version knows."""
        serving = versions.serving
        card = serving.embed.model.card
        examples = card.examples or (None,) * len(card.classes)
        known = [
            KnownClass(name=name, examples=count)
            for name, count in zip(card.classes, examples, strict=True)
        ]
        return Classes(version=serving.name, classes=known, unknown=card.unknown)


def _add_teaching(app: FastAPI, jobs: Jobs, large: Large) -> None:
    @app.post("/api/learn", status_code=202, openapi_extra=_form("photos1", "pile", "check"))
    async def learn(request: Request) -> LearnJob:
        """Teach classes: class1 with photos1, class2 with photos2, ...; pile and check if any.

        The photos of the pile are files or zips; those to check the old classes with are zips of
        class folders. The answer is a job to ask for; the old version goes on serving.
        """
        coming = await asyncio.to_thread(jobs.open)
        folder = coming.folder
        try:
            (folder / "received").mkdir()
            with Form(request, folder / "received", large, coming.place) as form:
                received = await form.receive()
                asked = await _in(jobs.unpacking, lambda: lay_out(received, folder, large.limits))
            await asyncio.to_thread(shutil.rmtree, folder / "received")
        except BaseException:
            await asyncio.to_thread(jobs.forget, coming)
            raise
        return await asyncio.to_thread(jobs.add, coming, asked)

    @app.get("/api/jobs")
    def all_jobs() -> list[LearnJob]:
        """List lessons, the newest first, without pictures."""
        return [job.model_copy(update={"helpers": []}) for job in jobs.all()]

    @app.get("/api/jobs/{name}")
    def job(name: str) -> LearnJob:
        """Tell how a lesson is; when it is done, also what was gained and lost."""
        return jobs.job(name)

    @app.post("/api/jobs/{name}/keep")
    def keep(name: str) -> LearnJob:
        """Make a version of a lesson that is done, and serve it."""
        return jobs.keep(name)

    @app.post("/api/jobs/{name}/discard")
    def discard(name: str) -> LearnJob:
        """Throw a lesson away, also while it waits or runs."""
        return jobs.discard(name)


def _add_versions(app: FastAPI, versions: Versions) -> None:
    @app.get("/api/versions")
    def all_versions() -> AllVersions:
        """List the versions, the newest first."""
        return AllVersions(current=versions.serving.name, versions=versions.listed())

    @app.post("/api/versions/{name}/use")
    def use(name: str) -> AllVersions:
        """Serve a version from now on: roll back, or forward again."""
        versions.use(name)
        return all_versions()


async def _in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def _turns(photos: Sequence[Upload], size: int) -> Iterator[Sequence[Upload]]:
    """A few photos at a time: between two turns of a large request others have theirs."""
    for start in range(0, len(photos), size):
        yield photos[start : start + size]


def _form(*files: str) -> dict[str, Any]:
    """What OpenAPI is told of a form that is read piece by piece."""
    several = {"type": "array", "items": {"type": "string", "format": "binary"}}
    fields: dict[str, Any] = dict.fromkeys(files, several)
    required = [files[0]]
    if "photos1" in files:
        fields["class1"] = {"type": "string", "maxLength": 80}
        required.append("class1")
    schema = {"type": "object", "properties": fields, "required": required}
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    }
