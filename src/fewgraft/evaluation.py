"""`fewgraft.evaluate`: a method on the frozen episodes of a data set, in one call.

It goes the benchmark's way (`split_features`), so that it gives the benchmark's numbers.
"""

import copy
import dataclasses
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fewgraft.data.catalogue import open_data
from fewgraft.data.store import ImageStore
from fewgraft.devices import CPU, choose_device
from fewgraft.episodes import Episodes, EpisodeSettings, Pools, QueryLabels, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.feature_set import Array, FeatureSet
from fewgraft.methods import method_spec, methods
from fewgraft.methods.base import Method
from fewgraft.metrics import NAMES, Interval, Paired, Scores, join_scores, paired, summarise
from fewgraft.model import CosineModel, load_model
from fewgraft.progress import track
from fewgraft.split_features import EpisodeFeatures, SplitFeatures, chunks
from fewgraft.training.recipe import load_recipe, recipe_names, tuned_method
from fewgraft.zoo import models_folder, stage_model, where_to_get

OBJECT_STAGE = "algorithm-2"  # whose model a method object gets: the last stage of training
COMPARED = ("acc", "delta", "b_all", "n_all")
MISSING = "–"
IN_PERCENT = "; %, ± 95 % interval over episodes"
Arrays = tuple[Array, Array, Array]  # features, labels, parts


