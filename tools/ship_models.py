"""Copy the models of a training run, and what methods learnt, to where they ship from, in half
precision.

python tools/ship_models.py runs/icons src/fewgraft/zoo_models/icons
"""

import argparse
import dataclasses
from pathlib import Path

from fewgraft.base_knowledge import load_knowledge, save_knowledge
from fewgraft.model import load_model, save_model, weights_hash
from fewgraft.pieces import load_pieces, save_pieces
from fewgraft.training.run import STAGES


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of `fewgraft train`")
    parser.add_argument("out", type=Path, help="folder of the copies, one per stage")
    arguments = parser.parse_args()
    for stage in STAGES:
        if (arguments.run / stage).is_dir():
            save_model(load_model(arguments.run / stage), arguments.out / stage, half=True)
            print(f"wrote {arguments.out / stage}")
    for card in sorted(arguments.run.glob("*-knowledge/knowledge.json")):
        stage = card.parent.name.removesuffix("-knowledge")
        print(f"wrote {ship_knowledge(arguments.run, arguments.out, stage)}")
    for card in sorted(arguments.run.glob("*-shot/pieces.json")):
        method, shots, _ = card.parent.name.rsplit("-", 2)
        print(f"wrote {ship_pieces(arguments.run, arguments.out, method, int(shots))}")


def ship_knowledge(run: Path, out: Path, stage: str) -> Path:
    """What is kept of base classes stands on the model that ships beside it."""
    model, shipped = load_model(run / stage), load_model(out / stage)
    knowledge, card = load_knowledge(run, stage, model.weight, weights_hash(model))
    own = card.model_copy(update={"weights": weights_hash(shipped)})
    return save_knowledge(knowledge, own, out)


def ship_pieces(run: Path, out: Path, method: str, shots: int) -> Path:
    """Pieces stand on the model that ships beside them."""
    pieces = load_pieces(run, method, shots)
    weights = weights_hash(load_model(out / pieces.card.stage))
    card = pieces.card.model_copy(update={"weights": weights})
    return save_pieces(dataclasses.replace(pieces, card=card), out, half=True)


if __name__ == "__main__":
    main()
