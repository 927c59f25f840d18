"""The benchmark: every method in every setting on the same frozen episodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fewgraft.bench.results import Row
from fewgraft.bench.rows import (
    code_of,
    job_record,
    machine_of,
    measured,
    method_identity,
    versions,
)
from fewgraft.data.catalogue import open_data
from fewgraft.data.store import ImageStore
from fewgraft.devices import CPU
from fewgraft.episodes import (
    SETTINGS,
    Episodes,
    EpisodeSettings,
    Pools,
    QueryLabels,
    sample_episodes,
)
from fewgraft.errors import FewgraftError, nearest
from fewgraft.feature_set import FeatureSet
from fewgraft.imported import ImportedFeatures, is_import, open_import
from fewgraft.methods import method_spec
from fewgraft.methods.base import Method, MethodSpec
from fewgraft.metrics import METRICS, Scores, join_scores, summarise
from fewgraft.progress import track
from fewgraft.split_features import SplitFeatures, chunks
from fewgraft.training.recipe import Recipe
from fewgraft.zoo import stage_model


@dataclass(frozen=True)
class Job:
    """One row to be: all that determines its numbers."""

    recipe: str  # name, for the record
    data: str
    method: str  # name, or Python file
    hyper: dict[str, Any]
    episode_settings: EpisodeSettings
    episodes: int
    models: Path
    views: int = 1  # of each picture, whose features are averaged

    @property
    def spec(self) -> MethodSpec:
        """The method's entry in the registry."""
        return method_spec(self.method)

    @property
    def configured(self) -> Method:
        """The method with this job's hyper-parameters."""
        return self.spec.method.changed(**self.hyper)

    @property
    def chunks(self) -> list[range]:
        """Consecutive episodes that are computed together."""
        return chunks(self.episodes, self.episode_settings, self.configured)

    def __str__(self) -> str:
        """For progress."""
        settings = self.episode_settings
        views = f", {self.views} views" if self.views > 1 else ""
        return f"{self.spec.name}, {settings.setting}, {settings.shots}-shot{views}"


def jobs(
    recipe: Recipe,
    models: Path,
    methods: Sequence[str],
    settings: Sequence[str],
    shots: Sequence[int],
    episodes: int,
    split: str = "test",
    seed: int = 0,
    changes: dict[str, Any] | None = None,
    views: int = 1,
) -> list[Job]:
    """All combinations that make sense, cheap methods first."""
    for setting in settings:
        if setting not in SETTINGS:
            raise FewgraftError(f"there is no setting '{setting}'", nearest(setting, SETTINGS))
    for name in methods if views > 1 else ():
        method = method_spec(name).method
        if method.moves_network or method.uses_pictures:
            raise FewgraftError(
                f"'{name}' looks at pictures itself and takes them as they are",
                "Leave --views out, or name methods on features: --methods all-features.",
            )
    found = [
        Job(
            recipe.name,
            recipe.data,
            name,
            recipe.hyper(name, k),
            EpisodeSettings.paper(setting, k, split=split, seed=seed, **(changes or {})),
            episodes,
            models,
            views,
        )
        for setting in settings
        for k in shots
        for name in methods
        if makes_sense(method_spec(name), setting)
    ]
    return sorted(found, key=lambda job: job.configured.moves_network)


def makes_sense(spec: MethodSpec, setting: str) -> bool:
    """Whether a method belongs into the tables of a setting.

    Without U there is nothing for a method that uses one; with U, one that does not use
    it answers as it does without.
    """
    kind = SETTINGS[setting]
    if (kind.unlabelled != "none") != spec.method.uses_unlabelled:
        return False
    return spec.joint if kind.incremental else spec.regular


