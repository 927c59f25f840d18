"""Incremental rivals on features: how much sooner than a plain loop over episodes?

    .venv/bin/python benchmarks/rivals.py [--recipe icons] [--episodes 600]

The loop below each method's name is the same mathematics as it is usually written: one episode at a
time, class by class, null spaces by singular vectors, inner problems by torch's own optimisers.
Features and learnt pieces are there before the clock starts; what is timed is all from the support
to the logits of the queries, on one thread, both sides in turn. Both must give the same answers.

Methods that move the network are not here: they are loops over episodes themselves.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fewgraft.bench.runner import Bench, Job, jobs
from fewgraft.errors import FewgraftError
from fewgraft.methods.base import LearntTensors, Method, Queries, Task
from fewgraft.methods.incremental.attractor import DECAY
from fewgraft.methods.incremental.lcwof import CALIBRATION_SHARE, HeadCalibration
from fewgraft.methods.incremental.teen import Teen
from fewgraft.methods.incremental.xtarnet import DEPTHS, STRENGTH
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.progress import track
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import models_folder

SETTING = "incremental"


@dataclass(frozen=True)
class Episode:
    """One episode as a loop takes it."""

    support: Tensor  # [S, d]
    labels: Tensor  # [S], in 0 … N−1
    query: Tensor  # [Q, d]
    base: Tensor  # directions of W_b [N_b, d]
    gamma: float
    ways: int
    learnt: LearntTensors
    stored: Tensor | None  # a picture per base class [N_b, d]

    def of(self, k: int) -> Tensor:
        """The supports of a class [·, d]."""
        return self.support[self.labels == k]

    def means(self) -> Tensor:
        """Of each class [N, d]."""
        return torch.stack([self.of(k).mean(0) for k in range(self.ways)])

    def cosines(self, novel: Tensor, gamma: float | Tensor) -> Tensor:
        """Logits of weights [N, d] beside the base weights."""
        return gamma * self.query @ torch.cat([self.base, normalize(novel, dim=-1)]).T


# --- loops ---


def imprint(method: Method, episode: Episode) -> Tensor:
    assert isinstance(method, NearestPrototype)
    logits = episode.cosines(episode.means(), episode.gamma)
    logits[:, len(episode.base) :] += method.bias
    return logits


def lwof(method: Method, episode: Episode) -> Tensor:
    del method
    learnt, novel = episode.learnt, []
    base, keys = normalize(learnt["weights"], dim=-1), normalize(learnt["keys"], dim=-1)
    for k in range(episode.ways):
        recalled = []
        for z in episode.of(k):
            asked = normalize(learnt["query"] @ z + learnt["query_bias"], dim=-1)
            recalled.append((learnt["sharpness"] * keys @ asked).softmax(0) @ base)
        of_class = learnt["average"] * episode.of(k).mean(0)
        novel.append(of_class + learnt["attention"] * torch.stack(recalled).mean(0))
    weights = torch.cat([base, normalize(torch.stack(novel), dim=-1)])
    return learnt["gamma"] * episode.query @ weights.T


def attractor(method: Method, episode: Episode) -> Tensor:
    """The inner problem by torch's L-BFGS with autograd."""
    del method
    learnt = {name: tensor.double() for name, tensor in episode.learnt.items()}
    base, support = episode.gamma * episode.base.double(), episode.support.double()
    inside = torch.tanh(base @ learnt["inner"] + learnt["inner_bias"])
    keys = inside @ learnt["outer"] + learnt["outer_bias"]
    pulled = []
    for mean in episode.means().double():
        cosines = base @ mean / (base.norm(dim=1) + 1e-5) / (mean.norm() + 1e-5)
        pulled.append((learnt["tau"] * cosines).softmax(0) @ keys + learnt["offset"])
    attractors = episode.gamma * torch.stack(pulled, 1)  # [d+1, N]
    pull, ones = learnt["log_pull"].exp()[:, None], support.new_ones(len(support), 1)
    pictures, fixed = torch.cat([support, ones], 1), support @ base.T
    t = attractors.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [t], max_iter=1000, tolerance_grad=1e-8, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def energy() -> Tensor:
        optimiser.zero_grad()
        logits = torch.cat([fixed, pictures @ t], 1)
        loss = cross_entropy(logits, len(base) + episode.labels)
        away = (pull * (t - attractors).square()).sum() / episode.ways
        total = loss + DECAY / 2 * t.square().sum() + away
        torch.autograd.backward(total)
        return total

    with torch.enable_grad():
        optimiser.step(energy)  # type: ignore[no-untyped-call]
    query = torch.cat([episode.query.double(), support.new_ones(len(episode.query), 1)], 1)
    novel = (query @ t.detach()).float()
    return torch.cat([episode.gamma * episode.query @ episode.base.T, novel], 1)


