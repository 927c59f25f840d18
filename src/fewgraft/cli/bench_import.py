"""`fewgraft bench import`: networks and features of others, evaluated like a recipe's models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewgraft.cli.bench_options import listed
from fewgraft.cli.tool import DeviceOption
from fewgraft.errors import FewgraftError

if TYPE_CHECKING:
    from fewgraft.data.store import ImageStore
    from fewgraft.imported_model import InputPictures


def import_(
    name: Annotated[str, typer.Argument(help="Keep it under this name.")],
    features: Annotated[
        Path | None,
        typer.Option(
            help="Read this .npz file: arrays features [n, d], labels [n], and parts [n] or lists "
            "of classes novel_val and novel_test; weights [N_b, d] if there is a trained head."
        ),
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option(
            help="Read the weights of a network here: safetensors or a torch state dict. "
            "FILE#PREFIX names one of several networks."
        ),
    ] = "",
    backbone: Annotated[
        str,
        typer.Option(
            help="The network of the checkpoint, such as resnet12; of features, what tables call "
            "it."
        ),
    ] = "",
    data: Annotated[str, typer.Option(help="Evaluate the checkpoint on this data set.")] = "",
    mean: Annotated[
        str,
        typer.Option(
            help="Mean of each channel that the checkpoint was trained with, pixels from 0 to 1, "
            "as in 0.485,0.456,0.406; that of base/train if not given."
        ),
    ] = "",
    std: Annotated[str, typer.Option(help="Standard deviation of each channel, likewise.")] = "",
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the pictures that the checkpoint was trained with."),
    ] = None,
    head: Annotated[
        str,
        typer.Option(
            help="Take W_b from this file, or from FILE#TENSOR; the class means of base/train if "
            "not given."
        ),
    ] = "",
    names: Annotated[
        Path | None,
        typer.Option(help="Read the class names of --head here: one per line, or a JSON list."),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            min=0, help="Scale cosines by this γ; chosen on validation episodes if not given."
        ),
    ] = None,
    device: DeviceOption = "cpu",
) -> None:
    """Import a network or its features: the methods of the benchmark are then one command away.

    Of a checkpoint, the network is kept and computes its features when rows need them. W_b is the
    array weights, the --head, or else the class means of base/train. All methods work on the same
    network, whatever stage of training they are for. Methods that move the network need a
    checkpoint; those that learn something beforehand need models of `fewgraft train`.

    Examples:

      fewgraft bench import rfs --checkpoint resnet12.pth --backbone resnet12 --data mini-imagenet

      fewgraft bench import birds --features birds.npz --backbone ViT-S

      fewgraft bench run birds --methods all-features --settings s2i

      fewgraft bench tune birds --methods +pr,+pr+bias --write
    """
    from fewgraft.training.recipe import recipe_names

    if name in recipe_names():
        raise FewgraftError(f"'{name}' is the name of a recipe", "Choose another one.")
    if (features is None) == (not checkpoint):
        raise FewgraftError("give either --features or --checkpoint")
    if features is not None:
        of_checkpoint: dict[str, object] = {"--data": data, "--mean": mean, "--std": std}
        of_checkpoint |= {"--size": size, "--head": head, "--names": names}
        if given := [option for option, value in of_checkpoint.items() if value]:
            raise FewgraftError(f"{given[0]} belongs to --checkpoint", "Leave it out.")
        _import_features(name, features, backbone or "imported", gamma)
        return
    if not data or not backbone:
        raise FewgraftError(
            f"--checkpoint needs {'--backbone' if data else '--data'} as well",
            "As in --checkpoint resnet12.pth --backbone resnet12 --data mini-imagenet.",
        )
    if bool(head) != bool(names):
        raise FewgraftError("--head and --names belong together")
    _import_checkpoint(
        name, checkpoint, backbone, data, (mean, std, size), (head, names), gamma, device
    )


def _import_features(name: str, path: Path, backbone: str, gamma: float | None) -> None:
    from fewgraft.imported import choose_gamma, import_features, read_features

    found = read_features(path, 20.0 if gamma is None else gamma, name)
    if gamma is None:
        _tell_gammas(choose_gamma(found), found.gamma)
    folder = import_features(found, name, backbone)
    novel = len(found.classes) - found.n_base
    typer.echo(
        f"{len(found):,} features of {found.n_base} base and {novel} novel classes: {folder}\n"
        f"fewgraft bench run {name} --methods all-features"
    )


def _import_checkpoint(
    name: str,
    checkpoint: str,
    backbone: str,
    data: str,
    looks: tuple[str, str, int | None],
    head: tuple[str, Path | None],
    gamma: float | None,
    device: str,
) -> None:
    from fewgraft.backbones import backbone_spec
    from fewgraft.checkpoints import read_checkpoint
    from fewgraft.data.catalogue import open_data
    from fewgraft.devices import choose_device
    from fewgraft.heads import read_head
    from fewgraft.imported_model import import_network

    place, store = choose_device(device), open_data(data)
    pictures = _pictures(store, *looks)
    network = read_checkpoint(checkpoint, backbone, store.manifest.channels).to(place)
    file, names = head
    given = read_head(file, names, backbone_spec(backbone).width) if names else None
    found = import_network(network, backbone, name, store, pictures, head=given, gamma=gamma)
    _tell_gammas(found.accuracy_by_gamma, found.gamma)
    typer.echo(
        f"base/val: {100 * found.base_accuracy:.1f} % right among {len(store.base_classes)} base "
        "classes. Far less than its authors have points to another --mean, --std or picture size.\n"
        f"{backbone} on {data}: {found.folder}\n"
        f"fewgraft bench run {name} --methods all-features"
    )


def _pictures(store: "ImageStore", mean: str, std: str, size: int | None) -> "InputPictures":
    """What the network was trained with, as told or as the data has it."""
    from fewgraft.imported_model import InputPictures
    from fewgraft.training.run import channel_statistics

    means, stds = _numbers("--mean", mean), _numbers("--std", std)
    if not means or not stds:
        own = tuple(map(tuple, channel_statistics(store)))
        means, stds = means or own[0], stds or own[1]
        shown = [",".join(f"{value:.3f}" for value in values) for values in (means, stds)]
        typer.echo(f"pictures are normalised by mean {shown[0]} and std {shown[1]}")
    return InputPictures(means, stds, size)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in listed(text))
    except ValueError:
        raise FewgraftError(f"{option} is not a list of numbers: '{text}'") from None
    if any(not 0 <= value <= 1 for value in found) or (option == "--std" and 0 in found):
        raise FewgraftError(
            f"{option} {text} is not of pixels from 0 to 1", "Divide numbers up to 255 by 255."
        )
    return found


def _tell_gammas(accuracy: dict[float, float], best: float) -> None:
    for gamma, value in accuracy.items():
        chosen = "  (chosen)" if gamma == best else ""
        typer.echo(f"γ {gamma:g}: val Acc {100 * value:.2f}{chosen}")