class Bench:
    """Data, models and episodes, each opened once; `features` is where features are kept.

    Networks and methods compute on `device`.
    """

    def __init__(self, features: Path | None = None, device: torch.device = CPU) -> None:
        self._features = features
        self.device = device
        self._stores: dict[str, ImageStore] = {}
        self._split_features: dict[tuple[str, Path, str, str, int], SplitFeatures] = {}
        self._imports: dict[Path, tuple[FeatureSet, str]] = {}
        self._episodes: dict[tuple[str, EpisodeSettings, int], tuple[Episodes, QueryLabels]] = {}

    def store(self, data: str) -> ImageStore:
        """A data set by name."""
        if data not in self._stores:
            self._stores[data] = open_data(data)
        return self._stores[data]

    def split_features(self, job: Job) -> SplitFeatures:
        """The model of the job's stage over the split's pictures."""
        split = job.episode_settings.split
        key = (job.data, job.models, job.spec.stage, split, job.views)
        if key not in self._split_features and is_import(job.models):
            if job.views > 1:
                raise FewgraftError("imported features are of one view", "Leave --views out.")
            imported, backbone = self._import(job.models)
            there = ImportedFeatures(imported, backbone, split, self.device)
            self._split_features[key] = there
        elif key not in self._split_features:
            model = stage_model(job.models, job.spec.stage).to(self.device)
            store = self.store(job.data)
            opened = SplitFeatures(model, store, split, self._features, job.models, views=job.views)
            self._split_features[key] = opened
        return self._split_features[key]

    def _import(self, folder: Path) -> tuple[FeatureSet, str]:
        """Imported features and what their backbone is called."""
        if folder not in self._imports:
            self._imports[folder] = open_import(folder)
        return self._imports[folder]

    def pools(self, data: str, models: Path, split: str) -> Pools:
        """What episodes of a split are drawn from."""
        if is_import(models):
            return self._import(models)[0].pools(split)
        return Pools.of(self.store(data), split)

    def episodes(self, job: Job) -> tuple[Episodes, QueryLabels]:
        """The job's frozen episodes."""
        key = (job.data, job.episode_settings, job.episodes)
        if key not in self._episodes:
            pools = self.pools(job.data, job.models, job.episode_settings.split)
            self._episodes[key] = sample_episodes(pools, job.episode_settings, job.episodes)
        return self._episodes[key]

    def chunk(self, job: Job, chunk: range) -> Scores:
        """Scores of consecutive episodes."""
        return self.split_features(job).scores(job.configured, *self.episodes(job), chunk)

    def chunk_of_each(self, jobs: Sequence[Job], chunk: range) -> list[Scores]:
        """The same for jobs whose methods learn the same and answer differently."""
        methods = [job.configured for job in jobs]
        return self.split_features(jobs[0]).scores_of_each(methods, *self.episodes(jobs[0]), chunk)

    def logits(self, job: Job, rows: slice) -> torch.Tensor:
        """[e, Q, N_b+N] of some episodes."""
        return self.split_features(job).logits(job.configured, self.episodes(job)[0], rows)

    def identity(self, job: Job) -> dict[str, Any]:
        """All that a row's numbers depend on."""
        features = self.split_features(job)
        return {
            "episode_settings": job.episode_settings.record(),
            "episodes": job.episodes,
            **({"views": job.views} if job.views > 1 else {}),
            **method_identity(job, features, self.learnt(job)),
        }

    def learnt(self, job: Job) -> str:
        """A name for exactly what the job's method has learnt beforehand; "" for nothing."""
        return self.split_features(job).learnt_hash(job.configured, job.episode_settings.shots)

    def row(
        self, job: Job, scores: Scores, seconds: float, threads: int, feature_seconds: float = 0.0
    ) -> Row:
        """The complete record of a finished job; features took time of their own."""
        features, (episodes, _) = self.split_features(job), self.episodes(job)
        machine = machine_of(self.device, threads)
        figures = summarise(scores)
        return Row(
            setting=job.episode_settings.setting,
            shots=job.episode_settings.shots,
            split=job.episode_settings.split,
            episode_hash=episodes.hash,
            n_base=episodes.n_base,
            ways=job.episode_settings.ways,
            metrics={name: measured(figures[name]) for name in METRICS},
            **job_record(job, features, self.identity(job), seconds, feature_seconds, machine),
        )


def job_of(row: Row) -> Job:
    """The job that a row records."""
    return Job(
        row.recipe,
        row.data,
        f"{row.file}:{row.method}" if row.file else row.method,
        row.hyper,
        EpisodeSettings(**row.episode_settings),
        row.episodes,
        Path(row.models),
        row.views,
    )


def rerun(row: Row, bench: Bench) -> tuple[Scores, list[str]]:
    """Compute a row again from its own record; what is different now, in words."""
    job = job_of(row)
    features, (episodes, _) = bench.split_features(job), bench.episodes(job)
    now = {
        "weights": (row.weights, features.weights_hash),
        "what was learnt": (row.learnt, bench.learnt(job)),
        "the method's file": (row.code, code_of(job.method)),
        "data": (row.content, features.content),
        "episodes": (row.episode_hash, episodes.hash),
        **{f"version of {k}": (row.versions.get(k), v) for k, v in versions().items()},
    }
    different = [f"{what}: {old} then, {new} now" for what, (old, new) in now.items() if old != new]
    scores = join_scores(bench.chunk(job, chunk) for chunk in track(job.chunks, str(job)))
    return scores, different
