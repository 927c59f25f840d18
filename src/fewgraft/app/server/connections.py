"""Connections that do not wait for ever: slow senders and readers lose theirs, others go on.

uvicorn has no time-out for headers, bodies and answers, and no limit for one address. Here every
connection looks at itself once a second: what it waits for, and for how long.
"""

import contextlib
import json
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fewgraft.app.server.refusals import Limits

ConnectionPhase = Literal["idle", "head", "body", "work", "answer", "linger"]
BACKLOG = 128  # connections that the system holds until they are accepted
OTHER_FILES = 64  # that the server has open besides
READ = 32_768  # bytes at a time; asyncio's 256 KB add up where hundreds upload
SECOND = 1.0


def protocol(limits: Limits) -> type[H11Protocol]:
    """What uvicorn makes of every connection."""

    class Own(Connection):
        door = Door(limits)

    return Own


class Door:
    """All connections, and who goes when there are too many."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.inside: set[Connection] = set()
        self._most = min(limits.connections, _possible())
        self._share = max(1, round(limits.share * self._most))

    def enter(self, new: "Connection") -> bool:
        """Let a connection in, in place of the slowest if need be; no: all others are at work."""
        same = {one for one in self.inside if one.address == new.address}
        if len(same) >= self._share and not self._drop_one(same):
            return False
        if len(self.inside) >= self._most and not self._drop_one(self.inside):
            return False
        self.inside.add(new)
        return True

    def _drop_one(self, crowd: "set[Connection]") -> bool:
        waiting = [one for one in crowd if one.phase() != "work" or one.hurries()]
        if not waiting:
            return False
        slowest = min(waiting, key=lambda one: one.worth())
        self.inside.discard(slowest)
        slowest.transport.abort()
        return True


class Connection(H11Protocol):
    """One connection. The states of h11 tell what it waits for."""

    door: Door

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.conn = _Whole(h11.SERVER, self.door.limits.head, self.door.limits.crumb)
        self.address = ""
        self._received = 0  # bytes, ever
        self._state: tuple[ConnectionPhase, object] = ("idle", None)
        self._since = self.loop.time()  # it is in this state
        self._before = 0  # bytes received until then
        self._mark = (self._since, 0)  # (time, bytes received) when its pace was looked at

    def connection_made(self, transport: Any) -> None:
        """Come in, or be told that the house is full."""
        super().connection_made(transport)
        transport.max_size = READ
        self.address = self.client[0] if self.client else ""
        if self.door.enter(self):
            self.loop.call_later(SECOND, self._look)
        else:
            self._refuse(503, "too many connections", "Try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        self.door.inside.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes from the sender; after a refusal they are of no use."""
        if self.transport.is_closing():
            return
        self._received += len(data)
        super().data_received(data)
        self._notice()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to bytes that are no HTTP, also in the middle of a request."""
        self._refuse(400, msg, "Send HTTP/1.1.")

    def phase(self) -> ConnectionPhase:
        """What it waits for; "work" is for us."""
        open_ = self.cycle is not None and not self.cycle.response_complete
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return "answer"
        if self.conn.their_state is h11.SEND_BODY:
            return "body" if open_ else "linger"
        if open_:
            return "work"
        return "head" if self.conn.trailing_data[0] else "idle"

    def hurries(self) -> bool:
        """Whether the next request is here before this one is answered."""
        return self.conn.their_state is h11.DONE and bool(self.conn.trailing_data[0])

    def worth(self) -> float:
        """The least goes first: who has waited longest; then, of those that upload, the slowest."""
        age = self.loop.time() - self._since
        sent = self._received - self._before
        return sent / (age + 1) if self._state[0] == "body" else -1 - age

    def _notice(self) -> None:
        """Begin to count anew when the state is another, or the request is."""
        state = (self.phase(), self.cycle)
        if state != self._state:
            self._state, self._since = state, self.loop.time()
            self._before = self._received
            self._mark = (self._since, self._received)

    def _look(self) -> None:
        if self not in self.door.inside:
            return
        self._notice()
        limits, phase = self.door.limits, self._state[0]
        age = self.loop.time() - self._since
        if phase == "idle" and age > limits.head_time:
            self.transport.close()
        elif phase == "head" and age > limits.head_time:
            self._refuse(408, "the headers took too long")
        elif phase == "body" and (age > limits.upload or self._crawls()):
            self._refuse(408, "the upload is too slow", "Send fewer photos at a time.")
        elif (phase == "answer" and age > limits.answer) or (
            phase == "linger" and age > limits.linger
        ):
            self.transport.abort()
        self.loop.call_later(SECOND, self._look)

    def _crawls(self) -> bool:
        """Whether too little of a body came of late; not where it is us who do not read on."""
        seconds, least = self.door.limits.pace
        now, (then, before) = self.loop.time(), self._mark
        if not self.flow.read_paused and now - then < seconds:
            return False
        self._mark = (now, self._received)
        return not self.flow.read_paused and self._received - before < least

    def _refuse(self, status: int, problem: str, hint: str = "") -> None:
        """Answer in place of the application, if it has not begun to, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps({"error": problem, "hint": hint}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        answer = (h11.Response(status_code=status, headers=headers), h11.Data(data=body))
        if not self.transport.is_closing():
            with contextlib.suppress(h11.LocalProtocolError):  # it has begun
                for event in (*answer, h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Whole(h11.Connection):
    """HTTP, but no bodies in crumbs: each piece costs the same, however small it is."""

    FREE = 1_000  # pieces of a body that may be of any size

    def __init__(self, role: Any, head: int, crumb: int) -> None:
        super().__init__(role, head)
        self._crumb = crumb
        self._pieces, self._bytes = 0, 0

    def next_event(self) -> Any:
        """As h11 has it."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces, self._bytes = 0, 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > self.FREE and self._bytes < self._crumb * self._pieces:
                raise h11.RemoteProtocolError("the body comes in crumbs")
        return event


def _possible() -> int:
    """As many as leave files for their uploads and for those that are being accepted."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 20
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 1 << 20
    return max(8, (files - BACKLOG - OTHER_FILES) // 2)
