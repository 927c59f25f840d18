"""Forms with files: every file goes to disk as it arrives, under a name of our own.

The names that senders give are shown to people and never used as paths.
"""

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from fewgraft.app.server.places import Place, Places
from fewgraft.app.server.refusals import MB, Limits, RequestError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

LONGEST_NAME = 60  # characters of a file's name that are kept
LONGEST_BOUNDARY = 70  # bytes, as RFC 2046 has it


@dataclass(frozen=True)
class Upload:
    """A file that was sent."""

    field: str
    name: str  # as the sender calls it, fit for the eye
    path: Path


@dataclass
class Received:
    """A whole form."""

    texts: dict[str, str] = field(default_factory=dict)
    files: list[Upload] = field(default_factory=list)

    def of(self, name: str) -> list[Upload]:
        """Files of one field."""
        return [file for file in self.files if file.field == name]


class Large:
    """Places for requests of many parts: the lists of those parts are kept in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._places = Places(limits.large)

    def enter(self) -> Place:
        """A place, or an error that there is none."""
        if place := self._places.enter():
            return place
        raise RequestError(
            f"{self.limits.large} requests of many files are in hand already",
            f"Try again later, or send at most {self.limits.few} files at a time.",
            status=503,
        )


class Form:
    """The form of one request. Its files land in `folder`, and its place is its own till the end.

    Use as a context: leaving it gives the place back, but not one that the caller had before.
    """

    def __init__(
        self, request: Request, folder: Path, large: Large, place: Place | None = None
    ) -> None:
        self._request = request
        self._sink = _Sink(folder, large, place)

    def __enter__(self) -> Self:
        """No place is taken before there are many parts."""
        return self

    def __exit__(self, *_: object) -> None:
        """Also after a failure."""
        self._sink.leave()

    async def receive(self) -> Received:
        """Read all of it."""
        limits, sink = self._sink.large.limits, self._sink
        boundary = _boundary(self._request.headers.get("content-type", ""))
        parser = MultipartParser(boundary, sink.callbacks())
        total = 0
        try:
            async for chunk in self._request.stream():
                total += len(chunk)
                refuse_length(total, limits)
                for place in sink.places:
                    place.receive(len(chunk))
                await asyncio.to_thread(_write, parser, sink, chunk)  # which may be slow
            parser.finalize()
        except FormParserError as error:
            raise RequestError(f"the form is damaged: {error}", status=400) from None
        except ClientDisconnect:
            raise RequestError("the upload broke off", status=400) from None
        if not sink.ended:
            raise RequestError("the form is damaged: its end is missing", status=400)
        for place in sink.places:
            place.end()
        return sink.received


def _write(parser: MultipartParser, sink: "_Sink", chunk: bytes) -> None:
    parser.write(chunk)
    sink.flush()


def _boundary(content_type: str) -> bytes:
    """What is between the parts."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or b"boundary" not in options:
        raise RequestError(
            "the request is not a form with files",
            "Send multipart/form-data, as curl -F does.",
            status=415,
        )
    boundary = options[b"boundary"]
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise RequestError(
            f"the boundary of the form has {len(boundary):,} bytes, not 1 to {LONGEST_BOUNDARY}",
            status=400,
        )
    return boundary


def refuse_length(length: int, limits: Limits) -> None:
    """A request of that many bytes."""
    if length > limits.request:
        raise RequestError(
            f"the request is larger than {limits.request // MB} MB",
            "Send fewer photos at a time.",
            status=413,
        )


def shown_name(name: str) -> str:
    """A sender's name for a file, without folders and without what a screen cannot show."""
    last = re.split(r"[/\\]", name)[-1]
    return "".join(c for c in last if c.isprintable())[-LONGEST_NAME:] or "photo"


def stored_name(number: int, name: str) -> str:
    """A name that is safe on every disk and still reminds of the sender's."""
    return f"{number:05}-" + re.sub(r"[^A-Za-z0-9.]+", "_", shown_name(name))


def is_zip(name: str) -> bool:
    """Whether a file claims to be one; what is in it is looked at later."""
    return name.lower().endswith(".zip")


class _Sink:
    """What the parser tells, piece by piece. No file is open while more is waited for."""

    def __init__(self, folder: Path, large: Large, place: Place | None) -> None:
        self.received = Received()
        self.ended = False
        self.large = large
        self.places = [place] if place else []
        self._large_place: Place | None = None
        self._folder = folder
        self._limits = large.limits
        self._parts = 0
        self._headers, self._head = 0, 0  # of this part, and their bytes
        self._header, self._value = b"", b""
        self._field, self._name = "", ""
        self._file: Path | None = None
        self._content = bytearray()  # a text, or what is still to be written to the file
        self._size = 0

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._whole,
        }

    def flush(self) -> None:
        if self._file:
            with self._file.open("ab") as file:
                file.write(self._content)
            self._content.clear()

    def leave(self) -> None:
        if self._large_place:
            self._large_place.leave()

    def _begin(self) -> None:
        self._field, self._name, self._size = "", "", 0
        self._file, self._content = None, bytearray()
        self._headers, self._head = 0, 0
        self._parts += 1  # also without a name and without a byte
        if self._parts > self._limits.files + self._limits.fields:
            raise RequestError("the form has too many parts", status=413)
        if self._parts > self._limits.few and not self._large_place:
            self._large_place = self.large.enter()
            self.places.append(self._large_place)

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._take_head(end - start)
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._take_head(end - start)
        self._value += data[start:end]

    def _take_head(self, size: int) -> None:
        self._head += size
        if self._head > self._limits.part_head:
            raise RequestError("the headers of a part of the form are too long", status=400)

    def _header_end(self) -> None:
        self._headers += 1
        if self._headers > self._limits.part_headers:
            raise RequestError("a part of the form has too many headers", status=400)
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._field = options.get(b"name", b"").decode("utf-8", "replace")
            self._name = options.get(b"filename", b"").decode("utf-8", "replace")
            if len(self._field) > self._limits.field_name:
                name = shown_name(self._field)
                raise RequestError(f"the name of the field '{name}' is too long")
        self._header, self._value = b"", b""

    def _headers_finished(self) -> None:
        if not self._name:
            return
        count = len(self.received.files)
        if count >= self._limits.files:
            raise RequestError(f"more than {self._limits.files:,} files in one request", status=413)
        path = self._folder / f"{count:05}"
        self.received.files.append(Upload(self._field, shown_name(self._name), path))
        self._file = path

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._file is None and self._size > self._limits.text:
            raise RequestError(f"the field '{shown_name(self._field)}' is too long")
        if self._size > self._limits.file and not is_zip(self._name):
            raise RequestError(
                f"'{shown_name(self._name)}' is larger than {self._limits.file // MB} MB",
                "Send a smaller copy of this photo.",
                status=413,
            )
        self._content += data[start:end]

    def _end(self) -> None:
        if self._file:
            self.flush()
            self._file = None
        elif self._field:
            if self._field in self.received.texts:
                raise RequestError(f"the field '{shown_name(self._field)}' is given twice")
            self.received.texts[self._field] = self._content.decode("utf-8", "replace")
            if len(self.received.texts) > self._limits.fields:
                raise RequestError("the form has too many fields", status=413)

    def _whole(self) -> None:
        self.ended = True
