"""Who may ask. Beyond localhost: whoever knows the token. On it: pages of this server only.

A page on the web can make a browser send requests to localhost, under a name of its own that leads
there (DNS rebinding) or as a form that is sent without asking. So without a token the name that was
asked for must be one of this machine's own, and the page that asks, if there is one, must be ours.
"""

import asyncio
import hmac
import ipaddress
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fewgraft.app.server.refusals import Limits, RequestError
from fewgraft.app.server.uploads import refuse_length

# The page asks this server alone, and no other page may frame it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HOST = re.compile(r"(?:\[([\da-fA-F:.]+)\]|([\w.-]+))(?::\d*)?", re.ASCII)  # and its port
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def is_local(host: str) -> bool:
    """Whether a host, without port and brackets, is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits) -> None:
        self._app = app
        self._token = token
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._check(scope["path"], Headers(scope=scope))
            await self._app(scope, receive, send_with_headers)
        except RequestError as refused:
            await refusal(refused)(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and waits for nobody any more
            if not begun:
                stops = RequestError("the server stops", "Try again later.", 503)
                await refusal(stops)(scope, receive, send_with_headers)

    def _check(self, path: str, headers: Headers) -> None:
        if self._token is None:
            _check_names(headers)
        elif path.startswith("/api/"):
            _check_token(headers, self._token)
        length = headers.get("content-length", "")
        refuse_length(int(length) if length.isdecimal() else 0, self._limits)


def refusal(refused: RequestError) -> JSONResponse:
    """As all errors of the API are told."""
    headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
    content = {"error": refused.problem, "hint": refused.hint}
    return JSONResponse(content, refused.status, headers)


def _check_names(headers: Headers) -> None:
    host = headers.get("host", "")
    named = HOST.fullmatch(host)
    if not named or not is_local((named[1] or named[2]).lower()):
        raise RequestError(
            f"this server answers to localhost, not to '{host[:80]}'",
            "Start it with --host and --token to reach it under another name.",
            status=403,
        )
    for origin in headers.getlist("origin"):
        if origin != f"http://{host}":
            raise RequestError(f"pages of '{origin[:80]}' may not use this server", status=403)


def _check_token(headers: Headers, token: str) -> None:
    kind, _, given = headers.get("authorization", "").partition(" ")
    known = hmac.compare_digest(given.strip().encode(), token.encode())
    if kind.lower() != "bearer" or not known:
        raise RequestError(
            "the token is missing or wrong", "Send the header Authorization: Bearer TOKEN.", 401
        )
