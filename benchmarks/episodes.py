"""How long it takes to draw 600 episodes of 200+5-way, beside a plain loop over `random.sample`.

.venv/bin/python benchmarks/episodes.py
"""

import random
import time
from collections.abc import Callable

import numpy as np

from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes

EPISODES = 600
SETTINGS = EpisodeSettings.paper("s2i", shots=5)
NOVEL, BASE = 160, 25_488  # tiered-ImageNet's test parts


def tiered_sized_pools() -> Pools:
    novel = {200 + c: np.arange(1300) + BASE + 1300 * c for c in range(NOVEL)}
    return Pools(novel, np.arange(BASE), np.arange(BASE) % 200, n_base=200)


def plain_loop(pools: Pools) -> list[list[int]]:
    """The usual way: Python lists and `random.sample`, one role after the other."""
    rng = random.Random(0)
    drawn = []
    base = pools.base.tolist()
    novel = {name: pictures.tolist() for name, pictures in pools.novel.items()}
    for _ in range(EPISODES):
        picked = rng.sample(base, SETTINGS.base_queries + SETTINGS.base_unlabelled)
        for name in rng.sample(list(novel), SETTINGS.ways):
            picked += rng.sample(novel[name], 5 + 15 + 50)
        rng.shuffle(picked)
        drawn.append(picked)
    return drawn


def best_of(runs: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    pools = tiered_sized_pools()
    ours = best_of(3, lambda: sample_episodes(pools, SETTINGS, EPISODES))
    plain = best_of(3, lambda: plain_loop(pools))
    print(f"{EPISODES} episodes of 200+5-way 5-shot: {ours:.2f} s (target 1 s)")
    print(f"plain loop over random.sample: {plain:.2f} s; ratio {plain / ours:.2f}")


if __name__ == "__main__":
    main()
