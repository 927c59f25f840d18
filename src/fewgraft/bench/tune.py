"""Hyper-parameters by validation episodes; test episodes are never looked at."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewgraft.bench.runner import Bench, Job
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec
from fewgraft.methods.base import Method
from fewgraft.metrics import Paired, Scores, join_scores, paired
from fewgraft.progress import track
from fewgraft.training.recipe import Recipe

SEED = 3  # other episodes than those that chose a training step (1) or compared algorithms (2)


@dataclass(frozen=True)
class Tuned:
    """The best of all combinations, beside the method as it is registered."""

    method: str
    shots: int
    hyper: dict[str, Any]
    scores: Scores
    gain: Paired  # joint accuracy over the registered hyper-parameters
    tried: int

    @property
    def toml(self) -> str:
        """The entry for a recipe."""
        pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in self.hyper.items())
        return (
            f'[[evaluation]]\nmethod = "{self.method}"\nshots = {self.shots}\nhyper = {{ {pairs} }}'
        )


def combinations(method: Method) -> list[dict[str, Any]]:
    """All combinations of the values that the method names."""
    names, values = method.search.keys(), method.search.values()
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def tune(
    recipe: Recipe,
    models: Path,
    names: Sequence[str],
    shots: Sequence[int],
    episodes: int,
    bench: Bench,
) -> Iterator[Tuned]:
    """The best combination of each method at each number of shots, in the semi-supervised setting.

    Joint methods are tuned on base and novel classes together. What the recipe has chosen already
    and the method does not search stays as it is.
    """
    for name in names:
        method = method_spec(name).method
        if not method.search:
            raise FewgraftError(f"'{name}' names nothing to search", "Its `search` is empty.")
        for k in shots:
            yield _best(recipe, models, name, k, episodes, bench)


def _best(
    recipe: Recipe, models: Path, name: str, shots: int, episodes: int, bench: Bench
) -> Tuned:
    spec = method_spec(name)
    chosen = recipe.hyper(name, shots)
    fixed = {key: value for key, value in chosen.items() if key not in spec.method.search}
    setting = "s2i" if spec.joint else "semi-fsl"
    settings = EpisodeSettings.paper(setting, shots, split="val", seed=SEED)

    def scores(hyper: dict[str, Any]) -> Scores:
        job = Job(recipe.name, recipe.data, name, hyper, settings, episodes, models)
        return join_scores(bench.chunk(job, chunk) for chunk in job.chunks)

    tries = [hyper | fixed for hyper in combinations(spec.method)]
    found = [(hyper, scores(hyper)) for hyper in track(tries, f"{name}, {shots}-shot", len(tries))]
    hyper, best = max(found, key=lambda pair: pair[1].acc.mean().item())
    return Tuned(name, shots, hyper, best, paired(best.acc, scores(fixed).acc), len(tries))
