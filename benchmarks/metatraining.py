"""Does Algorithm 2 beat Algorithm 1 when both are followed by refinement? On validation episodes.

    .venv/bin/python benchmarks/metatraining.py RECIPE RUN [--seeds 3] [--set name=value ...]

RUN is the folder of a `fewgraft train` run; its pre-trained model is meta-trained anew by both
algorithms for each seed. Prints, for each seed and shot, joint Acc and Δ of both and their paired
differences over 600 validation episodes other than those that chose the step to keep.
"""

import argparse
import shutil
from pathlib import Path

from accelerate import Accelerator

from fewgraft.data.catalogue import open_data
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.metrics import Interval, Scores, interval, paired
from fewgraft.model import load_model
from fewgraft.network import KeptActivations
from fewgraft.split_features import SplitFeatures
from fewgraft.training.recipe import load_recipe
from fewgraft.training.run import train

EPISODES, SEED = 600, 2
ALGORITHMS = ("algorithm-1", "algorithm-2")


def percent(value: Interval) -> str:
    return f"{100 * value.mean:+.2f} ± {100 * value.half:.2f}"


def row(seed: int, shots: int, first: Scores, second: Scores) -> str:
    figures = [100 * interval(v).mean for v in (first.acc, second.acc, first.delta, second.delta)]
    differences = [paired(second.acc, first.acc), paired(second.delta, first.delta)]
    verdict = "yes" if all(d.difference.excludes_zero for d in differences) else "no"
    if any(d.difference.mean < 0 for d in differences):
        verdict = "worse"
    cells = [str(seed), str(shots), *(f"{f:.2f}" for f in figures)]
    cells += [percent(d.difference) for d in differences]
    return "| " + " | ".join([*cells, verdict]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("run", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    arguments = parser.parse_args()
    changes = dict(text.split("=", 1) for text in arguments.changes)
    print("| seed | shots | Acc 1 | Acc 2 | Δ 1 | Δ 2 | Acc 2 − 1 | Δ 2 − 1 | both better |")
    print("|---|---|---|---|---|---|---|---|---|")
    kept: KeptActivations = {}  # all start from the same network
    for seed in range(arguments.seeds):
        recipe = load_recipe(arguments.recipe, {**changes, "seed": str(seed)})
        store = open_data(recipe.data)
        folder = arguments.run / f"seed-{seed}-{recipe.hash}"
        if not (folder / "pre-trained").exists():
            shutil.copytree(arguments.run / "pre-trained", folder / "pre-trained")
        train(recipe, store, folder, ALGORITHMS, Accelerator(cpu=True), kept)
        models = [SplitFeatures(load_model(folder / name), store, "val") for name in ALGORITHMS]
        method = PrototypeRefinement(steps=recipe.validation.refinement_steps)
        for shots in recipe.validation.shots:
            scores = [m.evaluate(method, "s2i", shots, EPISODES, SEED) for m in models]
            print(row(seed, shots, *scores), flush=True)


if __name__ == "__main__":
    main()
