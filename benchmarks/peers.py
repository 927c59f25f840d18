"""The same episodes through easyfsl and through Fewgraft: the same answers, and how much sooner?

    .venv/bin/python benchmarks/peers.py [--recipe icons] [--episodes 600] [--venv build/peers]

Makes an environment of its own with both libraries (once, a minute or two) and runs itself there.
Features of the Algorithm-1 model, as directions, are computed before the clock starts; easyfsl gets
them through its pass-through backbone, an episode at a time, as its own `evaluate` does. What is
timed is classification alone, on one thread, both in turn, the best of several runs each.

- PrototypicalNetworks measures Euclidean distances to means, which Fewgraft has no method for: its
  partner is the method `EuclideanMeans` below, a dozen lines under the contract of all methods.
- SimpleShot is the same with cosines, and that is Fewgraft's nearest-prototype as it ships.
- BDCSPN beside Fewgraft's bd-cspn as it ships.
- PTMAP does not centre features or make them directions, and takes 10 steps; TIM takes 50 steps on
  cosines. Their partners `PlainTransport` and `CosineTIM` below are Fewgraft's pt-map and tim-gd
  with just that changed, so that both sides compute the same; queries are answered together where
  easyfsl does. Below each is easyfsl's beside Fewgraft's as it ships: other numbers are expected.
- LaplacianShot smooths answers around BD-CSPN's prototypes as the paper has them, on features that
  are not centred: `PlainLaplacian` below is laplacian-shot with that.
- The last three take easyfsl minutes, so that they get the first 100 episodes.
- Finetune and TransductiveFinetuning have no partner here. FEAT, MatchingNetworks and
  RelationNetworks need modules that are trained with their backbone.
"""

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewgraft.data.catalogue import open_data
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec
from fewgraft.methods.base import Method, NovelWeights, Queries, Task
from fewgraft.methods.transductive.bd_cspn_code import shift
from fewgraft.methods.transductive.laplacian_shot import LaplacianShot, smoothed
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.methods.transductive.power import SHIFT
from fewgraft.methods.transductive.pt_map import PowerTransport
from fewgraft.methods.transductive.tim import Evidence, InformationMaximisation
from fewgraft.methods.transductive.transport import Centres
from fewgraft.metrics import interval
from fewgraft.progress import track
from fewgraft.prototypes import (
    class_sums,
    direction_logits,
    directions,
    members_of,
    prototypes,
    support_sums,
)
from fewgraft.split_features import REGULAR_CHUNK, SplitFeatures
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import models_folder, stage_model

CHECKOUT = Path(__file__).resolve().parents[1]
# The torchvision that belongs to the torch of constraints.txt: any other would replace it.
PEERS = ("easyfsl==1.5.0", "torchvision==0.28.0")
SETTING, STAGE, RUNS = "transductive-fsl", "algorithm-1", 40
SLOW_RUNS, SLOW_EPISODES = 1, 100  # of what takes easyfsl minutes
WARM_UP = 5  # of easyfsl's first episodes


# --- the environment ---


