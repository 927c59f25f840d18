"""Batched prototype refinement beside a plain loop over episodes: the same logits, how much sooner?

    .venv/bin/python benchmarks/refinement.py [--quick]

Made-up features of 640 dimensions, 64 and 200 base classes, 600 episodes of s2i at 1 shot, 10 steps
of Eqs. 3-4. The loop is what one writes from the equations, without needless work: directions are
computed once per episode, W_b once altogether. One thread, both in turn, processor seconds.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from fewgraft.episodes import Episodes, EpisodeSettings, Pools, sample_episodes
from fewgraft.feature_bank import FeatureBank
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.progress import track
from fewgraft.split_features import EpisodeFeatures, chunks

WIDTH, GAMMA, STEPS = 640, 10.0, 10
NOVEL, PICTURES = 20, 100  # novel classes, and pictures of each class
BASE_CLASSES, RUNS = (64, 200), 2


@dataclass(frozen=True)
class Problem:
    """Everything that both sides are given."""

    features: Tensor  # [n, d]
    weights: Tensor  # W_b [N_b, d]
    episodes: Episodes


def made_up(n_base: int, count: int) -> Problem:
    """Class centres with noise, so that pseudo-labels are sure of some pictures only."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(n_base + NOVEL).repeat_interleave(PICTURES)
    centres = torch.randn(n_base + NOVEL, WIDTH, generator=rng)
    features = centres[labels] + 2 * torch.randn(len(labels), WIDTH, generator=rng)
    base = np.arange(n_base * PICTURES)
    novel = {n_base + c: len(base) + c * PICTURES + np.arange(PICTURES) for c in range(NOVEL)}
    pools = Pools(novel, base, labels.numpy()[base], n_base)
    episodes, _ = sample_episodes(pools, EpisodeSettings.paper("s2i", shots=1), count)
    return Problem(features, centres[:n_base], episodes)


def batched(problem: Problem) -> Tensor:
    """Logits [E, Q, N_b+N]."""
    method, episodes = PrototypeRefinement(steps=STEPS), problem.episodes
    bank = FeatureBank.of(
        problem.features, torch.arange(len(problem.features)), len(problem.features)
    )
    ready = EpisodeFeatures(lambda: bank, problem.weights, GAMMA)
    parts = chunks(len(episodes), episodes.settings, method)
    rows = [slice(part.start, part.stop) for part in parts]
    return torch.cat([ready.logits(method, episodes, r) for r in rows])


def plain_loop(problem: Problem) -> Tensor:
    """Logits [E, Q, N_b+N], one episode after the other."""
    base, count = normalize(problem.weights, dim=-1), len(problem.episodes)
    return torch.stack(
        [plain_episode(problem, base, e) for e in track(range(count), "plain loop", count)]
    )


def plain_episode(problem: Problem, base: Tensor, e: int) -> Tensor:
    """Eqs. 2-4 and 1 as they are written; base is W_b as directions [N_b, d] → [Q, N_b+N]."""
    episodes, n_base = problem.episodes, len(base)
    support, unlabelled, query = (
        normalize(problem.features[chosen[e]], dim=-1)
        for chosen in (episodes.support, episodes.unlabelled, episodes.query)
    )
    members = one_hot(episodes.support_labels[e] - n_base, episodes.settings.ways).float()
    novel = normalize(members.T @ support / members.sum(0)[:, None], dim=-1)
    for _ in range(STEPS):
        logits = GAMMA * unlabelled @ torch.cat([base, novel]).T
        guesses = logits.softmax(-1)[:, n_base:]
        total = guesses.T @ unlabelled + members.T @ support
        novel = normalize(total / (guesses.sum(0) + members.sum(0))[:, None], dim=-1)
    return GAMMA * query @ torch.cat([base, novel]).T


def timed(work: Callable[[Problem], Tensor], problem: Problem) -> tuple[float, Tensor]:
    start = time.process_time()
    result = work(problem)
    return time.process_time() - start, result


@torch.inference_mode()
def compare(n_base: int, count: int) -> str:
    """One line; a few episodes warm both up."""
    for work in (plain_loop, batched):
        work(made_up(n_base, 5))
    problem = made_up(n_base, count)
    runs = [(timed(plain_loop, problem), timed(batched, problem)) for _ in range(RUNS)]
    (slow, expected), (fast, found) = (
        min(side, key=lambda run: run[0]) for side in zip(*runs, strict=True)
    )
    difference = (found - expected).abs().max().item()
    return (
        f"{n_base} base classes: plain loop {slow:.2f} s, batched {fast:.2f} s; "
        f"ratio {slow / fast:.2f}; largest difference of logits {difference:.1e} (γ = {GAMMA:g})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="60 episodes instead of 600")
    count = 60 if parser.parse_args().quick else 600
    torch.set_num_threads(1)
    print(f"{count} episodes of s2i at 1 shot, {WIDTH} features, {STEPS} steps, one thread")
    for n_base in BASE_CLASSES:
        print(compare(n_base, count), flush=True)


if __name__ == "__main__":
    main()