def evaluate(
    method: str | Path | Method,
    data: str | ImageStore | FeatureSet | Arrays = "icons",
    setting: str | EpisodeSettings = "s2i",
    shots: int = 1,
    episodes: int = 600,
    model: str | Path | CosineModel | None = None,
    device: str | torch.device | None = None,
    *,
    split: str = "test",
    seed: int = 0,
    views: int = 1,
) -> "Evaluation":
    """Score a method on frozen episodes; `fewgraft bench run` gives the same numbers.

    Args:
        method: Name of a method, a Python file that defines one, or a `Method`. A name stands for
            the hyper-parameters that the recipe of the data set chose on validation episodes; a
            `Method` is used as it is.
        data: Name of a data set, an `ImageStore`, or features of any network: a `FeatureSet`, or
            plain arrays (features [n, d], labels [n], parts [n]) that one is made of.
        setting: "s2i", "s2i-transductive", "incremental", "semi-fsl", "transductive-fsl" or "fsl",
            each with the paper's numbers of pictures; or `EpisodeSettings`, which then say shots,
            split and seed as well.
        shots: Support pictures per novel class.
        episodes: How many, at least 2.
        model: Folder of a model, folder of a training run, or a `CosineModel`. None takes the
            trained model for the data set and the method's stage of training; a `Method` gets that
            of Algorithm 2, or the one that its pieces were learnt on.
        device: Such as "cuda". None leaves a `CosineModel` where it is and is the CPU otherwise.
        split: "test" or "val".
        seed: Names the sequence of episodes.
        views: Features are means over so many views of each picture, a little shifted or turned.

    Returns:
        An `Evaluation` with the scores of every episode.

    Raises:
        FewgraftError: A name is not known, the model knows other classes, the data has too few
            pictures for the episodes, or the device is not there.

    Example:
        >>> ours = fewgraft.evaluate("proposed-without-adaptation", shots=1, episodes=20)
        >>> ours.scores.acc.shape
        torch.Size([20])
        >>> rival = fewgraft.evaluate("meta-inc-baseline", setting="incremental", episodes=20)
        >>> ours.compare(rival).summary()["acc"].difference.mean > 0
        True
    """
    settings = _episode_settings(setting, shots, split, seed)
    if episodes < 2:
        raise FewgraftError(f"an interval needs at least 2 episodes, not {episodes}")
    place = None if device is None else choose_device(device)
    source = _opened(data)
    chosen = _choose(method, _name(source), settings)
    features = _features(source, model, chosen.stage, settings.split, place, views)
    sampled, labels = sample_episodes(_pools(source, settings.split), settings, episodes)
    _ = features.bank  # first, so that computing it has a progress of its own
    parts = chunks(episodes, settings, chosen.method)
    scores = join_scores(
        features.scores(chosen.method, sampled, labels, part)
        for part in track(parts, chosen.title, len(parts))
    )
    queries = _queries_hash(source, sampled, labels)
    return Evaluation(chosen.title, chosen.method, _name(source), settings, scores, queries)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of one method on frozen episodes, as `evaluate` returns them; `print` shows a table.

    Attributes:
        title: The method, as tables name it.
        method: What was run, with its hyper-parameters.
        data: Name of the data.
        settings: What determined the episodes.
        scores: Accuracies of every episode, each a tensor [E] of shares from 0 to 1.
        queries: A hash of the queries. Evaluations that share it can be compared.

    Example:
        >>> found = fewgraft.evaluate("nearest-prototype", setting="fsl", shots=5, episodes=20)
        >>> sorted(found.summary())[:3]
        ['acc', 'b_all', 'b_b']
        >>> found.to_dict()["settings"]["shots"]
        5
    """

    title: str
    method: Method
    data: str
    settings: EpisodeSettings
    scores: Scores = field(repr=False)
    queries: str = field(repr=False)

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self.scores.acc)

    def __str__(self) -> str:
        """The table."""
        return self.table()

    def summary(self) -> dict[str, Interval]:
        """Mean and 95 % interval of every metric; NaN for what the setting does not have.

        Returns:
            An `Interval` per metric: acc, delta, b_all, n_all, b_b, n_n, delta_b, delta_n and
            harmonic.
        """
        return summarise(self.scores)

    def table(self, *others: "Evaluation") -> str:
        """A table of this evaluation and `others`, one line each, to be printed.

        Args:
            others: Further evaluations.

        Returns:
            Plain text: metrics in percent, Acc with its 95 % interval.
        """
        shown = (self, *others)
        lines = [e._line() for e in shown]
        notes = dict.fromkeys(e._note() for e in shown)
        table = _aligned([("Method", "Setting", *NAMES.values()), *lines])
        return "\n".join([table, *(f"{note}{IN_PERCENT}" for note in notes)])

    def compare(self, other: "Evaluation") -> "Difference":
        """This evaluation minus another one, episode by episode.

        Args:
            other: An evaluation on the same queries: same data, split, seed and number of episodes.
                Settings and shots may differ, because episodes share their queries.

        Returns:
            A `Difference`.

        Raises:
            FewgraftError: The queries are not the same.
        """
        if self.queries != other.queries:
            raise FewgraftError(
                f"'{self.title}' ({self._note()}) and '{other.title}' ({other._note()}) were not "
                "evaluated on the same queries",
                "Use the same data, split, seed and number of episodes, and settings that both "
                "have base classes or both have none.",
            )
        return Difference(self, other)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the scores of single episodes, as JSON can hold it.

        Returns:
            Method, hyper-parameters, data, settings, number of episodes, and the mean and half
            interval of every metric as shares; None for what the setting does not have.
        """
        return {
            "title": self.title,
            "method": type(self.method).__name__,
            "hyper": _hyper(self.method),
            "data": self.data,
            "settings": self.settings.record(),
            "episodes": len(self),
            "metrics": {
                name: {"mean": _number(value.mean), "half": _number(value.half)}
                for name, value in self.summary().items()
            },
        }

    @property
    def _episodes(self) -> str:
        return f"{self.settings.setting}, {self.settings.shots}-shot"

    def _line(self) -> tuple[str, ...]:
        values = ((name, value) for name, value in self.summary().items() if name in NAMES)
        numbers = {name: _percent(value, half=name == "acc") for name, value in values}
        return (self.title, self._episodes, *(numbers[name] for name in NAMES))

    def _note(self) -> str:
        settings = self.settings
        return f"{len(self)} {settings.split} episodes of {self.data}, {settings.ways}-way"


