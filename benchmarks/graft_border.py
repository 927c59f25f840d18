"""Where Graft puts the border between base and novel classes, beside the best place.

Base classifiers of several kinds and numbers of novel classes, on validation episodes. The best b
of a grid is a bound: validation episodes choose it and score it.

    python benchmarks/graft_border.py            # Icons and CIFAR-FS
    python benchmarks/graft_border.py cifar-fs --stages algorithm-2
"""

import argparse

import torch

from fewgraft.data.catalogue import open_data
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.methods.graft import Graft
from fewgraft.prototypes import directions
from fewgraft.split_features import SplitFeatures
from fewgraft.zoo import models_folder, stage_model

STAGES = ("pre-trained", "algorithm-1", "algorithm-2")
GRID = tuple(float(b) for b in range(-6, 9))  # values of b
WAYS, OTHER_WAYS, SEED = 5, (2, 10, 15), 12


def features_of(data: str, stage: str, means: bool) -> SplitFeatures:
    """The model of a stage; `means`: with means of exemplars in the place of W_b."""
    folder = models_folder(data)
    features = SplitFeatures(stage_model(folder, stage), open_data(data), "val", models=folder)
    if means:
        assert features.knowledge is not None
        features.weights = directions(features.knowledge.exemplars.sum(1))
    return features


def accuracy(features: SplitFeatures, method: Graft, ways: int, episodes: int) -> float:
    """Acc, %, at one shot; 75 novel queries whatever the number of classes."""
    settings = EpisodeSettings.paper(
        "s2i", 1, split="val", seed=SEED, ways=ways, queries=75 // ways
    )
    drawn = sample_episodes(Pools.of(features.store, "val"), settings, episodes)
    return 100 * features.scores(method, *drawn).acc.mean().item()


def line(title: str, features: SplitFeatures, ways: int, episodes: int) -> str:
    """The best b with its Acc, and those of the rule."""
    fixed = {b: Graft(strangers=0.0, margin=-b) for b in GRID}
    found = {b: accuracy(features, method, ways, episodes) for b, method in fixed.items()}
    best = max(found, key=lambda b: found[b])
    settings = EpisodeSettings.paper("s2i", 1, split="val", ways=ways)
    episode, _ = sample_episodes(Pools.of(features.store, "val"), settings, 1)
    rule = Graft().bias(features.task(episode, slice(None), Graft()))
    there = accuracy(features, Graft(), ways, episodes)
    return f"| {title} | {ways} | {best:+.0f} | {found[best]:.2f} | {rule:+.1f} | {there:.2f} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=["icons", "cifar-fs"])
    parser.add_argument("--stages", nargs="+", default=STAGES, help="of training")
    parser.add_argument("--episodes", type=int, default=60)
    arguments = parser.parse_args()
    print("| base classifier | N | best b | Acc | b of the rule | Acc |\n|---|---|---|---|---|---|")
    for data in arguments.data:
        for stage in arguments.stages:
            features = features_of(data, stage, means=False)
            print(line(f"{data}, {stage}", features, WAYS, arguments.episodes), flush=True)
        for ways in OTHER_WAYS:
            print(line(f"{data}, {stage}", features, ways, arguments.episodes), flush=True)
        features = features_of(data, stage, means=True)
        print(line(f"{data}, class means", features, WAYS, arguments.episodes), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
