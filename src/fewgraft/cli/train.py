"""`fewgraft train`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from fewgraft.errors import FewgraftError


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Train by this TOML file, or by the recipe of this name in the package."
        ),
    ],
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
            "such as lwof learns on a trained model, or methods for all of these; may be repeated.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting, such as pretraining.steps=100; may be repeated."
        ),
    ] = None,
) -> None:
    """Train a model from pictures: pre-training, then meta-training by Algorithms 1 and 2.

    Ctrl-C stops after the step in hand; --resume goes on, also after a kill, and ends in the same
    weights. What a method learns stands on the models in the run's folder, or on the shipped ones
    where it has none.

    Examples:

      fewgraft train icons --out runs/icons

      fewgraft train my-recipe.toml --resume

      fewgraft train cifar-fs --only lwof --out runs/cifar-fs

      accelerate launch --num_processes 2 -m fewgraft train cifar-fs
    """
    from fewgraft.training.recipe import load_recipe

    loaded = load_recipe(recipe, dict(_pair(text) for text in change or ()))
    folder = out or Path("runs") / loaded.name
    if not resume and folder.exists() and any(folder.iterdir()):
        raise FewgraftError(f"{folder} holds a run already", "Use --resume, or another --out.")
    typer.echo(f"Training {loaded.name} [{loaded.hash}] into {folder} ...", err=True)
    from accelerate import Accelerator

    from fewgraft.data.catalogue import open_data
    from fewgraft.training.loop import Interrupted
    from fewgraft.training.report import draw_curves, summary
    from fewgraft.training.run import METHODS, STAGES, check_learners, train

    stages = [one for name in stage or STAGES for one in _meant(name, METHODS, loaded.learning)]
    known = [*STAGES, METHODS, *loaded.learning]
    for name in stages:
        if name not in known and not name.endswith(".py"):
            raise FewgraftError(f"there is no stage '{name}'", f"Known: {', '.join(known)}")
    check_learners(loaded, [name for name in stages if name not in STAGES])
    accelerator = Accelerator()
    try:
        metrics = train(loaded, open_data(loaded.data), folder, stages, accelerator)
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
