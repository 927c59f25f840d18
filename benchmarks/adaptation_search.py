"""The search for a gain by test-time adaptation, on validation episodes only.

    .venv/bin/python benchmarks/adaptation_search.py RECIPE [--episodes 40] [--only NAME,NAME]
        [--settings s2i,s2i-transductive] [--shots 1,5] [--out FOLDER]

Every variant of distilled adaptation is held against the same method without adaptation, episode by
episode. (`fewgraft bench tune RECIPE --methods proposed` searches the paper's own form.) Rows are
kept in FOLDER as those of the benchmark are, so that the search can be interrupted and widened.
Prints a Markdown table: the paired difference of joint accuracy with its interval, and that of
b/all and n/all.
"""

import argparse
from pathlib import Path
from typing import Any

from fewgraft.bench.results import Results
from fewgraft.bench.rows import run
from fewgraft.bench.runner import Bench, Job
from fewgraft.episodes import EpisodeSettings
from fewgraft.metrics import Scores, paired
from fewgraft.training.recipe import Recipe, load_recipe
from fewgraft.zoo import models_folder

SEED = 5  # episodes of its own
PAPER = {"columns": "base", "w_cls": 1.0, "w_ctr": 0.5, "w_dst": 1.0, "tau_dst": 2.0}
ALL = {"columns": "all", "w_cls": 0.0, "w_ctr": 0.0, "w_dst": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper's three losses": PAPER,
    "paper's, slow": PAPER | {"lr": 1e-3},
    "paper's, little L_cls": PAPER | {"w_cls": 0.1},
    "paper's, little L_cls and L_ctr": PAPER | {"w_cls": 0.1, "w_ctr": 0.05},
    "L_ctr and L_dst": PAPER | {"w_cls": 0.0},
    "L_dst alone": PAPER | {"w_cls": 0.0, "w_ctr": 0.0},
    "all columns": ALL,
    "all columns, L_ctr 0.05": ALL | {"w_ctr": 0.05},
    "all columns, L_cls 0.1": ALL | {"w_cls": 0.1},
    "all columns, teacher of 3 views": ALL | {"teacher_views": 2},
    "same, lr 1e-2": ALL | {"teacher_views": 2, "lr": 1e-2},
    "same, lr 2e-2": ALL | {"teacher_views": 2, "lr": 2e-2},
    "same, sharper (τ₂ 0.7)": ALL | {"teacher_views": 2, "lr": 1e-2, "tau_dst": 0.7},
    "same, softer (τ₂ 2)": ALL | {"teacher_views": 2, "lr": 1e-2, "tau_dst": 2.0},
    "teacher of 5 views, lr 1e-2": ALL | {"teacher_views": 4, "views": 4, "lr": 1e-2},
    "same, L_ctr 0.02, L_cls 0.1": ALL
    | {"teacher_views": 4, "views": 4, "lr": 1e-2, "w_ctr": 0.02, "w_cls": 0.1},
    "teacher of 3 views, lr 1e-3": ALL | {"teacher_views": 2, "lr": 1e-3},
    "teacher of 3 views, half way back": ALL | {"teacher_views": 2, "start_share": 0.5},
    "teacher of 3 views, lr 1e-2, half way back": ALL
    | {"teacher_views": 2, "lr": 1e-2, "start_share": 0.5},
    "same, 20 steps": ALL | {"teacher_views": 4, "views": 4, "lr": 1e-2, "steps": 20},
    "teacher of 3 views, sharper": ALL | {"teacher_views": 2, "sharpness": 2.0},
    "teacher of 3 views, bias −1": ALL | {"teacher_views": 2, "teacher_bias": -1.0},
    "pseudo-labels above 0.8": ALL | {"teacher_views": 2, "w_dst": 0.0, "w_pseudo": 1.0},
    "sharper, only normalisation moves": ALL
    | {"teacher_views": 2, "sharpness": 2.0, "part": "norm", "lr": 2e-2},
    "sharper, only the network moves": ALL
    | {"teacher_views": 2, "sharpness": 2.0, "part": "network"},
    "sharper, only W moves": ALL
    | {"teacher_views": 2, "sharpness": 2.0, "part": "weights", "lr": 5e-2},
    "as registered, gradients up to 1": {"clip": 1.0},
    "paper's, gradients up to 1": PAPER | {"clip": 1.0},
    "as registered, stopped early": {"early": True},
    "paper's, stopped early": PAPER | {"early": True},
    "as registered, base kept": {"base": "kept"},
    "as registered, base kept, lr 1e-2": {"base": "kept", "lr": 1e-2},
    "paper's, base kept": PAPER | {"base": "kept"},
    "teacher of 3 views, base kept": ALL | {"teacher_views": 2, "base": "kept"},
    "teacher of 3 views, base kept, bias −0.3": ALL
    | {"teacher_views": 2, "base": "kept", "teacher_bias": -0.3},
    "teacher of 3 views, base kept, half way back": ALL
    | {"teacher_views": 2, "base": "kept", "start_share": 0.5},
    "teacher of 5 views, base kept": ALL | {"teacher_views": 4, "views": 4, "base": "kept"},
    "teacher of 5 views, base kept, bias −0.4": ALL
    | {"teacher_views": 4, "views": 4, "base": "kept", "teacher_bias": -0.4},
    "teacher of 5 views, base kept, bias −0.4, lr 1e-2": ALL
    | {"teacher_views": 4, "views": 4, "base": "kept", "teacher_bias": -0.4, "lr": 1e-2},
    "teacher of 3 views, base kept, lr 1e-2": ALL
    | {"teacher_views": 2, "base": "kept", "lr": 1e-2},
    "pseudo-labels above 0.8, base kept": ALL
    | {"teacher_views": 2, "w_dst": 0.0, "w_pseudo": 1.0, "base": "kept"},
    "as registered": {},
}
WIDER = str(Path(__file__).parent / "wider_adaptation.py")  # all of them are settings of it


