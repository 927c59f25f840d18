"""Score one saved model on test episodes: base top-1 and nearest prototypes, without a pile.

python tools/score_model.py zoo/cifar-fs/pre-trained cifar-fs
"""

import argparse
from pathlib import Path

from fewgraft.data.catalogue import open_data
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.metrics import interval
from fewgraft.model import load_model
from fewgraft.split_features import SplitFeatures


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of a saved model")
    parser.add_argument("data", help="name of a data set")
    parser.add_argument("--split", default="test", choices=("val", "test"))
    arguments = parser.parse_args()
    model, store = load_model(arguments.model), open_data(arguments.data)
    features = SplitFeatures(model, store, arguments.split)
    print(f"base {arguments.split} top-1: {100 * features.base_accuracy():.2f} %")
    for setting in ("fsl", "incremental"):
        for shots in (1, 5):
            scores = features.evaluate(NearestPrototype(), setting, shots)
            print(f"{setting}, {shots}-shot: {interval(scores.acc)} %")


if __name__ == "__main__":
    main()
