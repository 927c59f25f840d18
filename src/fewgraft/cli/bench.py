"""`fewgraft bench`: evaluate methods on frozen episodes, and look at the results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewgraft.cli import bench_figures, bench_import, bench_sessions, bench_tables
from fewgraft.cli.bench_options import (
    AddressOption,
    EngineOption,
    EpisodesOption,
    ModelsOption,
    OutOption,
    RecipeArgument,
    ShotsOption,
    ViewsOption,
    WorkersOption,
    chosen_engine,
    listed,
    named,
    numbers,
    seeds_of,
)
from fewgraft.cli.tool import DeviceOption
from fewgraft.errors import FewgraftError, reading, writing

if TYPE_CHECKING:
    from fewgraft.bench.runner import Job

ALL = ("all", "all-features")  # words for many methods
app = typer.Typer(
    help="Evaluate methods on frozen episodes, and look at the results.", no_args_is_help=True
)

app.command("import")(bench_import.import_)
app.command()(bench_tables.table)
app.command()(bench_tables.compare)
for command in (
    bench_figures.ratio,
    bench_figures.tsne,
    bench_figures.scatter,
    bench_figures.report,
    bench_sessions.sessions,
):
    app.command()(command)


@app.command()
def run(
    recipe: RecipeArgument,
    methods: Annotated[
        str,
        typer.Option(
            help="Evaluate these methods, separated by commas; `bench methods` lists them. "
            "all-features is all that need features only."
        ),
    ] = "all",
    settings: Annotated[
        str,
        typer.Option(
            help="Evaluate in these settings: fsl, transductive-fsl, semi-fsl, incremental, ..."
        ),
    ] = "all",
    shots: ShotsOption = "1,5",
    episodes: EpisodesOption = 600,
    split: Annotated[str, typer.Option(help="Draw episodes from test or val.")] = "test",
    seeds: Annotated[
        str,
        typer.Option(
            "--seed",
            "--seeds",
            help="Draw the sequences of episodes with these seeds, as in 0,1,2.",
        ),
    ] = "0",
    models: Annotated[
        str,
        typer.Option(
            help="Use the models of these training runs, separated by commas; the shipped ones if "
            "not given."
        ),
    ] = "",
    ways: Annotated[
        int | None, typer.Option(min=1, help="Draw so many novel classes per episode.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Draw so many queries per novel class.")
    ] = None,
    base_queries: Annotated[
        int | None, typer.Option(min=0, help="Draw so many queries of base classes in all.")
    ] = None,
    unlabelled: Annotated[
        int | None, typer.Option(min=0, help="Draw so many unlabelled pictures per episode.")
    ] = None,
    views: ViewsOption = 1,
    out: OutOption = None,
    engine: EngineOption = "here",
    workers: WorkersOption = None,
    address: AddressOption = None,
    device: DeviceOption = "cpu",
) -> None:
    """Evaluate methods × settings × shots. Rows that are there already are not computed again.

    Interrupted, the same command goes on.

    Examples:

      fewgraft bench run icons

      fewgraft bench run cifar-fs --methods +pr,proposed-without-adaptation --settings s2i --shots 1

      fewgraft bench run icons --seeds 0,1,2 --models runs/a,runs/b

      fewgraft bench run cifar-fs --methods all-features --engine processes

      fewgraft bench run icons --methods +pr,graft --settings s2i --views 3
    """
    from fewgraft.bench.results import Results
    from fewgraft.bench.rows import run as run_jobs
    from fewgraft.bench.runner import Bench, jobs
    from fewgraft.devices import choose_device
    from fewgraft.episodes import SETTINGS
    from fewgraft.files import make_folder
    from fewgraft.imported import is_import
    from fewgraft.training.recipe import load_recipe
    from fewgraft.zoo import models_folder

    place = choose_device(device)
    if engine != "here" and place.type != "cpu":
        raise FewgraftError(
            f"workers of the engine '{engine}' compute on the CPU",
            "Leave --device or --engine out.",
        )
    loaded = load_recipe(recipe)
    folders = [Path(one) for one in listed(models)] or [models_folder(loaded.name)]
    if methods == "all" and any(map(is_import, folders)):
        methods = "all-features"  # there are no pictures
    asked = {"ways": ways, "queries": queries, "unlabelled": unlabelled}
    asked |= {"base_queries": base_queries}
    wanted = [
        job
        for folder in folders
        for seed in seeds_of(seeds)
        for setting in (list(SETTINGS) if settings == "all" else listed(settings))
        for job in jobs(
            loaded,
            folder,
            _named(methods),
            [setting],
            numbers(shots),
            episodes,
            split,
            seed,
            _fitting(asked, setting),
            views,
        )
    ]
    wanted.sort(key=lambda job: job.configured.moves_network)
    if methods in ALL:
        wanted = _with_pieces(wanted)
    if not wanted:
        raise FewgraftError("none of these methods fits any of these settings")
    folder = out or Path("results") / loaded.name
    with writing(folder):
        make_folder(folder)
    done = 0
    with chosen_engine(engine, workers, address) as compute:
        for row, computed in run_jobs(wanted, Results(folder), Bench(device=place), compute):
            done += computed
            typer.echo(
                f"{row.id}  {row.method:<28} {row.setting:<17} {row.shots}-shot  "
                f"Acc {row.interval('acc')}  {row.seconds:7.1f} s{'' if computed else '  (there)'}"
            )
    typer.echo(f"{done} rows computed, {len(wanted) - done} were there: {folder}/results.jsonl")


def _fitting(asked: dict[str, int | None], setting: str) -> dict[str, int]:
    """Numbers of pictures and classes that were asked for, without what a setting does not have."""
    from fewgraft.episodes import SETTINGS

    kind = SETTINGS.get(setting)
    there = {
        "base_queries": kind is not None and kind.incremental,
        "unlabelled": kind is not None and kind.unlabelled == "extra",
    }
    return {name: n for name, n in asked.items() if n is not None and there.get(name, True)}


def _named(methods: str) -> list[str]:
    """What a list of methods, or a word for many of them, stands for."""
    from fewgraft.methods import methods as known

    if methods not in ALL:
        return named(methods)
    return [
        name
        for name, spec in known().items()
        if methods == "all" or not (spec.method.moves_network or spec.method.uses_pictures)
    ]


def _with_pieces(jobs: "list[Job]") -> "list[Job]":
    """The jobs whose methods have learnt what they need; the others are named."""
    from fewgraft.pieces import has_pieces

    ready = [
        has_pieces(job.models, job.configured.pieces, job.episode_settings.shots) for job in jobs
    ]
    missing = {job.configured.pieces for job, there in zip(jobs, ready, strict=True) if not there}
    _tell_left_out(missing)
    return [job for job, there in zip(jobs, ready, strict=True) if there]


def _tell_left_out(pieces: set[str]) -> None:
    for name in sorted(pieces):
        typer.echo(f"left out: {name}; `fewgraft train RECIPE --only {name}` first", err=True)


@app.command()
def rerun(
    row: Annotated[
        str, typer.Argument(help="Compute the row of this id, or of an id that begins like this.")
    ],
    results: Annotated[Path, typer.Option("--in", help="Read the results of this folder.")],
) -> None:
    """Compute a row again from its own record, and say whether it is the same.

    Example: fewgraft bench rerun 3f9a --in results/icons
    """
    import torch

    from fewgraft.bench.results import Results
    from fewgraft.bench.runner import Bench
    from fewgraft.bench.runner import rerun as compute

    folder = Results(results)
    record = folder.row(row)
    scores, different = compute(record, Bench())
    for line in different:
        typer.echo(f"different: {line}")
    same = torch.equal(scores.acc, folder.scores(record).acc)
    typer.echo(f"{record.id}: {'the same in every episode' if same else 'other numbers'}")
    if not same:
        typer.echo(f"Acc {100 * scores.acc.mean().item():.2f}, was {record.interval('acc')}")
        raise typer.Exit(1)


@app.command()
def tune(
    recipe: RecipeArgument,
    methods: Annotated[
        str,
        typer.Option(
            help="Tune these methods, separated by commas; all is every one with values to try, "
            "all-features those of them that need features only."
        ),
    ] = "all",
    shots: ShotsOption = "1,5",
    episodes: EpisodesOption = 300,
    models: ModelsOption = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write a copy of the recipe with what was found.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write that copy to this TOML file; NAME.tuned.toml if not given. Implies --write."
        ),
    ] = None,
    engine: EngineOption = "here",
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> None:
    """Choose hyper-parameters on validation episodes: entries for the recipe.

    A method that builds on another, as +pr+bias on +pr, is tuned after it, with its values. With
    --write the entries go into a copy of the recipe, and every value tried, with its interval, into
    results.jsonl of the folder NAME.tuned.tried beside it. Interrupted, the same command goes on
    and computes no value again.

    Examples:

      fewgraft bench tune cifar-fs --methods +pr,+pr+bias,proposed-without-adaptation

      fewgraft bench tune birds.toml --methods all-features --write --out birds.tuned.toml
    """
    from fewgraft.bench.results import Results
    from fewgraft.bench.runner import Bench
    from fewgraft.bench.tune import tune as search
    from fewgraft.bench.tuned_recipe import entry_of, tried_folder, with_entries
    from fewgraft.files import write_atomically
    from fewgraft.imported import is_import
    from fewgraft.metrics import interval
    from fewgraft.parsing import read_text
    from fewgraft.training.recipe import Chosen, load_recipe, recipe_file
    from fewgraft.zoo import models_folder

    loaded = load_recipe(recipe)
    copy = out or (Path(f"{loaded.name}.tuned.toml") if write else None)
    with reading(recipe, "readable recipe"):
        text = read_text(recipe_file(recipe))
    folder, ks = models or models_folder(loaded.name), numbers(shots)
    if methods == "all" and is_import(folder):
        methods = "all-features"
    names = _tunable(methods, folder, ks) if methods in ALL else named(methods)
    if copy:  # what cannot be written is refused before the work
        if copy.is_dir():
            raise FewgraftError(f"{copy} is a folder", "Name a TOML file.")
        with_entries(text, [Chosen(method=n, shots=k, hyper={}) for n in names for k in ks], "")
    found = []
    with chosen_engine(engine, workers, address) as compute:
        tried = Results(tried_folder(copy)) if copy else None
        for one in search(loaded, folder, names, ks, episodes, Bench(), compute, tried):
            found.append(one)
            typer.echo(
                f"# val Acc {interval(one.best.scores.acc)}, best of {len(one.candidates)}; "
                f"over the default {one.gain.difference}"
            )
            for name, value in one.borders.items():
                typer.echo(f"# {name} = {value} is at the border of what was tried")
            typer.echo(entry_of(one.chosen) + "\n")
    if copy:
        heading = f"Chosen on {episodes} validation episodes by `fewgraft bench tune`."
        with writing(copy):
            entries = [one.chosen for one in found]
            write_atomically(copy, with_entries(text, entries, heading).encode())
        typer.echo(f"wrote {copy}; what was tried is in {tried_folder(copy)}/results.jsonl")


def _tunable(methods: str, folder: Path, shots: list[int]) -> list[str]:
    """Methods that name values to try, without those that lack what they have to learn first."""
    from fewgraft.methods import method_spec
    from fewgraft.pieces import has_pieces

    specs = [method_spec(name) for name in _named(methods)]
    lacking = {
        spec.method.pieces
        for spec in specs
        if not all(has_pieces(folder, spec.method.pieces, k) for k in shots)
    }
    _tell_left_out(lacking)
    return [s.name for s in specs if s.method.search and s.method.pieces not in lacking]


@app.command("methods")
def list_methods() -> None:
    """List the methods with their titles and the models whose features they use.

    "Balanced" marks those that assume equally many unlabelled pictures per class.

    Example: fewgraft bench methods
    """
    from fewgraft.methods import methods

    for spec in methods().values():
        balanced = ", balanced" if spec.balanced else ""
        typer.echo(f"{spec.name:<28} {spec.title} ({spec.stage}{balanced})")