def job(
    recipe: Recipe, method: str, hyper: dict[str, Any], settings: EpisodeSettings, n: int
) -> Job:
    return Job(recipe.name, recipe.data, method, hyper, settings, n, models_folder(recipe.name))


def difference(new: Scores, old: Scores) -> str:
    cells = []
    for metric in ("acc", "delta", "b_all", "n_all"):
        found = paired(getattr(new, metric), getattr(old, metric)).difference
        cells.append(f"{100 * found.mean:+.2f} ± {100 * found.half:.2f}")
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--settings", default="s2i,s2i-transductive")
    parser.add_argument("--shots", default="1,5")
    parser.add_argument("--only", default="", help="names of variants, separated by ;")
    parser.add_argument("--out", type=Path, default=Path("results/adaptation-search"))
    arguments = parser.parse_args()
    recipe, bench, results = load_recipe(arguments.recipe), Bench(), Results(arguments.out)
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = [name.strip() for name in arguments.only.split(";") if name.strip()] or list(VARIANTS)
    print("| variant | setting | shots | episodes | Acc | Δ | b/all | n/all | s an episode |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        for setting in arguments.settings.split(","):
            for shots in map(int, arguments.shots.split(",")):
                settings = EpisodeSettings.paper(setting, shots, split="val", seed=SEED)
                plain = recipe.hyper("proposed-without-adaptation", shots)
                shared = {
                    "refinement_steps": plain.get("steps", 5),
                    "alpha": plain.get("alpha", 1.0),
                    "temperature": plain.get("temperature", 1.0),
                }
                n = arguments.episodes
                wanted = [
                    job(recipe, "proposed-without-adaptation", plain, settings, n),
                    job(recipe, WIDER, shared | VARIANTS[name], settings, n),
                ]
                (old, _), (new, _) = run(wanted, results, bench)
                cells = difference(results.scores(new), results.scores(old))
                pace = f"{new.seconds / n:.2f}"
                print(f"| {name} | {setting} | {shots} | {n} | {cells} | {pace} |", flush=True)


if __name__ == "__main__":
    main()