def tapnet(method: Method, episode: Episode) -> Tensor:
    del method
    learnt, means = episode.learnt, episode.means()
    points, bias = learnt["references"], learnt["bias"]
    chosen = best_pairs(means, points, bias)
    points, bias = points[chosen], bias[chosen]
    others = torch.stack([len(points) * point - points.sum(0) for point in points])
    basis = null_space(others, means)
    base = -(episode.query[:, None] @ basis - episode.base @ basis).square().sum(-1)
    novel = -(episode.query[:, None] @ basis - points @ basis).square().sum(-1) + 2 * bias
    return learnt["scale"] * torch.cat([base, novel], 1)


def xtarnet(method: Method, episode: Episode) -> Tensor:
    del method
    learnt, size = episode.learnt, math.sqrt(episode.support.shape[1])
    nets = {
        f"{net}_{i}": learnt[f"{net}_{i}_full"]
        if net == "correlation"
        else learnt[f"{net}_{i}_in"] @ learnt[f"{net}_{i}_out"]
        for net, depth in DEPTHS.items()
        for i in range(depth)
    }

    def layer(x: Tensor, name: str) -> Tensor:
        return x @ nets[name] + learnt[f"{name}_bias"]

    def second(f: Tensor) -> Tensor:
        return f + (size * f @ learnt["meta_in"]).relu() @ learnt["meta_out"] / size

    def share(x: Tensor, net: str) -> Tensor:
        for i in range(3):
            x = layer(x, f"{net}_{i}").relu()
        return layer(x, f"{net}_3").sigmoid()

    def conditioning(x: Tensor, net: str) -> Tensor:
        for i in range(3):
            x = (layer(x, f"{net}_{i}") + x).relu()
        return x

    both = torch.cat([episode.support, second(episode.support)], 1)
    task = torch.stack([both[episode.labels == k].mean(0) for k in range(episode.ways)]).mean(0)
    of_base, of_meta = (share(size * task, f"merge_{kind}") for kind in ("base", "meta"))

    def merged(f: Tensor) -> Tensor:
        return normalize(of_base * f + of_meta * second(f), dim=-1)

    support, query = merged(episode.support), merged(episode.query)
    means = torch.stack([support[episode.labels == k].mean(0) for k in range(episode.ways)])
    mean = size * means.mean(0)
    scale, shift = conditioning(mean, "scale"), conditioning(mean, "shift")
    base = (1 + STRENGTH * scale) * size * episode.base + STRENGTH * shift
    base, points = normalize(base, dim=-1), learnt["references"]
    novel = []
    for c, place in zip(means, best_pairs(means, points, torch.zeros(len(points))), strict=True):
        x = layer(episode.gamma * base @ c, "correlation_0").relu()
        for i in (1, 2):
            x = (layer(x, f"correlation_{i}") + x).relu()
        novel.append(points[place] - x.softmax(0) @ base)
    centres = torch.cat([base, torch.stack(novel)])
    basis = null_space(torch.stack(novel), means)
    distances = (query[:, None] @ basis - centres @ basis).square().sum(-1)
    return -learnt["distance_scale"] * distances


def lcwof(method: Method, episode: Episode) -> Tensor:
    """Both phases by torch's SGD with autograd."""
    assert isinstance(method, HeadCalibration)
    assert episode.stored is not None
    novel, base = normalize(episode.means(), dim=-1), episode.base.clone()
    gamma, labels = episode.gamma / method.temperature, len(base) + episode.labels

    def descend(moving: list[Tensor], lr: float, steps: int, share: float) -> None:
        for weights in moving:
            weights.requires_grad_()
        optimiser = torch.optim.SGD(
            moving, lr=lr, momentum=method.momentum, weight_decay=method.decay
        )
        for _ in range(steps):
            optimiser.zero_grad()
            logits = gamma * features @ torch.cat([base, novel]).T
            torch.autograd.backward(share * cross_entropy(logits, answers))
            optimiser.step()

    with torch.enable_grad():
        features, answers = episode.support, labels
        descend([novel], method.lr, method.steps, 1.0)
        features = torch.cat([episode.stored, episode.support])
        answers = torch.cat([torch.arange(len(base)), labels])
        descend([base, novel], method.calibration_lr, method.calibration_steps, CALIBRATION_SHARE)
    return episode.gamma * episode.query @ torch.cat([base, novel]).detach().T


