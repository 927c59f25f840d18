"""`fewgraft demo`."""

from pathlib import Path
from typing import Annotated

import typer

from fewgraft.errors import FewgraftError


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("fewgraft-demo"),
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes a row.")] = 600,
) -> None:
    """Show the embedded pictures, an episode of the task, and all methods on the embedded data.

    Needs no data, no network and no GPU.

    Example: fewgraft demo --out /tmp/demo
    """
    from rich.console import Console

    console = Console()
    console.print("Fewgraft demo: opening the embedded Icons ...", highlight=False)
    from fewgraft.bench.demo import run_demo

    try:
        run_demo(out, episodes, console)
    except OSError as error:
        raise FewgraftError(f"cannot write {out}: {error.strerror or error}") from None
