"""Hyper-parameters by validation episodes; test episodes are never looked at."""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fewgraft.bench.results import Results, Row, row_id
from fewgraft.bench.rows import Engine, in_this_process
from fewgraft.bench.runner import Bench, Job
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec
from fewgraft.methods.base import Method, MethodSpec
from fewgraft.metrics import Paired, Scores, join_scores, paired
from fewgraft.progress import track
from fewgraft.training.recipe import Chosen, Recipe

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

    chosen: Chosen  # the entry for a recipe
    best: Candidate
    gain: Paired  # joint accuracy over the registered hyper-parameters
    candidates: tuple[Candidate, ...]  # in the order in which they were made, none of them twice

    @property
    def borders(self) -> dict[str, Any]:
        """The best values that are the smallest or largest of those to try."""
        return at_borders(method_spec(self.chosen.method).method, self.best.hyper)


def at_borders(method: Method, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are the smallest or largest of those to try."""
    return {
        name: hyper[name]
        for name, values in method.search.items()
        if _is_at_the_border(hyper[name], values)
    }


def _is_at_the_border(value: Any, values: Sequence[Any]) -> bool:
    """Of three numbers or more: any of two is at a border."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return numbers and len(values) > 2 and value in (min(values), max(values))


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
    engine: Engine = in_this_process,
    tried: Results | None = None,
) -> Iterator[Tuned]:
    """The best of each method's `search` at each number of shots, in the method's own setting.

    Joint methods are tuned on base and novel classes together, and those that use U with one of its
    own. A method that builds on another comes after it and begins with what was found for it. What
    else the recipe has chosen already and the method does not search stays as it is.

    Candidates that `tried` has are not computed again, and it keeps the others.
    """
    for name in names:
        if not method_spec(name).method.search:
            raise FewgraftError(f"'{name}' names nothing to search", "Its `search` is empty.")
    for name in sorted(names, key=_depth):
        for k in shots:
            fixed = _fixed(recipe, name, k, again=method_spec(name).builds_on in names)
            settings = EpisodeSettings.paper(
                own_setting(method_spec(name)), k, split="val", seed=SEED
            )
            job = Job(recipe.name, recipe.data, name, fixed, settings, episodes, models)
            found = _best(recipe, _Candidates(job, bench, engine, tried))
            recipe = recipe.with_chosen(found.chosen)
            yield found


def _depth(name: str) -> int:
    """How many methods one after the other this one builds on."""
    below = method_spec(name).builds_on
    return 1 + _depth(below) if below else 0


def _fixed(recipe: Recipe, name: str, shots: int, again: bool) -> dict[str, Any]:
    """What is not searched. `again`: the method that it builds on was tuned anew, which outdates
    what its own entry has for that.
    """
    spec = method_spec(name)
    chosen = recipe.hyper(name, shots)
    if again:
        chosen |= spec.method.inherited(recipe.hyper(spec.builds_on, shots))
    return {key: value for key, value in chosen.items() if key not in spec.method.search}


class _Candidates:
    """Evaluates choices of hyper-parameters, on top of those of a job, none of them twice."""

    def __init__(self, job: Job, bench: Bench, engine: Engine, tried: Results | None) -> None:
        self.job, self._bench, self._engine, self._tried = job, bench, engine, tried
        self._rows = {row.id: row for row in tried.rows()} if tried else dict[str, Row]()
        self.made: dict[str, Candidate] = {}

    def __call__(self, choices: Iterable[dict[str, Any]]) -> list[Candidate]:
        wanted = {json.dumps(hyper): hyper | self.job.hyper for hyper in choices}
        groups = _alike(
            {key: hyper for key, hyper in wanted.items() if key not in self.made},
            self.job.spec.method.for_answers,
        )
        title = f"{self.job.spec.name}, {self.job.episode_settings.shots}-shot"
        for keys in track(groups, title, len(groups)):
            found = self._scores([replace(self.job, hyper=wanted[key]) for key in keys])
            made = zip(keys, found, strict=True)
            self.made |= {key: Candidate(wanted[key], scores) for key, scores in made}
        return [self.made[key] for key in wanted]

    def _scores(self, jobs: Sequence[Job]) -> list[Scores]:
        """Of hyper-parameters that `fit` cannot tell apart."""
        if self._tried is None:
            return self._computed(jobs)
        names = [row_id(self._bench.identity(job)) for job in jobs]
        new = [(job, name) for job, name in zip(jobs, names, strict=True) if name not in self._rows]
        start, threads = time.perf_counter(), torch.get_num_threads()
        found = self._computed([job for job, _ in new]) if new else []
        seconds = (time.perf_counter() - start) / max(1, len(new))
        rows = [
            self._bench.row(job, scores, seconds, threads)
            for (job, _), scores in zip(new, found, strict=True)
        ]
        self._tried.extend(list(zip(rows, found, strict=True)))
        self._rows |= {row.id: row for row in rows}
        return [self._tried.scores(self._rows[name]) for name in names]

    def _computed(self, jobs: Sequence[Job]) -> list[Scores]:
        chunks = jobs[0].chunks
        if len(jobs) > 1 and self._engine is in_this_process:
            parts = [self._bench.chunk_of_each(jobs, chunk) for chunk in chunks]
            return [join_scores(part) for part in zip(*parts, strict=True)]
        found = []
        for job in jobs:
            done = {c.start: scores for c, scores in self._engine(self._bench, job, chunks)}
            found.append(join_scores(done[chunk.start] for chunk in chunks))
        return found


def _alike(choices: Mapping[str, dict[str, Any]], for_answers: Sequence[str]) -> list[list[str]]:
    """Keys of choices, those together that `fit` cannot tell apart."""
    groups: dict[str, list[str]] = {}
    for key, hyper in choices.items():
        seen = {name: value for name, value in hyper.items() if name not in for_answers}
        groups.setdefault(json.dumps(seen), []).append(key)
    return list(groups.values())


def _best(recipe: Recipe, evaluate: _Candidates) -> Tuned:
    job = evaluate.job
    method, shots = job.spec.method, job.episode_settings.shots
    best = SEARCHES[method.search_by](method, evaluate)
    candidates = tuple(evaluate.made.values())
    [default] = evaluate([registered(method)])
    # What it has from elsewhere, such as the method that it builds on, needs no entry.
    there = recipe.without(job.method, shots).hyper(job.method, shots)
    own = {key: value for key, value in best.hyper.items() if there.get(key) != value}
    gain = paired(best.scores.acc, default.scores.acc)
    return Tuned(Chosen(method=job.method, shots=shots, hyper=own), best, gain, candidates)


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