def prepare(folder: Path) -> str:
    """The interpreter of an environment that has both libraries."""
    python, ready = str(folder / "bin" / "python"), folder / ".peers"
    wanted = "\n".join([*PEERS, (CHECKOUT / "constraints.txt").read_text()])
    if not ready.is_file() or ready.read_text() != wanted:
        print(f"setting up {folder} (once, a minute or two) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "-qq", "--constraint", "constraints.txt"]
        subprocess.run([*install, "--editable", ".", *PEERS], cwd=CHECKOUT, check=True)
        ready.write_text(wanted)
    return python


class Peers:
    """What is needed of easyfsl, which only that environment has."""

    def __init__(self) -> None:
        import_torchvision()
        self.methods: Any = importlib.import_module("easyfsl.methods")
        self.evaluate_on_one_task = importlib.import_module("easyfsl.utils").evaluate_on_one_task

    def classifier(self, name: str) -> Any:
        """One of its classifiers, on features instead of pictures."""
        return getattr(self.methods, name)(backbone=torch.nn.Identity()).eval()


def import_torchvision() -> None:
    """For easyfsl, which imports it.

    Its compiled part may not load beside a torch without CUDA, and then operators that it describes
    on import do not exist. It is enough to declare them: nothing here calls them.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("torchvision::nms", "torchvision::qnms"):
            torch.library.define(name, "(Tensor boxes, Tensor scores, float t) -> Tensor")
        importlib.import_module("torchvision")


# --- the problem ---


@dataclass(frozen=True)
class Chunk:
    """Some episodes with everything in memory."""

    task: Task
    queries: Queries
    labels: Tensor  # [e, Q]


def test_features(recipe: str, models: Path | None) -> SplitFeatures:
    """The test pictures' features; as directions, so that neither side depends on their lengths."""
    loaded = load_recipe(recipe)
    model = stage_model(models or models_folder(loaded.name), STAGE)
    return SplitFeatures(model, open_data(loaded.data))


def gathered(features: SplitFeatures, shots: int, count: int) -> list[Chunk]:
    settings = EpisodeSettings.paper(SETTING, shots)
    episodes, answers = sample_episodes(Pools.of(features.store), settings, count)
    chunks = []
    for start in range(0, count, REGULAR_CHUNK):
        rows = slice(start, start + REGULAR_CHUNK)
        task = features.task(episodes, rows)
        queries = features.queries(episodes, rows, task)
        chunks.append(Chunk(task, queries, answers.query_labels[rows]))
    return chunks


# --- the two sides ---


@dataclass(frozen=True)
class EuclideanMeans(Method):
    """Prototypical networks at test time (Snell et al., NeurIPS 2017): the nearest mean."""

    def fit(self, task: Task) -> "Means":
        """Means as they are, not directions."""
        return Means(prototypes(task.support, task.labels, task.ways, normalise=False))


@dataclass(frozen=True)
class Means:
    """Squared distances, less what is the same for every class."""

    means: Tensor  # [E, N, d]

    def logits(self, queries: Queries) -> Tensor:
        """−‖x − m‖² + ‖x‖² = 2x·m − ‖m‖² [E, Q, N]."""
        lengths = self.means.square().sum(-1)[:, None]
        return queries.features @ (2 * self.means).transpose(1, 2) - lengths


@dataclass(frozen=True)
class PlainTransport(PowerTransport):
    """PT-MAP on powers of features as they are."""

    steps: int = 10
    together: bool = True

    def fit(self, task: Task) -> Centres:
        """Neither centred nor made directions."""
        own, count = support_sums(self._plain(task.support), task.labels, task.ways)
        found = self.moved(own, count, self._plain(task.unlabelled))
        return Centres(self._plain, found, self.sharpness, self.together)

    def _plain(self, features: Tensor) -> Tensor:
        return (features.double().clamp(min=0) + SHIFT) ** self.power


@dataclass(frozen=True)
class CosineTIM(InformationMaximisation):
    """TIM whose logits are cosines."""

    steps: int = 50
    temperature: float = 10.0
    w_support: float = 1.0

    def fit(self, task: Task) -> NovelWeights:
        """Weights that answer by cosines."""
        features = torch.cat([task.support, task.unlabelled], 1)
        members = members_of(task.labels, task.ways, features.dtype).transpose(1, 2)
        weights = self.weights(Evidence(features, members))
        return NovelWeights(weights, self.temperature)

    def gradient(self, given: Evidence, weights: Tensor) -> Tensor:
        """By W, through its directions [E, N, d]."""
        unit = directions(weights)
        logits = self.temperature * unit @ given.features.transpose(1, 2)
        pull = self.temperature * self.by_logits(given, logits) @ given.features
        along = (pull * unit).sum(-1, keepdim=True) * unit
        lengths: Tensor = weights.norm(dim=-1, keepdim=True)
        return (pull - along) / lengths


@dataclass(frozen=True)
class PlainLaplacian(LaplacianShot):
    """LaplacianShot around means that weigh cosines, each class's of its own pictures."""

    def fit(self, task: Task) -> "Answered":
        """U is the queries, and is where it is; for the means alone it is moved to the support."""
        novel = prototypes(task.support, task.labels, task.ways)
        moved = task.unlabelled + shift(task.support, task.unlabelled)
        pictures = torch.cat([task.support, moved], 1)
        cosines = direction_logits(directions(pictures), novel, 1.0)
        guessed = cosines[:, task.support.shape[1] :].argmax(-1)
        members = members_of(torch.cat([task.labels, guessed], 1), task.ways, cosines.dtype)
        weights = cosines.exp() * members
        means = class_sums(weights, pictures) / weights.sum(1)[..., None]
        unlabelled = task.unlabelled.double()
        distances = squared_distances(unlabelled, means.double())
        return Answered(smoothed(distances, self.places(unlabelled), self)[0])


@dataclass(frozen=True)
class Answered:
    """Answers that were found with the queries."""

    found: Tensor  # [E, Q, N]

    def logits(self, queries: Queries) -> Tensor:
        """They are there already."""
        assert queries.features.shape[:2] == self.found.shape[:2]
        return self.found


def ours(method: Method, chunks: list[Chunk]) -> Tensor:
    """The accuracy of each episode [E]."""
    answers = [method.fit(chunk.task).logits(chunk.queries).max(-1).indices for chunk in chunks]
    right = [answer == chunk.labels for answer, chunk in zip(answers, chunks, strict=True)]
    return torch.cat(right).double().mean(-1)


def theirs(peers: Peers, classifier: Any, tasks: list[Any]) -> Tensor:
    """The accuracy of each episode [E], by easyfsl's own function for one."""
    counts = [peers.evaluate_on_one_task(classifier, *task) for task in tasks]
    return torch.tensor([right / asked for right, asked in counts], dtype=torch.float64)


def one_by_one(chunks: list[Chunk]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The same episodes as easyfsl takes them: support, its labels, queries, their labels."""
    return [
        episode
        for chunk in chunks
        for episode in zip(
            chunk.task.support,
            chunk.task.labels,
            chunk.queries.features,
            chunk.labels,
            strict=True,
        )
    ]


# --- the comparison ---


@dataclass(frozen=True)
class Pair:
    """A classifier of easyfsl and its partners here."""

    peer: str
    partners: Mapping[str, Method]
    slow: bool = False

    @property
    def runs(self) -> int:
        """The best of so many is reported."""
        return SLOW_RUNS if self.slow else RUNS


def shipped(name: str) -> dict[str, Method]:
    """A method as it is registered."""
    return {name: method_spec(name).method}


PAIRS = (
    Pair("PrototypicalNetworks", {"EuclideanMeans": EuclideanMeans()}),
    Pair("SimpleShot", shipped("nearest-prototype")),
    Pair("BDCSPN", shipped("bd-cspn")),
    Pair("LaplacianShot", {"PlainLaplacian": PlainLaplacian()}, slow=True),
    Pair("PTMAP", {"PlainTransport": PlainTransport()} | shipped("pt-map"), slow=True),
    Pair("TIM", {"CosineTIM": CosineTIM()} | shipped("tim-adm"), slow=True),
)


def timed(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


@torch.no_grad()
def compare(peers: Peers, pair: Pair, chunks: list[Chunk]) -> Iterator[list[str]]:
    """Cells of the table, a line per partner; a few episodes of each warm up."""
    classifier, tasks = peers.classifier(pair.peer), one_by_one(chunks)
    theirs(peers, classifier, tasks[:WARM_UP])
    for method in pair.partners.values():
        ours(method, chunks[:1])
    sides: list[Callable[[], Tensor]] = [
        partial(theirs, peers, classifier, tasks),
        *(partial(ours, method, chunks) for method in pair.partners.values()),
    ]
    runs = [[timed(side) for side in sides] for _ in range(pair.runs)]
    (peer, there), *best = (min(side, key=lambda r: r[0]) for side in zip(*runs, strict=True))
    for own, here in best:
        difference = 100 * (there - here).abs().max().item()
        cells = [f"{interval(accuracy)}" for accuracy in (there, here)]
        yield [*cells, f"{difference:.2f}", f"{peer:.4f}", f"{own:.4f}", f"{peer / own:.1f}"]


COLUMNS = "{:<20}  {:<17}  {:>5}  {:>8}  {:>13}  {:>13}  {:>10}  {:>8}  {:>7}  {:>5}".format
HEADER = ("Acc", "Acc", "difference", "s", "s", "ratio")


def report(recipe: str, models: Path | None, count: int) -> None:
    torch.set_num_threads(1)
    peers, features = Peers(), test_features(recipe, models)
    versions = [f"{name} {metadata.version(name)}" for name in ("easyfsl", "fewgraft", "torch")]
    print(f"{', '.join(versions)}; one thread")
    print(f"{recipe}, {features.bank.features.shape[1]} features, {SETTING}\n")
    print(COLUMNS("easyfsl", "fewgraft", "shots", "episodes", *HEADER))
    for shots in (1, 5):
        for pair in track(PAIRS, f"{shots}-shot", len(PAIRS)):
            few = min(count, SLOW_EPISODES) if pair.slow else count
            found = compare(peers, pair, gathered(features, shots, few))
            for partner, cells in zip(pair.partners, found, strict=True):
                print(COLUMNS(pair.peer, partner, shots, few, *cells), flush=True)
    print("\nAcc in % and processor seconds: easyfsl's, then Fewgraft's. The difference, largest")
    print("of all episodes, is 0 where both sides compute the same.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipe", default="icons", help="whose data and models (icons)")
    parser.add_argument("--models", type=Path, help="folder of a training run (the shipped models)")
    parser.add_argument(
        "--episodes",
        type=int,
        default=600,
        help="how many (600); easyfsl takes minutes for the last three, which get 60",
    )
    parser.add_argument(
        "--venv", type=Path, default=CHECKOUT / "build" / "peers", help="the environment"
    )
    arguments = parser.parse_args()
    if Path(sys.prefix).resolve() != arguments.venv.resolve():
        command = [prepare(arguments.venv.resolve()), __file__, *sys.argv[1:]]
        sys.exit(subprocess.run(command, check=False).returncode)
    try:
        report(arguments.recipe, arguments.models, arguments.episodes)
    except FewgraftError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
