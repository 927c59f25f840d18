"""The demo: real pictures, a real episode, a real table, from what is inside the package."""

import math
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from fewgraft.bench.episode_sheet import draw_episode
from fewgraft.bench.nearest_prototype import base_weights
from fewgraft.data.contact_sheet import class_rows, draw_sheet
from fewgraft.data.icons import load_icons
from fewgraft.data.overview import counts_table
from fewgraft.data.parts import PARTS
from fewgraft.data.store import ImageStore
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.evaluation import evaluate
from fewgraft.handmade import embed_pictures
from fewgraft.metrics import Scores, summarise

ROWS = (("fsl", 1), ("fsl", 5), ("incremental", 1), ("incremental", 5))


def run_demo(out: Path, episodes: int, console: Console) -> None:
    """Show the data, an episode and a table; pictures go to the folder `out`."""
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    store = load_icons()
    console.print(counts_table(store))
    sheet, drawing = out / "icons.png", out / "episode.png"
    draw_sheet(store, class_rows(store, PARTS, 36, 16, seed=0)).save(sheet)
    pools = Pools.of(store)
    settings = EpisodeSettings.paper("s2i", shots=1)
    draw_episode(store, sample_episodes(pools, settings, count=1)[0]).save(drawing)
    console.print(f"An episode of the task: {settings}", highlight=False)
    console.print(_results_table(store, pools, episodes))
    console.print(f"Pictures of the data   {sheet}", highlight=False)
    console.print(f"One episode, drawn     {drawing}", highlight=False)
    console.print(f"Done in {time.perf_counter() - start:.0f} s.", highlight=False)


def _results_table(store: ImageStore, pools: Pools, count: int) -> Table:
    features = embed_pictures(store.pictures)
    weights = base_weights(features, store)
    table = Table(
        title=f"Nearest prototype on gradient histograms (no training), {count} episodes, %",
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for column in ("setting", "classes", "shots", "Acc", "Δ", "b/all", "n/all", "b/b", "n/n"):
        table.add_column(column, justify="left" if column == "setting" else "right", no_wrap=True)
    for setting, shots in ROWS:
        settings = EpisodeSettings.paper(setting, shots)
        episodes, answers = sample_episodes(pools, settings, count)
        scores = evaluate(features, weights, episodes, answers)
        classes = f"{episodes.n_base} + {settings.ways}" if episodes.n_base else str(settings.ways)
        table.add_row(setting, classes, str(shots), *_cells(scores))
    return table


def _cells(scores: Scores) -> list[str]:
    summary = summarise(scores)
    means = [summary[name].mean for name in ("delta", "b_all", "n_all", "b_b", "n_n")]
    return [str(summary["acc"]), *("–" if math.isnan(m) else f"{100 * m:.2f}" for m in means)]
