"""`fewgraft demo`."""

from pathlib import Path
from typing import Annotated

import typer

from fewgraft.errors import writing


def demo(
    out: Annotated[
        Path, typer.Option(help="Write pictures, results and report to this folder.")
    ] = Path("fewgraft-demo"),
    episodes: Annotated[
        int, typer.Option(min=1, max=100_000, help="Draw so many episodes per row.")
    ] = 600,
) -> None:
    """Show the embedded pictures, an episode of the task, and the paper's methods on them.

    It needs no data, no network and no GPU.

    Example: fewgraft demo --out /tmp/demo
    """
    from rich.console import Console

    console = Console()
    console.print("Fewgraft demo: opening the embedded Icons ...", highlight=False)
    from fewgraft.bench.demo import run_demo

    with writing(out):
        run_demo(out, episodes, console)
