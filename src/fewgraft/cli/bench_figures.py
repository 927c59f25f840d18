"""`fewgraft bench ratio`, `tsne` and `report`: results to look at."""

from pathlib import Path
from typing import Annotated

import typer

from fewgraft.cli.bench_options import (
    AddressOption,
    EngineOption,
    EpisodesOption,
    ModelsOption,
    OutOption,
    RecipeArgument,
    SeedOption,
    ViewsOption,
    WorkersOption,
    chosen_engine,
    decimals,
    named,
    numbers,
)
from fewgraft.errors import FewgraftError, writing


def ratio(
    recipe: RecipeArgument,
    methods: Annotated[
        str,
        typer.Option(
            help="Evaluate these methods, separated by commas; `bench methods` lists them. "
            "If not given: +pr and the proposed method without adaptation, each with and without a "
            "bias, and with --imbalance all that move no network."
        ),
    ] = "",
    shares: Annotated[
        str, typer.Option(help="Vary the share of novel pictures in U over these values.")
    ] = "0.1,0.3,0.5,0.7,0.9",
    distractors: Annotated[
        str, typer.Option(help="Vary how many classes in U are neither base nor novel.")
    ] = "0,2,4,6",
    imbalance: Annotated[
        bool,
        typer.Option(
            "--imbalance",
            help="Vary instead how unequally novel classes share U, in semi-fsl: their numbers of "
            "pictures follow a Dirichlet distribution.",
        ),
    ] = False,
    shots: Annotated[
        int, typer.Option(min=1, help="Give so many labelled pictures per novel class.")
    ] = 1,
    episodes: EpisodesOption = 600,
    seed: SeedOption = 0,
    views: ViewsOption = 1,
    models: ModelsOption = None,
    out: OutOption = None,
    engine: EngineOption = "here",
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> None:
    """Vary what is in the unlabelled set U: its share of novel pictures, then its distractors.

    Prints tables, and draws ratio.png, or imbalance.png, into the folder of the results. The rows
    go to its sub-folder ratio/, because they are not the paper's settings. Interrupted, the same
    command goes on.

    Examples:

      fewgraft bench ratio icons

      fewgraft bench ratio cifar-fs --shares 0.1,0.5,0.9 --distractors 0,5 --shots 5

      fewgraft bench ratio cifar-fs --imbalance
    """
    from rich.console import Console

    from fewgraft.bench.ratio import (
        METHODS,
        Sweep,
        draw_sweeps,
        features_methods,
        run_sweep,
        sweep_table,
    )
    from fewgraft.bench.report import IMBALANCE, RATIO, write_figure
    from fewgraft.bench.results import Results
    from fewgraft.bench.runner import Bench
    from fewgraft.training.recipe import load_recipe
    from fewgraft.zoo import models_folder

    loaded, bench, console = load_recipe(recipe), Bench(), Console()
    folder = out or Path("results") / loaded.name
    (folder / "ratio").mkdir(parents=True, exist_ok=True)
    if imbalance:
        sweeps, figure = [Sweep.of_imbalance()], folder / IMBALANCE
        names = named(methods) or features_methods("semi-fsl")
    else:
        sweeps = [Sweep.of_shares(decimals(shares)), Sweep.of_distractors(numbers(distractors))]
        figure, names = folder / RATIO, named(methods) or list(METHODS)
    with chosen_engine(engine, workers, address) as compute:
        found = [
            run_sweep(
                sweep,
                loaded,
                models or models_folder(loaded.name),
                Results(folder / "ratio"),
                bench,
                methods=names,
                shots=shots,
                episodes=episodes,
                seed=seed,
                views=views,
                engine=compute,
            )
            for sweep in sweeps
            if sweep.values
        ]
    if not found:
        raise FewgraftError("there is nothing to vary", "Name some --shares or --distractors.")
    for swept in found:
        console.print(sweep_table(swept))
        for value, reason in swept.left_out.items():
            console.print(f"{value:g} is left out: {reason}", highlight=False, markup=False)
    write_figure(draw_sweeps(found), " ".join(map(str, found)), figure)
    typer.echo(f"wrote {figure}, rows are in {folder / 'ratio'}")


def tsne(
    recipe: RecipeArgument,
    methods: Annotated[
        str, typer.Option(help="Draw one panel for each of these methods, separated by commas.")
    ] = "+pr,proposed-without-adaptation",
    episode: Annotated[
        int, typer.Option(min=0, max=100_000, help="Draw the test episode of this number.")
    ] = 0,
    base: Annotated[
        str, typer.Option(help="Show the base classes nearest to the novel ones, or random ones.")
    ] = "nearest",
    shots: Annotated[
        int, typer.Option(min=1, help="Give so many labelled pictures per novel class.")
    ] = 1,
    seed: SeedOption = 0,
    models: ModelsOption = None,
    out: OutOption = None,
) -> None:
    """Draw where pictures and prototypes of one episode lie in feature space.

    The novel classes of the episode and as many base classes; tsne.png goes into the folder of the
    results.

    Examples:

      fewgraft bench tsne icons

      fewgraft bench tsne icons --methods +pr,proposed --episode 7 --base random
    """
    from fewgraft.bench.report import TSNE, write_figure
    from fewgraft.bench.runner import Bench, jobs
    from fewgraft.bench.tsne import choose, describe, draw_spaces, feature_space
    from fewgraft.training.recipe import load_recipe
    from fewgraft.zoo import models_folder

    loaded, bench = load_recipe(recipe), Bench()
    folder = out or Path("results") / loaded.name
    folder.mkdir(parents=True, exist_ok=True)
    places = models or models_folder(loaded.name)
    wanted = []
    for name in named(methods):
        settings = ["s2i", "incremental"]  # a method that does not use U has a row in the latter
        found = jobs(loaded, places, [name], settings, [shots], episode + 1, seed=seed)
        if not found:
            raise FewgraftError(f"'{name}' does not tell base and novel classes apart")
        wanted += found
    if not wanted:
        raise FewgraftError("name one or more methods")
    shown = choose(bench, wanted[0], episode, base, seed)
    views = [feature_space(bench, job, episode, shown) for job in wanted]
    text = describe(shown, views, episode)
    write_figure(draw_spaces(shown, views), text, folder / TSNE)
    typer.echo(f"{text}\nwrote {folder / TSNE}")


def scatter(
    results: Annotated[Path, typer.Argument(help="Read the results of this folder.")],
    setting: Annotated[str, typer.Option(help="Show the rows of this setting.")] = "s2i",
    shots: Annotated[int, typer.Option(min=1, help="Show rows of so many shots.")] = 1,
) -> None:
    """Draw what methods gain among novel classes against what they gain in joint accuracy.

    One point per row, as differences from Meta-Inc-Baseline without U. Prints them with intervals,
    paired over the same queries; scatter.png goes into the folder of the results.

    Example: fewgraft bench scatter results/cifar-fs --shots 5
    """
    from fewgraft.bench.report import SCATTER, write_figure
    from fewgraft.bench.results import Results
    from fewgraft.bench.scatter import Scatter, draw_scatter

    found = Scatter.of(Results(results), setting, shots)
    write_figure(draw_scatter(found), str(found), results / SCATTER)
    typer.echo(f"{found.table()}\n{found}\nwrote {results / SCATTER}")


def report(
    results: Annotated[Path, typer.Argument(help="Read the results of this folder.")],
    recipe: Annotated[
        str | None,
        typer.Option(help="Draw --figures with this recipe; that of the results if not given."),
    ] = None,
    figures: Annotated[
        bool,
        typer.Option("--figures", help="Draw both figures first (`bench ratio` and `bench tsne`)."),
    ] = False,
    episode: Annotated[
        int,
        typer.Option(
            min=0, max=100_000, help="Look at the prototypes of the episode of this number."
        ),
    ] = 0,
    episodes: Annotated[
        int | None, typer.Option(min=2, help="Show only rows of so many episodes.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Show only rows of this split.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Show only rows of this seed.")] = None,
    models: Annotated[
        str | None, typer.Option(help="Show only rows of the models in this folder.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file; RESULTS/report.html if not given.")
    ] = None,
) -> None:
    """Write one HTML file that shows the results: tables, figures, classes and pictures.

    The file is complete in itself and needs no network.

    Examples:

      fewgraft bench report results/icons

      fewgraft bench report results/icons --figures --episode 7 --out icons.html
    """
    from fewgraft.bench.chosen_rows import Choice
    from fewgraft.bench.report import chosen_rows, find
    from fewgraft.bench.report_page import page
    from fewgraft.bench.results import Results
    from fewgraft.bench.runner import Bench
    from fewgraft.files import write_atomically

    folder = Results(results)
    choice = Choice(episodes=episodes, split=split, seed=seed, models=models)
    if figures:
        row = next(iter(chosen_rows(folder, choice).values()))
        name, drawn_with = recipe or row.recipe, Path(row.models)
        drawn_seed = row.episode_settings["seed"]
        ratio(name, episodes=row.episodes, seed=drawn_seed, models=drawn_with, out=results)
        tsne(name, episode=episode, seed=drawn_seed, models=drawn_with, out=results)
    text = page(find(folder, choice, episode, Bench()))
    path = out or results / "report.html"
    with writing(path):
        write_atomically(path, text.encode())
    typer.echo(f"wrote {path}, {len(text) // 1024} KB")
