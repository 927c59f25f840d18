"""Algorithm 2 anew with other seeds, all from the pre-trained model that ships.

    python benchmarks/meta_seeds.py cifar-fs runs/cifar-fs --seeds 1 2
    fewgraft bench run cifar-fs --methods graft --models runs/cifar-fs/seed-1,runs/cifar-fs/seed-2

A folder seed-N holds that one model, and no pre-trained one: pre-training is shared, and the card
says so in the name of its recipe.
"""

import argparse
from pathlib import Path

from accelerate import Accelerator

from fewgraft.data.catalogue import open_data
from fewgraft.model import save_model
from fewgraft.network import KeptActivations
from fewgraft.training.loop import train_phase
from fewgraft.training.metatrain import Metatrain
from fewgraft.training.recipe import load_recipe
from fewgraft.training.record import data_name, run_name
from fewgraft.zoo import models_folder, stage_model

STAGE = "algorithm-2"


def train_again(name: str, seed: int, folder: Path, kept: KeptActivations) -> None:
    """One model of Algorithm 2."""
    recipe = load_recipe(name, {"seed": str(seed)})
    store = open_data(recipe.data)
    model = stage_model(models_folder(name), "pre-trained")
    before = model.card.recipe["seed"]
    phase = Metatrain(model, store, recipe, 2, kept)
    run = run_name(recipe, store, STAGE)
    folder.mkdir(parents=True, exist_ok=True)
    train_phase(phase, folder, run, recipe.checkpoint_every, Accelerator(cpu=True))
    told = recipe.model_dump(mode="json")
    told["name"] = f"{recipe.name}, pre-trained with seed {before}"
    model.card = model.card.model_copy(
        update={"stage": STAGE, "data": data_name(store), "recipe": told, "metrics": {}}
    )
    save_model(model, folder / STAGE)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    kept: KeptActivations = {}  # all start from the same network
    for seed in arguments.seeds:
        train_again(arguments.recipe, seed, arguments.out / f"seed-{seed}", kept)


if __name__ == "__main__":
    main()
