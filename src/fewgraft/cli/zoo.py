"""`fewgraft zoo`: the trained models, and where to get those that are not in the package."""

from pathlib import Path

import typer

app = typer.Typer(
    help="List the trained models that come with Fewgraft.",
    epilog="Example: fewgraft zoo list",
    no_args_is_help=True,
)


@app.callback()
def _zoo() -> None:
    """A group of commands, though it has only one so far."""


@app.command("list")
def list_() -> None:
    """List the trained models per recipe, and say where to get those that are not here.

    Example: fewgraft zoo list
    """
    from fewgraft.errors import FewgraftError
    from fewgraft.training.recipe import recipe_names
    from fewgraft.zoo import ZOO, models_folder

    for name in recipe_names():
        try:
            folder = models_folder(name)
        except FewgraftError as error:
            typer.echo(f"{name:<16} not in the package. {error.hint}")
            continue
        where = "in the package" if folder.parent == ZOO else f"in {folder}"
        typer.echo(f"{name:<16} {_models(folder)} ({where})")
    typer.echo("\nUse one: `fewgraft bench run icons`, `fewgraft learn icons --new ... --out v2`.")


def _models(folder: Path) -> str:
    """What a folder of models holds: stages, network, classes."""
    from fewgraft.model import read_card
    from fewgraft.training.run import STAGES

    stages = [stage for stage in STAGES if (folder / stage / "model.json").is_file()]
    card = read_card(folder / stages[0] / "model.json")
    return f"{', '.join(stages)}: {card.backbone}, {len(card.classes)} base classes"
