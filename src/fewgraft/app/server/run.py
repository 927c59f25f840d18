"""Listen, and answer until someone says stop."""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from fewgraft.app.server.api import create_app
from fewgraft.app.server.guard import is_local
from fewgraft.app.server.versions import Versions, default_folder
from fewgraft.errors import FewgraftError

PATIENCE = 3  # seconds for requests in hand when it stops


def run(
    classifier: str,
    host: str,
    port: int,
    token: str | None,
    folder: Path | None,
    tell: Callable[[str], None],
) -> None:
    """Serve a classifier; `tell` says where."""
    if not is_local(host) and not token:
        raise FewgraftError(
            f"{host} can be reached from other machines: a token is needed",
            "Give --token or set FEWGRAFT_TOKEN to a long secret, or stay with 127.0.0.1.",
        )
    with contextlib.closing(_listen(host, port)) as listening:
        versions = Versions(classifier, folder or default_folder(classifier))
        app = create_app(versions, token or None)
        serving = versions.serving
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}"
        classes = len(serving.embed.model.card.classes)
        tell(f"{classifier} ({serving.name}, {classes} classes) is at {address}")
        tell(f"versions are kept in {versions.folder}; stop with Ctrl-C")
        config = uvicorn.Config(
            app, log_level="warning", server_header=False, timeout_graceful_shutdown=PATIENCE
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Before anything is loaded: a port that is taken is told at once."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise FewgraftError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}",
            "Give another --port; 0 takes any that is free.",
        ) from None