@dataclass(frozen=True, eq=False)
class Difference:
    """A − B, episode by episode, as `Evaluation.compare` returns it; `print` shows a table.

    Pairing takes out what is common to both, such as hard episodes: the interval of the difference
    is far narrower than those of A and B.

    Attributes:
        a: One evaluation.
        b: The other one, on the same queries.

    Example:
        >>> refined = fewgraft.evaluate("proposed-without-adaptation", episodes=20)
        >>> plain = fewgraft.evaluate("meta-inc-baseline", setting="incremental", episodes=20)
        >>> gain = refined.compare(plain).summary()["acc"]
        >>> gain.wins + gain.ties + gain.losses
        20
    """

    a: Evaluation
    b: Evaluation

    def __str__(self) -> str:
        """The table."""
        return self.table()

    def summary(self) -> dict[str, Paired]:
        """The difference of Acc, Δ, b/all and n/all.

        Returns:
            A `Paired` per metric: the difference with its 95 % interval, and in how many episodes A
            is above, equal to and below B.
        """
        a, b = self.a.scores, self.b.scores
        return {name: paired(getattr(a, name), getattr(b, name)) for name in COMPARED}

    def table(self) -> str:
        """A table of A, B and A − B, to be printed.

        Returns:
            Plain text: metrics in percent with their 95 % intervals.
        """
        found = self.summary()
        columns = (self.a.summary(), self.b.summary(), {m: found[m].difference for m in COMPARED})
        lines = [
            (NAMES[m], *(_percent(c[m], half=True) for c in columns))
            for m in COMPARED
            if not math.isnan(found[m].difference.mean)
        ]
        counts = found["acc"]
        return "\n".join(
            [
                _aligned([("", "A", "B", "A − B"), *lines]),
                f"A: {self.a.title} ({self.a._episodes})",
                f"B: {self.b.title} ({self.b._episodes})",
                f"{self.a._note()}{IN_PERCENT}",
                f"Acc of A is higher in {counts.wins} episodes, equal in {counts.ties} and lower "
                f"in {counts.losses}.",
            ]
        )


# --- what is evaluated ---


@dataclass(frozen=True)
class _Chosen:
    """A method that is ready to run, and the stage of training whose features it works on."""

    title: str
    method: Method
    stage: str


def _choose(method: str | Path | Method, data: str, settings: EpisodeSettings) -> _Chosen:
    if isinstance(method, Method):
        return _Chosen(_short(method), method, _stage_of(method))
    if not isinstance(method, str | Path):
        raise FewgraftError(
            f"{method!r} is no method", "Give a name, a Python file or an object of a Method."
        )
    spec = method_spec(str(method))
    if settings.kind.incremental and not spec.joint:
        raise FewgraftError(
            f"'{spec.name}' does not tell base and novel classes apart",
            "Evaluate it in fsl, transductive-fsl or semi-fsl.",
        )
    for name in recipe_names():
        recipe = load_recipe(name)
        if recipe.data == data:
            return _Chosen(
                spec.title, tuned_method(recipe, str(method), settings.shots), spec.stage
            )
    return _Chosen(spec.title, spec.method, spec.stage)


def _stage_of(method: Method) -> str:
    """Where a method object stands: on the model that its pieces were learnt on, else the last."""
    return methods()[method.pieces].stage if method.pieces in methods() else OBJECT_STAGE


def _short(method: Method) -> str:
    """The class, and the hyper-parameters that are not its defaults."""
    shown: list[str] = []
    if dataclasses.is_dataclass(method):
        values = [(f, getattr(method, f.name)) for f in dataclasses.fields(method)]
        shown = [f"{f.name}={value!r}" for f, value in values if value != f.default]
    return f"{type(method).__name__}({', '.join(shown)})"


