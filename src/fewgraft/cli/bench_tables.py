"""`fewgraft bench table` and `fewgraft bench compare`: look at results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewgraft.errors import FewgraftError, nearest, writing

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fewgraft.bench.chosen_rows import Choice
    from fewgraft.bench.tables import Table

WIDE = 160  # where no terminal says how wide it is


def table(
    results: Annotated[Path, typer.Argument(help="Read the results of this folder.")],
    layout: Annotated[
        str,
        typer.Option(
            help="Print main (the paper's Tables 1 and 2), detail (3), regular (4), ablation (5) "
            "or all."
        ),
    ] = "main",
    form: Annotated[
        str, typer.Option("--format", help="Print for the terminal, or as markdown, latex or csv.")
    ] = "terminal",
    setting: Annotated[
        str | None, typer.Option(help="Show this setting in the detailed table; s2i if not given.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(help="Show only these; the detailed table shows 5 if not given.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Show only rows of so many episodes.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Show only rows of this split.")] = None,
    seed: Annotated[int | None, typer.Option(help="Show only rows of this seed.")] = None,
    hyper: Annotated[
        bool, typer.Option("--hyper", help="Also print the hyper-parameters of each row.")
    ] = False,
    models: Annotated[
        str | None, typer.Option(help="Show only rows of the models in this folder.")
    ] = None,
    pool: Annotated[
        bool,
        typer.Option(
            "--pool",
            help="Show means and standard deviations over seeds and training runs.",
        ),
    ] = False,
    views: Annotated[
        int | None, typer.Option(help="Show only rows of so many views of each picture.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
) -> None:
    """Print results in the layouts of the paper.

    Bold figures are better than every other row of their section, episode by episode.

    Examples:

      fewgraft bench table results/icons

      fewgraft bench table results/icons --layout detail --shots 1 --format latex --out detail.tex

      fewgraft bench table results/cifar-fs --layout all --format markdown

      fewgraft bench table results/icons --layout ablation --hyper

      fewgraft bench table results/icons --pool
    """
    from fewgraft.bench.chosen_rows import Choice
    from fewgraft.bench.table_formats import FORMATS

    if form not in ("terminal", *FORMATS):
        raise FewgraftError(f"there is no format '{form}'", nearest(form, ["terminal", *FORMATS]))
    if form == "csv" and layout == "all":
        raise FewgraftError("a CSV file holds one table", "Choose a --layout.")
    if setting and layout not in ("detail", "all"):
        raise FewgraftError(f"--setting is not for layout '{layout}'", "Use --layout detail.")
    choice = Choice(episodes, split, seed, shots, setting or "s2i", hyper, models, pool, views)
    show(built(results, layout, choice), form, out)


def built(folder: Path, layout: str, choice: "Choice") -> list["Table"]:
    """The table of a layout; of all of them, those that have rows."""
    from fewgraft.bench.chosen_rows import NoRowsError
    from fewgraft.bench.results import Results
    from fewgraft.bench.tables import LAYOUTS, build

    results = Results(folder)
    if layout != "all":
        return [build(results, layout, choice)]
    tables, missing = [], {}
    for name in LAYOUTS:
        try:
            tables.append(build(results, name, choice))
        except NoRowsError as nothing:
            missing[name] = nothing
    if not tables:
        raise missing["main"]
    for name, error in missing.items():
        typer.echo(f"left out: {name} has no rows yet. {error.hint}", err=True)
    return tables


def show(tables: list["Table"], form: str, out: Path | None) -> None:
    """Print tables, or write them to a file and say where they are."""
    from fewgraft.bench.table_formats import FORMATS, terminal
    from fewgraft.files import write_atomically

    if form == "terminal" and not out:
        for each in tables:
            shown = terminal(each)
            fitting_console(shown).print(shown)
        return
    text = "\n".join(plain(each) if form == "terminal" else FORMATS[form](each) for each in tables)
    if not out:
        typer.echo(text, nl=False)
        return
    with writing(out):
        write_atomically(out, text.encode())
    typer.echo(f"wrote {out}")


def fitting_console(shown: "RenderableType") -> "Console":
    """As wide as the terminal, but never so narrow that numbers would be cut off."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    if not console.is_terminal:
        return Console(width=WIDE)
    needed = Measurement.get(console, console.options.update_width(WIDE), shown).minimum
    return Console(width=max(console.width, needed))


def plain(table: "Table") -> str:
    """What a terminal shows, without its colours."""
    import io

    from rich.console import Console

    from fewgraft.bench.table_formats import terminal

    text = io.StringIO()
    Console(file=text, width=WIDE, force_terminal=False, color_system=None).print(terminal(table))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="Compare the row of this id, or method:setting:shots, or method:setting:shots:3 "
            "of three views."
        ),
    ],
    b: Annotated[str, typer.Argument(help="Compare it with this row.")],
    results: Annotated[Path, typer.Option("--in", help="Read the results of this folder.")],
    seed: Annotated[int | None, typer.Option(help="Compare rows of this seed.")] = None,
) -> None:
    """Compare two rows episode by episode: A − B, with the interval of the difference.

    At one seed all settings have the same queries, so that rows of different settings can be
    compared.

    Examples:

      fewgraft bench compare +pr:s2i:1 meta-inc-baseline:incremental:1 --in results/icons

      fewgraft bench compare 3f9a 81c2 --in results/icons

      fewgraft bench compare graft:s2i:1:3 +pr:s2i:1:3 --in results/icons
    """
    from fewgraft.bench.comparison import compare as compare_rows
    from fewgraft.bench.comparison import comparison_table
    from fewgraft.bench.results import Results

    show([comparison_table(compare_rows(Results(results), a, b, seed))], "terminal", None)
