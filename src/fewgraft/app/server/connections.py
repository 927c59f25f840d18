"""Connections that do not wait for ever: slow senders and readers lose theirs, others go on.

uvicorn has no time-out for headers, bodies and answers, and no limit for one address. Here every
connection looks at itself once a second: what it waits for, and for how long.
"""

import contextlib
import heapq
import json
import socket
from collections import Counter
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fewgraft.app.server.refusals import Limits

ConnectionPhase = Literal["idle", "head", "body", "work", "answer", "linger"]
BACKLOG = 512  # connections that the system holds until they are accepted
ACCEPTED = 8  # at a time: what they have sent is read before many others come
OTHER_FILES = 64  # that the server has open besides
FILES = 4_096  # that it wants to be allowed
READ = 32_768  # bytes at a time; asyncio's 256 KB add up where hundreds upload
SEND = 32_768  # bytes of answers that are kept for who does not read them, here and by the system
SECOND = 1.0
LAST = 2.0  # seconds to read an answer when the server stops; less than uvicorn waits
FRESH = 0.5  # seconds in which nobody can be called slow


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
        self.closed = False
        self._most = min(limits.connections, _possible())
        self._share = max(1, round(limits.share * self._most))

    def enter(self, new: "Connection") -> bool:
        """Let a connection in, in place of the slowest if need be; no: all others are at work."""
        if self.closed:
            return False
        now = new.loop.time()
        same = [one for one in self.inside if one.address == new.address]
        if len(same) >= self._share and not self._make_room(same, now):
            return False
        if len(self.inside) >= self._most and not self._make_room(self._crowd(), now):
            return False
        self.inside.add(new)
        return True

    def _crowd(self) -> "list[Connection]":
        """Those of the address that has most, of the connections that could go."""
        waiting = [one for one in self.inside if one.waits()]
        counts = Counter(one.address for one in waiting)
        most = max(counts.values(), default=0)
        return [one for one in waiting if counts[one.address] == most]

    def _make_room(self, crowd: "list[Connection]", now: float) -> bool:
        """Drop the slowest, and a few more that only wait: looking for them takes a while."""
        ranked = [(one.worth(now), id(one), one) for one in crowd if one.waits()]
        for place, (worth, _, one) in enumerate(heapq.nsmallest(ACCEPTED, ranked)):
            if place and worth >= 0:
                break
            self.inside.discard(one)
            one.transport.abort()
        return bool(ranked)


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
        if (door := transport.get_extra_info("socket")) is not None:
            # Otherwise megabytes of answers are computed for a sender who reads none of them.
            door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND)
        transport.set_write_buffer_limits(high=SEND)
        self.address = self.client[0] if self.client else ""
        if self.door.enter(self):
            self.loop.call_later(SECOND, self._look)
        else:
            self._refuse(503, "too many connections", "Try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        self.door.inside.discard(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: whoever reads has a moment for it."""
        super().shutdown()
        self.door.closed = True  # a few may still be on their way in
        self.loop.call_later(LAST, self._give_up)

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

    def waits(self) -> bool:
        """Whether it could give way: it is not at work, or wants more before that is answered."""
        if self.cycle is None or self.cycle.response_complete:
            return True  # as most of a crowd: this is quick
        hurries = self.conn.their_state is h11.DONE and bool(self.conn.trailing_data[0])
        return hurries or self.phase() != "work"

    def worth(self, now: float) -> float:
        """The least goes first: who has waited longest; then, of those that upload, the slowest.

        Whoever has just come has had no time to send, and counts as if it uploaded well.
        """
        age = now - self._since
        sent = self._received - self._before
        worth = sent / (age + 1) if self._state[0] == "body" else -1 - age
        return max(worth, READ - age) if age < FRESH else worth

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
        if phase == "idle" and age > max(limits.head_time, limits.idle if self.cycle else 0):
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

    def _give_up(self) -> None:
        if self.phase() == "answer":
            self.transport.abort()

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


def allow_files() -> None:
    """Raise the limit of open files, which is often lower than the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    if files != resource.RLIM_INFINITY and files < wanted:
        with contextlib.suppress(ValueError, OSError):  # then there are fewer connections
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _possible() -> int:
    """As many as leave files for all else, and for those that are being accepted."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 20
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 1 << 20
    return max(8, files - 4 * ACCEPTED - OTHER_FILES)
