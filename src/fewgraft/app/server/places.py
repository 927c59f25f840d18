"""Places for requests that are being received: where all are taken, the slowest sender gives way.

A place is held from the first byte on, so whoever sends next to nothing could keep everybody else
out. What has arrived as a whole keeps its place.
"""

import threading
import time

from fewgraft.app.server.refusals import RequestError

FRESH = 2.0  # seconds in which nobody can be called slow


class Place:
    """The place of one request."""

    def __init__(self, places: "Places") -> None:
        self._places = places
        self.since = time.monotonic()
        self.received = 0  # bytes
        self.whole = False  # nothing more is waited for

    def receive(self, count: int) -> None:
        """That many bytes came; an error if the place went to somebody else in between."""
        self._places.refuse_lost(self)
        self.received += count

    def end(self) -> None:
        """All bytes are there: the place is safe from now on."""
        self._places.refuse_lost(self)
        self.whole = True

    def leave(self) -> None:
        """Give it back, if it is not lost."""
        self._places.leave(self)


class Places:
    """So many at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: set[Place] = set()
        self._lock = threading.RLock()

    def enter(self, taken: int = 0) -> Place | None:
        """A place; `taken` ones are not to be had. None: nobody who has one is slow."""
        with self._lock:
            if len(self._held) + taken >= self._most and not self._make_room():
                return None
            place = Place(self)
            self._held.add(place)
            return place

    def leave(self, place: Place) -> None:
        """Make room."""
        with self._lock:
            self._held.discard(place)

    def refuse_lost(self, place: Place) -> None:
        """Tell a sender who had to give way."""
        with self._lock:
            if place not in self._held:
                raise RequestError(
                    "the upload was too slow, and gave way to another", "Try again later.", 503
                )

    def _make_room(self) -> bool:
        now = time.monotonic()
        slow = [one for one in self._held if not one.whole and now - one.since >= FRESH]
        if slow:
            self._held.discard(min(slow, key=lambda one: one.received / (now - one.since)))
        return bool(slow)
