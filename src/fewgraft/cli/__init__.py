"""The `fewgraft` command."""

import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from fewgraft import __version__
from fewgraft.cli import bench, data, demo, doctor, episode, serve, tool, train, zoo
from fewgraft.errors import FewgraftError, why
from fewgraft.leftovers import clear_leftovers

app = typer.Typer(
    name="fewgraft",
    help="Teach a trained image classifier new classes, from a few labelled pictures of each and "
    "a set of unlabelled ones, without forgetting the old ones.",
    epilog="Start with: fewgraft demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(episode.episode)
app.command()(train.train)
app.command()(tool.base)
app.command()(tool.learn)
app.command()(tool.predict)
app.command()(tool.embed)
app.command()(tool.export)
app.command()(serve.serve)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(zoo.app, name="zoo")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fewgraft {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show version and exit."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command; what the user can mend is told without a traceback, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without Δ or ± must not end a run
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    interrupts = _noted_interrupts()
    try:
        clear_leftovers()
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if interrupts:
            sys.exit(130)
        _explain(error)
        raise


def _explain(error: Exception) -> None:
    """End with what is wrong, where it is known; else return."""
    if isinstance(error, FewgraftError):
        _end(error.problem, error.hint)
    if isinstance(error, OSError):  # a full disk, a name that is too long, a folder that is closed
        _end(f"{error.filename}: {why(error)}" if error.filename else why(error))
    if isinstance(error, UnicodeError):
        _end(f"a name or text is not valid: {why(error)}")
    if _lacks_memory(error):
        _end("there is not enough memory for this")


def _noted_interrupts() -> list[int]:
    """Filled by Ctrl-C: a library that imports or reads a file may make another error of it."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    return noted


def _lacks_memory(error: Exception) -> bool:
    """Whether this is how Python or torch says it."""
    said = ("allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in said)
    )


def _end(problem: str, hint: str = "") -> NoReturn:
    """Say what is wrong, without a traceback."""
    typer.echo(f"error: {problem}", err=True)
    if hint:
        typer.echo(hint, err=True)
    sys.exit(2)
