"""`fewgraft episode`."""

from pathlib import Path
from typing import Annotated

import typer


def episode(
    data: Annotated[str, typer.Argument(help="Draw from the data set of this name.")] = "icons",
    setting: Annotated[
        str,
        typer.Option(
            help="Draw for fsl, transductive-fsl, semi-fsl, incremental, s2i-transductive or s2i."
        ),
    ] = "s2i",
    shots: Annotated[int, typer.Option(help="Give so many labelled pictures per novel class.")] = 1,
    ways: Annotated[int, typer.Option(help="Draw so many novel classes.")] = 5,
    split: Annotated[str, typer.Option(help="Draw from test, val or train.")] = "test",
    novel_share: Annotated[
        float | None,
        typer.Option(help="Set the share of novel pictures in U; a half in the paper."),
    ] = None,
    distractors: Annotated[
        int, typer.Option(help="Add so many classes to U that are neither base nor novel.")
    ] = 0,
    seed: Annotated[
        int, typer.Option(help="Draw the sequence of episodes that has this seed.")
    ] = 0,
    number: Annotated[
        int,
        typer.Option(min=0, max=2**63 - 1, help="Show the episode of this number in the sequence."),
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Draw the episode into this PNG file.")] = None,
) -> None:
    """Show one episode of the task: its settings, its classes and hash, and a drawing of it.

    Examples:

      fewgraft episode --out episode.png

      fewgraft episode cifar-fs --setting incremental --shots 5 --number 17
    """
    from fewgraft.bench.episode_sheet import draw_episode
    from fewgraft.cli.output import save_picture
    from fewgraft.data.catalogue import open_data
    from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes

    changes = {"ways": ways, "split": split, "distractors": distractors, "seed": seed}
    if novel_share is not None:
        changes["novel_share"] = novel_share
    settings = EpisodeSettings.paper(setting, shots, **changes)
    store = open_data(data)
    episodes, _ = sample_episodes(Pools.of(store, split), settings, count=1, first=number)
    typer.echo(str(settings))
    typer.echo(f"episode {number} of {data}: hash {episodes.hash}")
    typer.echo(f"base classes: {episodes.n_base}")
    typer.echo(
        "novel classes: " + ", ".join(store.name_of(c) for c in episodes.classes[0].tolist())
    )
    for role in ("support", "query", "unlabelled"):
        typer.echo(f"{role}: {getattr(episodes, role).shape[1]} pictures")
    if out:
        save_picture(draw_episode(store, episodes), out)
