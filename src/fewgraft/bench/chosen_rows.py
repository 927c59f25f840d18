"""Which rows a table is made of, and whether they may stand beside each other.

Rows of one table are answers to the same queries: at one seed, episode e has the same classes and
queries in every setting. Seeds and training runs are one of many, or pooled, and never mixed.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewgraft.bench.results import Results, Row
from fewgraft.bench.runner import makes_sense
from fewgraft.errors import FewgraftError
from fewgraft.methods import methods
from fewgraft.metrics import METRICS, Scores, join_scores

RowKey = tuple[str, str, int]  # method, setting, shots


@dataclass(frozen=True)
class Choice:
    """Which rows a table is made of; None takes whatever is there."""

    episodes: int | None = None
    split: str | None = None
    seed: int | None = None
    shots: int | None = None  # the detailed table shows 5 unless told
    setting: str = "s2i"  # of the detailed table
    hyper: bool = False  # say with which hyper-parameters each row ran
    models: str | None = None  # folder of a training run
    pool: bool = False  # seeds and training runs together
    views: int | None = None  # of each picture

    def takes(self, row: Row) -> bool:
        """Whether a row is among them."""
        asked = (self.episodes, self.split, self.seed, self.shots, self.models, self.views)
        seed = row.episode_settings["seed"]
        there = (row.episodes, row.split, seed, row.shots, row.models, row.views)
        return all(a is None or a == t for a, t in zip(asked, there, strict=True))

    @property
    def options(self) -> str:
        """As `bench run` is told."""
        names = ("shots", "episodes", "split", "seed", "models", "views")
        given = {name: getattr(self, name) for name in names}
        return "".join(f" --{name} {value}" for name, value in given.items() if value is not None)


class NoRowsError(FewgraftError):
    """A table that has nothing to show yet."""


@dataclass(frozen=True)
class Entry:
    """A row with its per-episode scores; of several runs, their means and all their scores."""

    row: Row
    scores: Scores
    runs: int = 1

    def merit(self, metric: str) -> Tensor:
        """[E] per-episode values of which a larger one is better: Δ is better nearer 0."""
        values: Tensor = getattr(self.scores, metric)
        return -values.abs() if metric == "delta" else values


@dataclass(frozen=True)
class ChosenRows:
    """The entries of one table."""

    entries: Mapping[RowKey, Entry]
    hyper: bool = False  # say with which hyper-parameters each row ran
    runs: str = ""  # which ones are pooled

    @property
    def rows(self) -> list[Row]:
        """Of all entries."""
        return [entry.row for entry in self.entries.values()]

    @property
    def shots(self) -> list[int]:
        """Numbers of shots, smallest first."""
        return sorted({row.shots for row in self.rows})

    def by_shots(self, method: str, setting: str) -> dict[int, Entry]:
        """The entries of a line."""
        found = {k: self.entries.get((method, setting, k)) for k in self.shots}
        return {k: entry for k, entry in found.items() if entry}

    def methods(self, setting: str) -> list[str]:
        """In the order of the registry: the setting's, and those that only other settings have yet.

        Nothing where the setting has not a single row.
        """
        seen = {method for method, _, _ in self.entries}
        here = {method for method, there, _ in self.entries if there == setting}
        known = methods()
        listed = [
            name
            for name, spec in known.items()
            if name in here or (here and name in seen and makes_sense(spec, setting))
        ]
        return listed + sorted(here - set(known))


def choose_rows(
    results: Results, choice: Choice, wanted: Callable[[Row], bool], command: str
) -> ChosenRows:
    """The last row of each (method, setting, shots), provided that all can be compared."""
    rows = [row for row in results.rows() if choice.takes(row) and wanted(row)]
    if not rows:
        raise no_rows(results, choice, command)
    if choice.pool:
        return _pooled(rows, results, choice)
    refuse_several_runs(rows)
    last = {(row.method, row.setting, row.shots): row for row in rows}
    _refuse_mixture(list(last.values()))
    entries = {key: Entry(row, results.scores(row)) for key, row in last.items()}
    return ChosenRows(entries, choice.hyper)


def refuse_several_runs(rows: Sequence[Row]) -> None:
    """Rows of several seeds or training runs are not to be mixed, nor one of them chosen unseen.

    Nor are rows whose pictures were seen in different numbers of views.
    """
    for fact in (SEEDS, MODELS, VIEWS):
        values = different_values(fact, rows)
        if len(values) > 1 and (fact is not MODELS or mixed_models(rows)):
            raise FewgraftError(
                f"there are rows of different {fact.name}: {', '.join(map(str, values))}", fact.hint
            )


def run_of(row: Row) -> tuple[int, str]:
    """Which run a row is of: the seed of its episodes, and the folder of its models."""
    return row.episode_settings["seed"], row.models


def _pooled(rows: Sequence[Row], results: Results, choice: Choice) -> ChosenRows:
    """One entry per (method, setting, shots), of the same runs each."""
    runs = sorted({run_of(row) for row in rows})
    if len(runs) < 2:
        raise FewgraftError(
            "there is one run, and nothing to pool",
            "Make more: fewgraft bench run ... --seeds 0,1,2, or --models RUN,RUN",
        )
    groups: dict[RowKey, dict[tuple[int, str], Row]] = {}
    for row in rows:
        groups.setdefault((row.method, row.setting, row.shots), {})[run_of(row)] = row
    for (method, setting, shots), group in groups.items():
        for seed, models in (run for run in runs if run not in group):
            raise FewgraftError(
                f"{method}, {setting}, {shots}-shot, has no row of seed {seed} and {models}",
                "Run the same command as for the others; what is there is not computed again.",
            )
    for run in runs:
        _refuse_mixture([group[run] for group in groups.values()])
    entries = {
        key: pooled_entry([group[run] for run in runs], results) for key, group in groups.items()
    }
    seeds, folders = (list(dict.fromkeys(map(str, part))) for part in zip(*runs, strict=True))
    named = f"seeds {', '.join(seeds)}"
    named += f", models {', '.join(folders)}" if len(folders) > 1 else ""
    return ChosenRows(entries, choice.hyper, f"{len(runs)} runs ({named})")


def pooled_entry(rows: Sequence[Row], results: Results) -> Entry:
    """Means over runs; what stands for an interval is their standard deviation."""

    def over_runs(metric: str) -> tuple[float | None, float | None]:
        means = torch.tensor([row.interval(metric).mean for row in rows], dtype=torch.float64)
        found = (means.mean().item(), means.std().item())
        return (None, None) if math.isnan(found[0]) else found

    metrics = {metric: over_runs(metric) for metric in METRICS}
    scores = join_scores(results.scores(row) for row in rows)
    return Entry(rows[-1].model_copy(update={"metrics": metrics}), scores, len(rows))


def no_rows(results: Results, choice: Choice, command: str) -> NoRowsError:
    """With the command that makes them."""
    options = choice.options
    recipe = next((row.recipe for row in results.rows()), "RECIPE")
    out = shlex.quote(str(results.folder))
    return NoRowsError(
        f"{results.folder} has no rows for this table{options and ' with'}{options}",
        f"Make them: fewgraft bench run {recipe} {command}{options} --out {out}",
    )


@dataclass(frozen=True)
class SharedFact:
    """Something that rows must share to have the same queries."""

    name: str
    of: Callable[[Row], object]
    hint: str


_OWN_FOLDER = "Keep them in folders of their own (fewgraft bench run ... --out FOLDER)."
_OR_POOL = "or pool them with --pool."
SEEDS = SharedFact(
    "seeds", lambda row: row.episode_settings["seed"], f"Choose one with --seed, {_OR_POOL}"
)
MODELS = SharedFact(
    "training runs", lambda row: row.models, f"Choose one with --models FOLDER, {_OR_POOL}"
)
VIEWS = SharedFact("numbers of views", lambda row: row.views, "Choose one with --views.")
FACTS = (
    SharedFact("data sets", lambda row: f"{row.data} ({row.content[:8]})", _OWN_FOLDER),
    SharedFact("splits", lambda row: row.split, "Choose one with --split."),
    SharedFact("numbers of episodes", lambda row: row.episodes, "Choose one with --episodes."),
    SEEDS,
    SharedFact("numbers of classes", lambda row: row.ways, _OWN_FOLDER),
    SharedFact("numbers of queries", lambda row: row.episode_settings["queries"], _OWN_FOLDER),
    SharedFact(
        "numbers of base queries", lambda row: row.episode_settings["base_queries"], _OWN_FOLDER
    ),
)
SHOTS = SharedFact("shots", lambda row: row.shots, "")


def different_values(fact: SharedFact, rows: Iterable[Row]) -> list[object]:
    """What a fact is in these rows, each value once."""
    return list(dict.fromkeys(fact.of(row) for row in rows))


def _refuse_mixture(rows: Sequence[Row]) -> None:
    for fact in FACTS:
        values = different_values(fact, rows)
        if len(values) > 1:
            raise FewgraftError(
                f"the rows of this table have different {fact.name}: "
                + ", ".join(sorted(map(str, values))),
                f"{fact.hint} The last row of each method, setting and shots counts.",
            )
    hashes: dict[tuple[str, int], str] = {}
    for row in rows:
        if hashes.setdefault((row.setting, row.shots), row.episode_hash) != row.episode_hash:
            raise FewgraftError(
                f"the rows of {row.setting}, {row.shots}-shot, have different unlabelled sets",
                _OWN_FOLDER,
            )


def mixed_models(rows: Sequence[Row]) -> str:
    """A caution where rows that should share a model do not."""
    weights: dict[str, set[str]] = {}
    for row in rows:
        weights.setdefault(row.stage, set()).add(row.weights)
    return ", ".join(
        f"caution: {len(found)} different models are called {stage}"
        for stage, found in weights.items()
        if len(found) > 1
    )
