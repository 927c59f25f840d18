"""`fewgraft train`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewgraft.cli.bench_options import seeds_of
from fewgraft.errors import FewgraftError

if TYPE_CHECKING:
    from fewgraft.training.recipe import Recipe


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Train by this TOML file, or by the recipe of this name in the package."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the run to this folder; runs/NAME if not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in this folder.")
    ] = False,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            "--stage",
            help="Train only this: a stage (pre-trained, algorithm-1, algorithm-2), what a method "
            "such as lwof learns on a trained model, methods for all of these, or graft for what "
            "it keeps of base classes; may be repeated.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting, such as pretraining.steps=100; may be repeated."
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            help="Train one run per seed, such as 0,1,2, into folders seed-0 and so on below --out."
        ),
    ] = "",
    init: Annotated[
        str | None,
        typer.Option(
            help="Print a recipe to start from, for photos or drawings, and train nothing."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="With --init: the name of the data set.")] = None,
) -> None:
    """Train a model from pictures: pre-training, then meta-training by Algorithms 1 and 2.

    Ctrl-C stops after the step in hand; --resume goes on, also after a kill, and ends in the same
    weights. What a method learns stands on the models in the run's folder, or on the shipped ones
    where it has none.

    Examples:

      fewgraft train icons --out runs/icons

      fewgraft train my-recipe.toml --resume

      fewgraft train cifar-fs --only lwof --out runs/cifar-fs

      fewgraft train icons --seeds 0,1,2 --out runs/icons

      fewgraft train --init photos --data birds > birds.toml

      accelerate launch --num_processes 2 -m fewgraft train cifar-fs
    """
    from fewgraft.training.recipe import load_recipe

    if init:
        typer.echo(_recipe_to_start_from(init, data), nl=False)
        return
    if not recipe or data:
        problem = "--data goes with --init" if recipe else "there is no recipe"
        raise FewgraftError(problem, "Name a recipe, or print one: --init photos --data NAME")
    changes = dict(_pair(text) for text in change or ())
    if seeds and "seed" in changes:
        raise FewgraftError("both --seeds and --set seed are given", "Leave one of them out.")
    runs: list[tuple[Recipe, Path]] = []
    for own in [{"seed": str(seed)} for seed in seeds_of(seeds)] if seeds else [{}]:
        loaded = load_recipe(recipe, changes | own)
        folder = out or Path("runs") / loaded.name
        runs.append((loaded, folder / f"seed-{loaded.seed}" if own else folder))
    for _, folder in runs:
        if not resume and folder.exists() and any(folder.iterdir()):
            raise FewgraftError(f"{folder} holds a run already", "Use --resume, or another --out.")
    for loaded, folder in runs:
        _train(loaded, folder, stage)


def _recipe_to_start_from(kind: str, data: str | None) -> str:
    from fewgraft.data.catalogue import open_data
    from fewgraft.training.templates import template

    if not data:
        raise FewgraftError("--init needs a data set", "Name it with --data.")
    return template(kind, open_data(data))


def _train(recipe: "Recipe", folder: Path, stage: list[str] | None) -> None:
    """One run, and what came out of it."""
    typer.echo(f"Training {recipe.name} [{recipe.hash}] into {folder} ...", err=True)
    from accelerate import Accelerator

    from fewgraft.data.catalogue import open_data
    from fewgraft.methods import methods
    from fewgraft.training.loop import Interrupted
    from fewgraft.training.report import draw_curves, summary
    from fewgraft.training.run import METHODS, STAGES, check_learners, train

    stages = [one for name in stage or STAGES for one in _meant(name, METHODS, recipe.learning)]
    knowing = [name for name, spec in methods().items() if spec.method.uses_knowledge]
    known = [*STAGES, METHODS, *recipe.learning, *knowing]
    for name in stages:
        if name not in known and not name.endswith(".py"):
            raise FewgraftError(f"there is no stage '{name}'", f"Known: {', '.join(known)}")
    check_learners(recipe, [name for name in stages if name not in STAGES])
    accelerator = Accelerator()
    try:
        metrics = train(recipe, open_data(recipe.data), folder, stages, accelerator)
    except Interrupted as interrupted:
        typer.echo(f"{interrupted}. Go on with --resume.", err=True)
        raise typer.Exit(130) from None
    if accelerator.is_main_process:
        typer.echo(summary(metrics))
        typer.echo(f"wrote {draw_curves(folder) or folder}")


def _meant(name: str, everything: str, learners: Iterable[str]) -> list[str]:
    """One word may stand for all methods that learn."""
    return list(learners) if name == everything else [name]


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise FewgraftError(f"--set {text} is not of the form name=value")
    return key.strip(), value.strip()
