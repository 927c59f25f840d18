"""A connection to a Ray cluster: one at an address, or one that is started on this machine.

A cluster on this machine listens on the loopback address only and sends no usage statistics.
Authentication is left to Ray, which keeps a token in ~/.ray.
"""

import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fewgraft.errors import FewgraftError
from fewgraft.extras import first_line

_OBJECT_STORE = 100 * 2**20  # bytes; scores are small, and a container's shared memory often is too
# Ray reads these when it is imported and when it starts.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^A worker died",  # a paragraph on standard output; we tell it too
}
# Its name is that of the systems where it is the default: Ray then stays on the loopback address.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class RayCluster:
    """The library `ray`, and a cluster that is joined or started when it is first needed."""

    def __init__(self, address: str | None = None, cores: int | None = None) -> None:
        self._address = address
        self._cores = cores
        self._environment = _QUIET if address else _QUIET | _LOOPBACK
        self._owns_connection = False
        try:
            with _set(self._environment):
                self.ray: Any = importlib.import_module("ray")
        except ImportError:
            raise FewgraftError(
                "the engine 'ray' needs Ray, which is not installed", "pip install 'fewgraft[ray]'"
            ) from None

    def connect(self) -> None:
        """Join or start, once; where whoever calls us is connected already, that is it."""
        if self._owns_connection or (self.ray.is_initialized() and self._address is None):
            return
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        self._owns_connection = not self.ray.is_initialized()
        with _set(self._environment):
            if self._address is None:
                self._begin(quiet)
            else:
                self._join(self._address, quiet)

    def _begin(self, quiet: Mapping[str, Any]) -> None:
        try:
            self.ray.init(
                "local",
                num_cpus=self._cores or os.cpu_count(),
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE,
                **quiet,
            )
        except Exception as error:  # Ray has no kind of its own for a start that takes too long
            raise FewgraftError(
                f"Ray does not start: {first_line(error)}",
                "A machine that is busy may need another try; without --engine ray all is computed "
                "in this process.",
            ) from None

    def _join(self, address: str, quiet: Mapping[str, Any]) -> None:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if port.isdigit():  # Ray itself would go on trying for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            self.ray.init(address, **quiet)
        except (OSError, ValueError, RuntimeError, self.ray.exceptions.RayError) as error:
            raise FewgraftError(
                f"cannot join a Ray cluster at {address}: {error}",
                "Start one with `ray start --head`; if it has a token, set RAY_AUTH_MODE=token and "
                "the same RAY_AUTH_TOKEN as there.",
            ) from None

    def close(self, *, lost: bool = False) -> None:
        """End what was begun here; a `lost` cluster Ray would look for for a minute."""
        if self._owns_connection and not lost:
            self.ray.shutdown()
        self._owns_connection = False


@contextlib.contextmanager
def _set(environment: Mapping[str, str]) -> Iterator[None]:
    """Variables of the environment, put back afterwards."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def home_of_this_process() -> dict[str, str]:
    """Where this process keeps its data, for processes that were started elsewhere."""
    home = os.environ.get("FEWGRAFT_HOME")
    return {"FEWGRAFT_HOME": str(Path(home).expanduser().absolute())} if home else {}
