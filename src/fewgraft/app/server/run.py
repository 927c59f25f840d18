"""Listen, and answer until someone says stop."""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import torch
import uvicorn
from starlette.types import ASGIApp

from fewgraft.app.server.api import create_app
from fewgraft.app.server.connections import ACCEPTED, BACKLOG, allow_files, protocol
from fewgraft.app.server.guard import is_local
from fewgraft.app.server.log import sparing_log
from fewgraft.app.server.memory import give_back_memory
from fewgraft.app.server.refusals import Limits
from fewgraft.app.server.versions import Versions, default_folder
from fewgraft.devices import CPU
from fewgraft.errors import FewgraftError

PATIENCE = 3  # seconds for requests in hand when it stops


def run(
    classifier: str,
    host: str,
    port: int,
    token: str | None,
    folder: Path | None,
    tell: Callable[[str], None],
    device: torch.device = CPU,
) -> None:
    """Serve a classifier; `tell` says where."""
    if not is_local(host) and not token:
        raise FewgraftError(
            f"{host} can be reached from other machines: a token is needed",
            "Give --token or set FEWGRAFT_TOKEN to a long secret, or stay with 127.0.0.1.",
        )
    if token and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise FewgraftError(
            "the token cannot be sent in a header",
            "Use letters, digits and signs of ASCII, without spaces around them.",
        )
    limits = Limits()
    give_back_memory()
    allow_files()
    with sparing_log(), contextlib.closing(_listen(host, port)) as listening:
        versions = Versions(classifier, folder or default_folder(classifier), limits, device)
        app = create_app(versions, token or None, limits)
        serving = versions.serving
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}"
        classes = len(serving.embed.model.card.classes)
        tell(f"{classifier} ({serving.name}, {classes} classes) is at {address}")
        tell(f"versions are kept in {versions.folder}; stop with Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            Server(configured(app, limits)).run(sockets=[listening])


class Server(uvicorn.Server):
    """uvicorn's. There, as many are accepted at a time as the system holds; here, far fewer."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        for one in sockets or []:
            one.listen(BACKLOG)


def configured(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """How uvicorn runs it: connections are ours, and nothing is logged but warnings."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=protocol(limits),
        ws="none",
        backlog=ACCEPTED,
        timeout_keep_alive=limits.idle,
        timeout_graceful_shutdown=PATIENCE,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )


def _listen(host: str, port: int) -> socket.socket:
    """Before anything is loaded: a port that is taken is told at once."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise FewgraftError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}",
            "Give another --port; 0 takes any that is free.",
        ) from None
