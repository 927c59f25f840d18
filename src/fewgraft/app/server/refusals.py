"""What the server refuses, and how much it accepts."""

from dataclasses import dataclass

from fewgraft.errors import FewgraftError

MB = 1_000_000


class RequestError(FewgraftError):
    """An error for whoever sent the request; `status` is that of HTTP."""

    def __init__(self, problem: str, hint: str = "", status: int = 422) -> None:
        super().__init__(problem, hint)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """How much the server takes on; together they keep it below 1 GB of memory."""

    # One request.
    file: int = 20 * MB  # bytes of a photo
    request: int = 500 * MB  # bytes, as sent
    unpacked: int = 500 * MB  # bytes of all zips of a request, unpacked
    ratio: int = 100  # how many times smaller than its content an entry of a zip may be
    files: int = 5_000  # photos, in zips or not
    entries: int = 20_000  # of all zips, with their folders and what systems leave behind
    index: int = 8 * MB  # bytes of a zip's list of entries
    head: int = 16_000  # bytes of the first line and the headers
    crumb: int = 64  # bytes that the pieces of a body have on average, at least
    fields: int = 1_000  # of a form, besides files
    text: int = 2_000  # bytes of a field that is no file
    field_name: int = 100  # bytes
    part_headers: int = 8
    part_head: int = 4_000  # bytes of the headers of a part

    # All requests together.
    connections: int = 512  # fewer where the system allows few open files
    share: float = 0.75  # of the connections, for one address
    few: int = 50  # parts of a form that any request may have
    large: int = 8  # requests of more parts than that, at a time
    lessons: int = 20  # that wait or are being sent
    decodes: int = 2  # pictures, at a time; beside them one that has more pixels than these
    light: int = 4_000_000
    light_jpeg: int = 16_000_000
    turn: int = 8  # photos of a request, before another request has its turn

    # Seconds.
    idle: int = 20  # between two requests; clients that keep connections give up before
    head_time: float = 10  # until the headers are there
    pace: tuple[float, int] = (20, 20_000)  # in so many seconds at least so many bytes of a body
    upload: float = 1_800  # until the body is there
    answer: float = 60  # until the answer is read
    linger: float = 5  # for the rest of a body that is refused


class Budget:
    """What is left of the limits while a request is unpacked."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._files = 0
        self._unpacked = 0
        self._entries = 0

    def list(self, entries: int, archive: str) -> None:
        """One more zip with that many entries, folders and all."""
        self._entries += entries
        if self._entries > self.limits.entries:
            raise RequestError(
                f"with '{archive}' there are too many files in the zips",
                "Send a part of them.",
                status=413,
            )

    def take(self, *, unpacked: int = 0) -> None:
        """One more photo; `unpacked` are its bytes where it comes out of a zip."""
        self._files += 1
        self._unpacked += unpacked
        if self._files > self.limits.files:
            raise RequestError(
                f"more than {self.limits.files:,} photos in one request",
                "Send a part of them.",
                status=413,
            )
        if self._unpacked > self.limits.unpacked:
            raise RequestError(
                f"unpacked, the zips hold more than {self.limits.unpacked // MB} MB",
                "Send a part of the photos, or smaller ones.",
                status=413,
            )