def _hyper(method: Method) -> dict[str, Any]:
    return method.hyper if dataclasses.is_dataclass(method) else {}


def _episode_settings(
    setting: str | EpisodeSettings, shots: int, split: str, seed: int
) -> EpisodeSettings:
    if isinstance(setting, str):
        settings = EpisodeSettings.paper(setting, shots, split=split, seed=seed)
    else:
        settings = setting
        for name, value, default in (
            ("shots", shots, 1),
            ("split", split, "test"),
            ("seed", seed, 0),
        ):
            if value not in (default, getattr(settings, name)):
                raise FewgraftError(
                    f"{name} is {value}, but the settings say {getattr(settings, name)}",
                    f"EpisodeSettings say it: leave {name} out.",
                )
    if settings.split not in ("val", "test"):
        raise FewgraftError(
            f"methods are evaluated on test or val, not on {settings.split}",
            "The model was trained on train.",
        )
    return settings


# --- what it is evaluated on ---


def _opened(data: str | ImageStore | FeatureSet | Arrays) -> ImageStore | FeatureSet:
    if isinstance(data, str):
        return open_data(data)
    if isinstance(data, ImageStore | FeatureSet):
        return data
    if isinstance(data, tuple) and len(data) == 3:
        return FeatureSet(*data)
    raise FewgraftError(
        f"data is a {type(data).__name__}, which cannot be evaluated on",
        "Give a name, an ImageStore, a FeatureSet, or (features, labels, parts).",
    )


def _name(data: ImageStore | FeatureSet) -> str:
    return data.name if isinstance(data, FeatureSet) else data.manifest.name


def _pools(data: ImageStore | FeatureSet, split: str) -> Pools:
    return data.pools(split) if isinstance(data, FeatureSet) else Pools.of(data, split)


def _features(
    data: ImageStore | FeatureSet,
    model: str | Path | CosineModel | None,
    stage: str,
    split: str,
    device: torch.device | None,
    views: int,
) -> EpisodeFeatures:
    if isinstance(data, FeatureSet):
        if views != 1:
            raise FewgraftError("a FeatureSet has the features of one view: leave views out")
        if model is not None:
            raise FewgraftError("a FeatureSet has the features of its own network: leave model out")
        return data.of_split(split, device or CPU)
    opened, beside = _open_model(model, stage, data.manifest.name)
    if device is not None and device != opened.weight.device:
        opened = copy.deepcopy(opened).to(device)  # the caller's own model stays where it is
    return SplitFeatures(opened, data, split, models=beside, views=views)


def _open_model(
    model: str | Path | CosineModel | None, stage: str, data: str
) -> tuple[CosineModel, Path | None]:
    """The model, and the folder in which it lies beside others."""
    if isinstance(model, CosineModel):
        return model, None
    if model is None:
        try:
            return stage_model(models_folder(data), stage), models_folder(data)
        except FewgraftError as error:
            raise FewgraftError(error.problem, where_to_get(data, "model=")) from None
    folder = Path(model)
    if (folder / "model.json").is_file():
        return load_model(folder), folder.absolute().parent
    return stage_model(folder, stage), folder


def _queries_hash(data: ImageStore | FeatureSet, sampled: Episodes, labels: QueryLabels) -> str:
    """A name for the pictures that are asked for and for their classes."""
    content = data.content if isinstance(data, FeatureSet) else data.manifest.content
    digest = hashlib.sha256(content.encode())
    for tensor in (sampled.query, labels.query_labels):
        digest.update(f"{tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


# --- text ---


def _percent(value: Interval, *, half: bool) -> str:
    if math.isnan(value.mean):
        return MISSING
    return str(value) if half else f"{100 * value.mean:z.2f}"


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


def _aligned(rows: Iterable[tuple[str, ...]]) -> str:
    """Columns of text: the first one to the left, numbers to the right."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if place else text.ljust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
