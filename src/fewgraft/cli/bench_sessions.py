"""`fewgraft bench sessions`: lessons one after the other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewgraft.cli.bench_options import (
    AddressOption,
    EngineOption,
    ModelsOption,
    OutOption,
    RecipeArgument,
    SeedOption,
    WorkersOption,
    chosen_engine,
    named,
    numbers,
)
from fewgraft.cli.bench_tables import show
from fewgraft.errors import FewgraftError, nearest, writing

if TYPE_CHECKING:
    from fewgraft.bench.rows import Engine
    from fewgraft.bench.session_runner import SessionJob
    from fewgraft.sessions import SessionSettings
    from fewgraft.training.recipe import Recipe

MOST_DRAWS = 10_000


def sessions(
    recipe: RecipeArgument,
    methods: Annotated[
        str,
        typer.Option(
            help="Evaluate these methods, separated by commas: any that work on features and tell "
            "base and novel classes apart."
        ),
    ] = "",
    sessions: Annotated[
        int | None,
        typer.Option(min=1, help="Teach so many sessions; as many as there are classes for."),
    ] = None,
    ways: Annotated[int, typer.Option(min=1, help="Teach so many classes per session.")] = 5,
    shots: Annotated[
        int, typer.Option(min=1, help="Give so many labelled pictures per new class.")
    ] = 5,
    unlabelled: Annotated[
        int, typer.Option(min=0, help="Give so many unlabelled pictures per new class.")
    ] = 50,
    mix: Annotated[
        str,
        typer.Option(
            help="What unlabelled sets show: seen (half new classes, half classes seen before), "
            "new (new classes only) or uniform (all classes seen so far alike)."
        ),
    ] = "seen",
    order: Annotated[
        str,
        typer.Option(help="Teach classes in the order of the data (fixed) or in a drawn one."),
    ] = "fixed",
    queries: Annotated[
        int,
        typer.Option(
            min=1, help="Test with so many pictures per novel class, where the data does not say."
        ),
    ] = 20,
    listed: Annotated[
        bool, typer.Option("--listed", help="Teach the published shots; draws differ in U only.")
    ] = False,
    base: Annotated[
        str,
        typer.Option(help="Begin with the trained base weights, or with means of base classes."),
    ] = "weights",
    earlier: Annotated[
        str,
        typer.Option(
            help="Let unlabelled sets refine classes of earlier sessions, each of which counts for "
            "so many pictures, such as 0,15: a row for each, 0 leaves them; as the recipe has "
            "chosen if not given."
        ),
    ] = "",
    without: Annotated[
        bool,
        typer.Option(
            "--without-u", help="Add a row without unlabelled sets for each method that uses them."
        ),
    ] = False,
    draws: Annotated[int, typer.Option(min=1, max=MOST_DRAWS, help="Draw so often.")] = 100,
    split: Annotated[str, typer.Option(help="Teach test or val classes.")] = "test",
    seed: SeedOption = 0,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Look for hyper-parameters on validation sessions; print what is best."
        ),
    ] = False,
    metric: Annotated[
        str, typer.Option(help="Print this: acc, base, novel, newest or harmonic.")
    ] = "acc",
    form: Annotated[
        str, typer.Option("--format", help="Print as terminal, markdown, latex or csv.")
    ] = "terminal",
    models: ModelsOption = None,
    out: OutOption = None,
    engine: EngineOption = "here",
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> None:
    """Teach classes session after session, and test all classes seen so far after each.

    Prints a table, with published rows beside it where there are some, and draws sessions.png into
    the folder of the results. Rows that are there already are not computed again.

    Examples:

      fewgraft bench sessions cifar-100-sessions

      fewgraft bench sessions icons --unlabelled 30 --queries 25

      fewgraft bench sessions cifar-100-sessions --methods nearest-prototype --base means

      fewgraft bench sessions icons --unlabelled 20 --tune --methods +pr,+pr+bias
    """
    from fewgraft.bench.session_runner import METHODS, SessionBench, session_jobs
    from fewgraft.bench.session_tables import NAMES
    from fewgraft.bench.table_formats import FORMATS
    from fewgraft.sessions import SessionPools, SessionSettings
    from fewgraft.training.recipe import load_recipe
    from fewgraft.zoo import models_folder

    for given, known in ((metric, list(NAMES)), (form, ["terminal", *FORMATS])):
        if given not in known:
            raise FewgraftError(f"there is no '{given}'", nearest(given, known))
    loaded, bench = load_recipe(recipe), SessionBench()
    wanted = "val" if tune else split
    if sessions is None:
        pools = SessionPools.of(bench.store(loaded.data), wanted, queries)
        sessions = max(1, len(pools.lessons) // ways)
    settings = SessionSettings(
        sessions, ways, shots, unlabelled, mix, order, wanted, queries, listed, seed
    )
    names, folder = named(methods) or list(METHODS), models or models_folder(loaded.name)
    with chosen_engine(engine, workers, address) as compute:
        if tune:
            _tune(loaded, folder, names, settings, draws, base, compute)
            return
        place = out or Path("results") / loaded.name
        counts = numbers(earlier)
        jobs = session_jobs(loaded, folder, names, settings, draws, base, counts, without=without)
        _run(jobs, compute, place, metric, form)


def _tune(
    recipe: "Recipe",
    models: Path,
    names: list[str],
    settings: "SessionSettings",
    draws: int,
    base: str,
    engine: "Engine",
) -> None:
    from fewgraft.bench.session_runner import SessionBench
    from fewgraft.bench.session_tuning import tune_sessions
    from fewgraft.bench.tuned_recipe import entry_of

    typer.echo(f"# Chosen on {draws} draws of {settings}")
    bench = SessionBench()
    for one in tune_sessions(recipe, models, names, settings, draws, bench, base, engine):
        typer.echo(
            f"\n# average {100 * one.best.accuracy:.2f}, {one.gain.difference} over defaults"
        )
        for name, found in one.over_sessions.items():
            each = ", ".join(f"{value}: {100 * accuracy:.2f}" for value, accuracy in found.items())
            typer.echo(f"# {name} {each}")
        for name, value in one.borders.items():
            typer.echo(f"# {name} = {value} is at the border of what was tried")
        typer.echo(entry_of(one.chosen).replace("[[evaluation]]", "[[sessions]]").strip())
        if one.chosen.base != "weights":
            typer.echo(f'base = "{one.chosen.base}"')


def _run(jobs: "list[SessionJob]", engine: "Engine", folder: Path, metric: str, form: str) -> None:
    from fewgraft.bench.report import write_figure
    from fewgraft.bench.results import row_id
    from fewgraft.bench.rows import run
    from fewgraft.bench.session_runner import SessionBench, SessionResults
    from fewgraft.bench.session_tables import described, draw_sessions_figure, session_table
    from fewgraft.files import make_folder

    with writing(folder):
        make_folder(folder)
    results, bench, found, done = SessionResults(folder), SessionBench(), {}, 0
    for row, computed in run(jobs, results, bench, engine):
        done += computed
        found[row.id] = row
        typer.echo(
            f"{row.id}  {row.method:<34} average {row.over('average')}  {row.seconds:7.1f} s"
            f"{'' if computed else '  (there)'}",
            err=True,
        )
    rows = [found[row_id(bench.identity(job))] for job in jobs]  # others may have come first
    show([session_table(results, rows, metric)], form, None)
    write_figure(draw_sessions_figure(rows), described(rows), folder / "sessions.png")
    typer.echo(f"{done} rows computed; wrote {folder / 'sessions.png'}", err=True)
