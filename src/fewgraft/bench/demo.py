"""The demo: real pictures, a real episode, a real table, from what is inside the package."""

import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from fewgraft.bench.episode_sheet import draw_episode
from fewgraft.bench.models import FeaturesOnData, class_means, model_on_data, shipped_model
from fewgraft.data.contact_sheet import class_rows, draw_sheet
from fewgraft.data.icons import load_icons
from fewgraft.data.overview import counts_table
from fewgraft.data.parts import PARTS
from fewgraft.data.store import ImageStore
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.handmade import embed_pictures
from fewgraft.metrics import Scores, summarise
from fewgraft.prototypes import Refinement

REFINEMENT = Refinement(steps=5)  # as many as the recipe validates with
# title, stage of the shipped model (None: no training), setting, refinement
ROWS: tuple[tuple[str, str | None, str, Refinement | None], ...] = (
    ("no training", None, "incremental", None),
    ("pre-trained", "pre-trained", "incremental", None),
    ("Algorithm 1", "algorithm-1", "incremental", None),
    ("Algorithm 1 + PR", "algorithm-1", "s2i", REFINEMENT),
    ("Algorithm 2 + PR", "algorithm-2", "s2i", REFINEMENT),
)


def run_demo(out: Path, episodes: int, console: Console) -> None:
    """Show the data, an episode and a table; pictures go to the folder `out`."""
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    store = load_icons()
    console.print(counts_table(store))
    sheet, drawing = out / "icons.png", out / "episode.png"
    draw_sheet(store, class_rows(store, PARTS, 36, 16, seed=0)).save(sheet)
    settings = EpisodeSettings.paper("s2i", shots=1)
    draw_episode(store, sample_episodes(Pools.of(store), settings, count=1)[0]).save(drawing)
    console.print(f"An episode of the task: {settings}", highlight=False)
    console.print(_results_table(store, episodes))
    console.print("PR: prototypes refined with the unlabelled pile (Eqs. 3-4), 5 steps.")
    console.print(f"Pictures of the data   {sheet}", highlight=False)
    console.print(f"One episode, drawn     {drawing}", highlight=False)
    console.print(f"Done in {time.perf_counter() - start:.0f} s.", highlight=False)


def _results_table(store: ImageStore, count: int) -> Table:
    n_base = len(store.base_classes)
    table = Table(
        title=f"Icons, {n_base} + 5 classes, {count} test episodes, %",
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for column in ("", "setting", "shots", "Acc", "Δ", "b/all", "n/all"):
        left = column in ("", "setting")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    models = {stage: _answering(store, stage) for stage in dict.fromkeys(row[1] for row in ROWS)}
    for shots in (1, 5):
        for title, stage, setting, refinement in ROWS:
            scores = models[stage].scores(setting, shots, refinement, count)
            table.add_row(title, setting, str(shots), *_cells(scores))
        table.add_section()
    return table


def _answering(store: ImageStore, stage: str | None) -> FeaturesOnData:
    """Features and base weights of a shipped model, or of no model at all."""
    if stage:
        return model_on_data(shipped_model("icons", stage), store)
    features = embed_pictures(store.pictures)
    return FeaturesOnData(features, class_means(features, store), store)


def _cells(scores: Scores) -> list[str]:
    summary = summarise(scores)
    means = [summary[name].mean for name in ("delta", "b_all", "n_all")]
    return [str(summary["acc"]), *(f"{100 * mean:.2f}" for mean in means)]