def teen(method: Method, episode: Episode) -> Tensor:
    assert isinstance(method, Teen)
    novel = []
    for mean in episode.means():
        p = normalize(mean, dim=-1)
        lent = normalize((method.temperature * episode.base @ p).softmax(0) @ episode.base, dim=-1)
        novel.append((1 - method.alpha) * p + method.alpha * lent)
    return episode.cosines(torch.stack(novel), episode.gamma)


def best_pairs(means: Tensor, points: Tensor, bias: Tensor) -> list[int]:
    """A reference for every class, the best pair first."""
    fit = {
        (k, r): float(2 * (mean @ point + bias[r]) - mean @ mean - point @ point)
        for k, mean in enumerate(means)
        for r, point in enumerate(points)
    }
    chosen: dict[int, int] = {}
    while len(chosen) < len(means):
        k, r = max(fit, key=lambda pair: fit[pair])
        chosen[k] = r
        fit = {pair: value for pair, value in fit.items() if pair[0] != k and pair[1] != r}
    return [chosen[k] for k in range(len(means))]


def null_space(references: Tensor, means: Tensor) -> Tensor:
    """An orthonormal basis [d, d−N] of what is orthogonal to the classes' errors."""
    error = normalize(references, dim=-1) - normalize(means, dim=-1)
    basis: Tensor = torch.linalg.svd(error).Vh[len(error) :].T
    return basis


LOOPS: dict[str, Callable[[Method, Episode], Tensor]] = {
    "nearest-prototype+bias": imprint,
    "lwof": lwof,
    "attractor": attractor,
    "tapnet": tapnet,
    "xtarnet": xtarnet,
    "lcwof": lcwof,
    "teen": teen,
}


# --- the comparison ---


def gathered(bench: Bench, job: Job) -> list[tuple[Task, Queries]]:
    """All episodes of a job in chunks, with everything in memory."""
    features, (episodes, _) = bench.split_features(job), bench.episodes(job)
    parts = []
    for chunk in job.chunks:
        rows = slice(chunk.start, chunk.stop)
        task = features.task(episodes, rows, job.configured)
        parts.append((task, features.queries(episodes, rows, task)))
    return parts


def one_by_one(parts: list[tuple[Task, Queries]]) -> list[Episode]:
    """The same episodes for a loop."""
    return [
        Episode(
            task.support[e],
            task.labels[e],
            queries.features[e],
            normalize(task.weights, dim=-1),
            task.gamma,
            task.ways,
            task.learnt or {},
            None if task.base_features is None else task.base_features[:, 0],
        )
        for task, queries in parts
        for e in range(len(task))
    ]


def timed(work: Callable[[], list[Tensor]]) -> tuple[float, Tensor]:
    """Processor seconds, and the answers [E, Q]."""
    start = time.process_time()
    logits = work()
    return time.process_time() - start, torch.cat([part.argmax(-1) for part in logits])


@torch.no_grad()
def compare(bench: Bench, job: Job) -> list[str]:
    """Cells of the table; a chunk of each warms up."""
    method, parts = job.configured, gathered(bench, job)
    episodes, loop = one_by_one(parts), LOOPS[job.method]
    loop(method, episodes[0])
    method.fit(parts[0][0]).logits(parts[0][1])
    ours, here = timed(lambda: [method.fit(task).logits(queries) for task, queries in parts])
    plain, there = timed(lambda: [loop(method, episode)[None] for episode in episodes])
    same = 100 * (here == there).double().mean().item()
    return [f"{ours:.2f}", f"{plain:.2f}", f"{plain / ours:.1f}", f"{same:.2f}"]


COLUMNS = "{:<24}{:>6}{:>12}{:>10}{:>8}{:>16}".format


def report(name: str, count: int) -> None:
    """All rivals at both numbers of shots."""
    torch.set_num_threads(1)
    recipe, bench = load_recipe(name), Bench()
    wanted = jobs(recipe, models_folder(name), list(LOOPS), [SETTING], (1, 5), count)
    print(f"{name}, {SETTING}, {count} episodes, processor seconds on one thread\n")
    print(COLUMNS("method", "shots", "fewgraft, s", "loop, s", "ratio", "same answers, %"))
    for job in track(wanted, "rivals", len(wanted)):
        cells = compare(bench, job)
        print(COLUMNS(job.method, job.episode_settings.shots, *cells), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipe", default="icons", help="whose data and models (icons)")
    parser.add_argument("--episodes", type=int, default=600, help="how many (600)")
    arguments = parser.parse_args()
    try:
        report(arguments.recipe, arguments.episodes)
    except FewgraftError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
