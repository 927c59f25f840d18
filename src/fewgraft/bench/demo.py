"""The demo: real pictures, a real episode, the paper's table, from what is inside the package."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fewgraft.bench.chosen_rows import Choice
from fewgraft.bench.episode_sheet import draw_episode
from fewgraft.bench.report import find
from fewgraft.bench.report_page import page
from fewgraft.bench.results import Results
from fewgraft.bench.rows import run
from fewgraft.bench.runner import Bench, jobs
from fewgraft.bench.table_formats import terminal
from fewgraft.bench.tables import build
from fewgraft.data.contact_sheet import class_rows, draw_sheet
from fewgraft.data.icons import ICONS
from fewgraft.data.overview import counts_table
from fewgraft.data.parts import PARTS
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.files import write_atomically
from fewgraft.progress import track
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import models_folder

JOINT = ("incremental", "s2i-transductive", "s2i")
# The paper's own story in a minute; `fewgraft bench run` has all methods.
QUICK = (
    "meta-inc-baseline",
    "+pr",
    "+pr+bias",
    "proposed-without-adaptation",
    "proposed-without-adaptation+bias",
)
SLOW = "proposed"  # it moves the network
FEW = 10  # episodes for it


def run_demo(out: Path, episodes: int, console: Console) -> None:
    """Show the data, an episode and tables; pictures, results and report go to the folder `out`."""
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(out / "features")
    store = bench.store(ICONS)
    console.print(counts_table(store))
    sheet, drawing = out / "icons.png", out / "episode.png"
    draw_sheet(store, class_rows(store, PARTS, 36, 16, seed=0)).save(sheet)
    settings = EpisodeSettings.paper("s2i", shots=1)
    draw_episode(store, sample_episodes(Pools.of(store), settings, count=1)[0]).save(drawing)
    console.print(f"An episode of the task: {settings}\n", highlight=False)
    results = _evaluate(out / "results", QUICK, JOINT, episodes, bench)
    console.print(terminal(build(results, "main")))
    subset = _evaluate(out / "subset", (*QUICK, SLOW), ("s2i",), min(FEW, episodes), bench)
    console.print("With adaptation, which moves the network, on a few of these episodes:\n")
    console.print(terminal(build(subset, "main")))
    report = out / "report.html"
    write_atomically(report, page(find(results, Choice(), 0, bench)).encode())
    console.print(f"Pictures of the data   {sheet}", highlight=False)
    console.print(f"One episode, drawn     {drawing}", highlight=False)
    console.print(f"The report             {report}", highlight=False)
    console.print(f"Done in {time.perf_counter() - start:.0f} s.", highlight=False)


def _evaluate(
    folder: Path, names: Sequence[str], settings: Sequence[str], episodes: int, bench: Bench
) -> Results:
    """Rows of these methods at 1 and 5 shots."""
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(folder)
    wanted = jobs(load_recipe(ICONS), models_folder(ICONS), names, settings, (1, 5), episodes)
    for _ in track(run(wanted, results, bench), "evaluating", len(wanted)):
        pass
    return results
