"""`fewgraft bench import`: features of any network, to be evaluated like a recipe's models."""

from pathlib import Path
from typing import Annotated

import typer

from fewgraft.errors import FewgraftError


def import_(
    name: Annotated[str, typer.Argument(help="Keep the features under this name.")],
    features: Annotated[
        Path,
        typer.Option(
            help="Read this .npz file: arrays features [n, d], labels [n], and parts [n] or lists "
            "of classes novel_val and novel_test; weights [N_b, d] if there is a trained head."
        ),
    ],
    backbone: Annotated[str, typer.Option(help="Call the network this in tables.")] = "imported",
    gamma: Annotated[
        float | None,
        typer.Option(
            min=0, help="Scale cosines by this γ; chosen on validation episodes if not given."
        ),
    ] = None,
) -> None:
    """Import features of any network: every method on features is then one command away.

    W_b is the array weights, or else the class means of base/train. All methods work on these
    features, whatever stage of training they are for. Methods that move the network or learn
    something beforehand need models of `fewgraft train`.

    Examples:

      fewgraft bench import birds --features birds.npz --backbone ViT-S

      fewgraft bench run birds --methods all-features --settings s2i

      fewgraft bench tune birds --methods +pr,+pr+bias --write
    """
    from fewgraft.imported import choose_gamma, import_features, read_features
    from fewgraft.training.recipe import recipe_names

    if name in recipe_names():
        raise FewgraftError(f"'{name}' is the name of a recipe", "Choose another one.")
    found = read_features(features, 20.0 if gamma is None else gamma, name)
    if gamma is None:
        for value, accuracy in choose_gamma(found).items():
            chosen = "  (chosen)" if value == found.gamma else ""
            typer.echo(f"γ {value:g}: val Acc {100 * accuracy:.2f}{chosen}")
    folder = import_features(found, name, backbone)
    novel = len(found.classes) - found.n_base
    typer.echo(
        f"{len(found):,} features of {found.n_base} base and {novel} novel classes: {folder}\n"
        f"fewgraft bench run {name} --methods all-features"
    )
