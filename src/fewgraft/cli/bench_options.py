"""Options that several commands of `fewgraft bench` share."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewgraft.errors import FewgraftError

if TYPE_CHECKING:
    from fewgraft.bench.rows import Engine

RecipeArgument = Annotated[
    str, typer.Argument(help="Use the recipe of this name, or this TOML file.")
]
OutOption = Annotated[
    Path | None, typer.Option(help="Write the results to this folder; results/RECIPE if not given.")
]
ModelsOption = Annotated[
    Path | None,
    typer.Option(help="Use the models of this training run; the shipped ones if not given."),
]
MOST_EPISODES, LARGEST_SEED = 100_000, 2**63 - 1
EpisodesOption = Annotated[
    int, typer.Option(min=2, max=MOST_EPISODES, help="Draw so many episodes per row.")
]
ShotsOption = Annotated[str, typer.Option(help="Evaluate with so many shots, such as 1,5.")]
EngineOption = Annotated[
    str,
    typer.Option(help="Compute here, in processes of one thread each, or on a cluster with ray."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Start so many processes, or Ray workers; one per core if not given."),
]
AddressOption = Annotated[str | None, typer.Option(help="Join the Ray cluster at this address.")]
ViewsOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=5,
        help="Average features over so many views of each picture, a little shifted or turned.",
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(min=0, max=LARGEST_SEED, help="Draw the sequence of episodes that has this seed."),
]


def listed(text: str) -> list[str]:
    """Words of a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def named(text: str) -> list[str]:
    """Methods of a comma-separated option; a Python file stands for all that it defines."""
    from fewgraft.methods import method_names

    return [one for name in listed(text) for one in method_names(name)]


def numbers(text: str) -> list[int]:
    """Whole numbers of a comma-separated option."""
    try:
        return [int(word) for word in listed(text)]
    except ValueError:
        raise FewgraftError(f"'{text}' is not a list of whole numbers such as 1,5") from None


def seeds_of(text: str) -> list[int]:
    """Seeds of a comma-separated option."""
    found = numbers(text)
    if not found or not all(0 <= seed <= LARGEST_SEED for seed in found):
        raise FewgraftError(f"'{text}' is not a list of seeds such as 0,1,2")
    return found


def decimals(text: str) -> list[float]:
    """Numbers of a comma-separated option."""
    try:
        return [float(word) for word in listed(text)]
    except ValueError:
        raise FewgraftError(f"'{text}' is not a list of numbers such as 0.1,0.5") from None


@contextlib.contextmanager
def chosen_engine(
    name: str, workers: int | None = None, address: str | None = None
) -> "Iterator[Engine]":
    """Where chunks of episodes are computed; ended with the block."""
    from fewgraft.bench.rows import in_this_process

    if name == "here":
        yield in_this_process
    elif name == "processes":
        from fewgraft.bench.process_engine import ProcessEngine

        with ProcessEngine(workers) as several:
            yield several
    elif name == "ray":
        from fewgraft.bench.ray_engine import ray_engine

        with ray_engine(address, workers) as engine:
            yield engine
    else:
        raise FewgraftError(f"there is no engine '{name}'", "Known: here, processes, ray")
