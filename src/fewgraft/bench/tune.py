"""Hyper-parameters by validation episodes; test episodes are never looked at."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewgraft.bench.runner import Bench, Job
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec
from fewgraft.methods.base import Method, MethodSpec
from fewgraft.metrics import Paired, Scores, join_scores, paired
from fewgraft.progress import track
from fewgraft.training.recipe import Recipe

SEED = 3  # other episodes than those that chose a training step (1) or compared algorithms (2)


@dataclass(frozen=True)
class Candidate:
    """One choice of hyper-parameters, and how it scored."""

    hyper: dict[str, Any]
    scores: Scores

    @property
    def accuracy(self) -> float:
        """What a search maximises: mean joint accuracy."""
        return self.scores.acc.mean().item()


Evaluate = Callable[[Iterable[dict[str, Any]]], list[Candidate]]


@dataclass(frozen=True)
class Tuned:
    """The best of all candidates, beside the method as it is registered."""

    method: str
    shots: int
    best: Candidate
    gain: Paired  # joint accuracy over the registered hyper-parameters
    candidates: tuple[Candidate, ...]  # in the order in which they were made, none of them twice

    @property
    def toml(self) -> str:
        """The entry for a recipe."""
        hyper = _toml(self.best.hyper)
        return f'[[evaluation]]\nmethod = "{self.method}"\nshots = {self.shots}\nhyper = {hyper}'


def _toml(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return f"{{ {', '.join(f'{name} = {_toml(inner)}' for name, inner in value.items())} }}"


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
    """The best of each method's `search` at each number of shots, in the method's own setting.

    Joint methods are tuned on base and novel classes together, and those that use U with one of its
    own. What the recipe has chosen already and the method does not search stays as it is.
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
    settings = EpisodeSettings.paper(own_setting(spec), shots, split="val", seed=SEED)

    def scores(hypers: Sequence[dict[str, Any]]) -> list[Scores]:
        """Of hyper-parameters that `fit` cannot tell apart."""
        jobs = [
            Job(recipe.name, recipe.data, name, hyper, settings, episodes, models)
            for hyper in hypers
        ]
        chunks = jobs[0].chunks
        if len(jobs) == 1:
            return [join_scores(bench.chunk(jobs[0], chunk) for chunk in chunks)]
        parts = [bench.chunk_of_each(jobs, chunk) for chunk in chunks]
        return [join_scores(part) for part in zip(*parts, strict=True)]

    made: dict[str, Candidate] = {}

    def evaluate(choices: Iterable[dict[str, Any]]) -> list[Candidate]:
        wanted = {json.dumps(hyper): hyper | fixed for hyper in choices}
        alike: dict[str, list[str]] = {}  # keys of candidates by what `fit` sees of them
        for key, hyper in wanted.items():
            seen = {k: v for k, v in hyper.items() if k not in spec.method.for_answers}
            if key not in made:
                alike.setdefault(json.dumps(seen), []).append(key)
        for keys in track(alike.values(), f"{name}, {shots}-shot", len(alike)):
            found = scores([wanted[key] for key in keys])
            made.update({k: Candidate(wanted[k], s) for k, s in zip(keys, found, strict=True)})
        return [made[key] for key in wanted]

    best, candidates = SEARCHES[spec.method.search_by](spec.method, evaluate), tuple(made.values())
    [default] = evaluate([registered(spec.method)])
    gain = paired(best.scores.acc, default.scores.acc)
    return Tuned(name, shots, best, gain, candidates)


def own_setting(spec: MethodSpec) -> str:
    """Where a method is tuned."""
    if spec.method.uses_unlabelled:
        return "s2i" if spec.joint else "semi-fsl"
    return "incremental" if spec.joint else "fsl"


def registered(method: Method) -> dict[str, Any]:
    """What is searched, as the method has it."""
    return {name: getattr(method, name) for name in method.search}


def over_grid(method: Method, evaluate: Evaluate) -> Candidate:
    """The best of all combinations."""
    return max(evaluate(combinations(method)), key=lambda candidate: candidate.accuracy)


def over_coordinates(method: Method, evaluate: Evaluate) -> Candidate:
    """One hyper-parameter after the other, the others as they are best so far.

    It begins with the registered values and goes through the search once: there are as many
    candidates as values, not as combinations of them.
    """
    hyper = registered(method)
    for name, values in method.search.items():
        candidates = evaluate(hyper | {name: value} for value in values)
        best = max(candidates, key=lambda candidate: candidate.accuracy)
        hyper[name] = best.hyper[name]
    return best


SEARCHES: Mapping[str, Callable[[Method, Evaluate], Candidate]] = {
    "grid": over_grid,
    "coordinates": over_coordinates,
}
