"""`fewgraft serve`: a classifier on a page of its own."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from fewgraft.cli.tool import DeviceOption
from fewgraft.errors import FewgraftError

NEEDED = ("fastapi", "uvicorn", "python_multipart")


def serve(
    classifier: Annotated[
        str,
        typer.Argument(
            help="Serve the classifier of this folder, or icons, which is in the package."
        ),
    ],
    host: Annotated[str, typer.Option(help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Listen on this port; 0 takes any that is free.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="FEWGRAFT_TOKEN",
            help="Ask for this secret; it is needed beyond this machine.",
        ),
    ] = None,
    versions: Annotated[
        Path | None,
        typer.Option(help="Keep versions in this folder; CLASSIFIER.versions if not given."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Serve a classifier: a page to recognise photos and teach classes, and a JSON API.

    The classifier itself stays as it is. What is taught and kept becomes a version beside it, and
    any version can serve again.

    Examples:

      fewgraft serve icons

      fewgraft serve v1 --port 9000 --versions v1-taught

      FEWGRAFT_TOKEN=... fewgraft serve v1 --host 0.0.0.0
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise FewgraftError(
            f"serving needs packages that are not there: {', '.join(missing)}",
            "pip install 'fewgraft[serve]'",
        )
    from fewgraft.app.features.given import refuse_addresses
    from fewgraft.app.server.run import run
    from fewgraft.devices import choose_device

    refuse_addresses(classifier)
    run(classifier, host, port, token, versions, typer.echo, choose_device(device))
