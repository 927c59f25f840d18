"""Copy the models of a training run to where they ship from, in half precision.

python tools/ship_models.py runs/icons src/fewgraft/zoo_models/icons
"""

import argparse
from pathlib import Path

from fewgraft.model import load_model, save_model
from fewgraft.training.run import STAGES


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of `fewgraft train`")
    parser.add_argument("out", type=Path, help="folder of the copies, one per stage")
    arguments = parser.parse_args()
    for stage in STAGES:
        save_model(load_model(arguments.run / stage), arguments.out / stage, half=True)
        print(f"wrote {arguments.out / stage}")


if __name__ == "__main__":
    main()
