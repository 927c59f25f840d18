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
    """How much one request may bring."""

    file: int = 20 * MB  # bytes of a photo
    request: int = 500 * MB  # bytes, as sent
    unpacked: int = 500 * MB  # bytes of all zips of a request, unpacked
    ratio: int = 100  # how many times smaller than its content an entry of a zip may be
    files: int = 5_000  # photos, in zips or not


class Budget:
    """What is left of the limits while a request is unpacked."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._files = 0
        self._unpacked = 0

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
