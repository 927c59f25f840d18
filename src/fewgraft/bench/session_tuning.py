"""Hyper-parameters over sessions, by validation sessions; test classes are never looked at.

Validation sessions teach novel/val classes or, where a data set has none, base classes rotated by
quarters, from pictures that were held back from training. What is best has the highest mean
accuracy over all sessions. What means something over sessions only is tried last, each at the best
values so far; it may be turned off.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fewgraft.bench.rows import Engine, in_this_process
from fewgraft.bench.session_runner import SessionBench, SessionJob, session_jobs
from fewgraft.bench.tune import SEARCHES, at_borders, registered
from fewgraft.methods import method_spec
from fewgraft.methods.base import Method
from fewgraft.metrics import Paired, join_scores, paired
from fewgraft.progress import track
from fewgraft.session_scores import SessionScores
from fewgraft.sessions import SessionSettings
from fewgraft.training.recipe import ChosenOverSessions, Recipe


@dataclass(frozen=True)
class SessionCandidate:
    """One choice of hyper-parameters, and how it scored."""

    hyper: dict[str, Any]
    scores: SessionScores

    @property
    def accuracy(self) -> float:
        """What a search maximises: the average over sessions, over draws."""
        return self.scores.average.mean().item()


@dataclass(frozen=True)
class SessionTuned:
    """The best of all candidates, beside the method as it is registered."""

    chosen: ChosenOverSessions
    best: SessionCandidate
    gain: Paired  # average accuracy over the registered hyper-parameters
    over_sessions: Mapping[str, Mapping[Any, float]]  # accuracy by value, the rest at its best

    @property
    def borders(self) -> dict[str, Any]:
        """The best values that are the smallest or largest of those to try."""
        return at_borders(method_spec(self.chosen.method).method, self.best.hyper)


def tune_sessions(
    recipe: Recipe,
    models: Path,
    names: Sequence[str],
    settings: SessionSettings,
    draws: int,
    bench: SessionBench,
    base: str = "weights",
    engine: Engine = in_this_process,
) -> Iterator[SessionTuned]:
    """The best of each method's `search`; methods without one are passed over.

    A method that builds on another begins with what was found for that one, so name it first.
    """
    settings = replace(settings, split="val", listed=False)
    for name in names:
        spec = method_spec(name)
        if not spec.method.search:
            continue
        [job] = session_jobs(recipe, models, [name], settings, draws, base)
        evaluate = _Evaluate(job, bench, engine)
        best, by_value = _best(spec.method, evaluate)
        [default] = evaluate([registered(spec.method) | _as_registered(spec.method)])
        names_searched = (*spec.method.search, *spec.method.over_sessions)
        searched = {key: best.hyper[key] for key in names_searched}
        found = {"method": name, "shots": settings.shots, "hyper": searched, "base": base}
        chosen = ChosenOverSessions.model_validate(found)
        recipe = recipe.model_copy(update={"sessions": (*recipe.sessions, chosen)})
        gain = paired(best.scores.average, default.scores.average)
        yield SessionTuned(chosen, best, gain, by_value)


def _as_registered(method: Method) -> dict[str, Any]:
    return {name: getattr(method, name) for name in method.over_sessions}


def _best(
    method: Method, evaluate: "_Evaluate"
) -> tuple[SessionCandidate, dict[str, dict[Any, float]]]:
    """The best of `search`, then of `over_sessions`, with the accuracies of the latter."""
    start = _as_registered(method)

    def searched(choices: Iterable[dict[str, Any]]) -> list[Any]:
        return evaluate(start | choice for choice in choices)

    best: Any
    if method.search.keys() <= method.over_sessions.keys():
        [best] = evaluate([start])
    else:
        best = SEARCHES[method.search_by](method, searched)
    by_value = {}
    for name, values in method.over_sessions.items():
        found = evaluate(best.hyper | {name: value} for value in values)
        by_value[name] = {one.hyper[name]: one.accuracy for one in found}
        best = max(found, key=lambda candidate: candidate.accuracy)
    return best, by_value


class _Evaluate:
    """Scores choices of hyper-parameters on top of those of a job, none of them twice."""

    def __init__(self, job: SessionJob, bench: SessionBench, engine: Engine) -> None:
        self._job, self._bench, self._engine = job, bench, engine
        self._made: dict[str, SessionCandidate] = {}

    def __call__(self, choices: Iterable[dict[str, Any]]) -> list[SessionCandidate]:
        wanted = [self._job.hyper | choice for choice in choices]
        for hyper in track(wanted, f"{self._job.spec.name}", len(wanted)):
            if str(hyper) not in self._made:
                job = replace(self._job, hyper=hyper)
                done = {c.start: s for c, s in self._engine(self._bench, job, job.chunks)}
                scores = join_scores(done[chunk.start] for chunk in job.chunks)
                self._made[str(hyper)] = SessionCandidate(hyper, scores)
        return [self._made[str(hyper)] for hyper in wanted]
