"""Where pictures and prototypes of one episode lie in feature space (the paper's Fig. 3).

The episode's novel classes and as many base classes, up to 30 test pictures of each, under two
methods side by side. Pictures, base weights and prototypes are directions of one space, embedded
together by t-SNE. The base classes are those most like the novel ones, where the trouble is, or
drawn at random as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from fewgraft.bench.runner import Bench, Job
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices, KeyStream
from fewgraft.errors import FewgraftError, nearest
from fewgraft.methods.base import NovelWeights
from fewgraft.methods.moving import AdaptedSolution
from fewgraft.prototypes import cosine_logits, directions
from fewgraft.split_features import SplitFeatures

METHODS = ("+pr", "proposed-without-adaptation")
PICTURES = 30  # of a class
BASES = ("nearest", "random")
# Ten colours, light enough on white and dark enough on black, that differ in lightness as well.
COLOURS = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)


@dataclass(frozen=True)
class Shown:
    """What is looked at: the same pictures for every method."""

    names: tuple[str, ...]  # of the classes, base ones first
    base: tuple[int, ...]  # which base classes
    chosen: str  # how: one of `BASES`
    pictures: Tensor  # [n]
    places: Tensor  # [n] the class of each picture, a position in `names`


@dataclass(frozen=True)
class FeatureSpace:
    """The shown pictures and class weights under one method, as directions."""

    title: str
    features: Tensor  # [n, d]
    weights: Tensor  # [classes, d], base ones first

    def nearest_right(self, places: Tensor) -> float:
        """Share of the pictures that are nearest to the weight of their own class."""
        answers = cosine_logits(self.features, self.weights).argmax(-1)
        return (answers == places).double().mean().item()

    def embedded(self, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Points [n, 2] and weights [classes, 2] on the plane."""
        from sklearn.manifold import TSNE  # takes a second to import

        together = torch.cat([self.features, self.weights]).numpy()
        perplexity = min(30.0, (len(together) - 1) / 3)
        plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(together)
        return plane[: len(self.features)], plane[len(self.features) :]


def choose(bench: Bench, job: Job, number: int, base: str = "nearest", seed: int = 0) -> Shown:
    """Classes and pictures of episode `number`; `base` says which base classes (`BASES`)."""
    episodes, _ = bench.episodes(job)
    store, stream = bench.store(job.data), KeyStream(seed, number)
    split = job.episode_settings.split
    novel = episodes.classes[number].tolist()
    if base not in BASES:
        raise FewgraftError(f"base classes cannot be chosen by '{base}'", nearest(base, BASES))
    if base == "nearest":
        chosen = nearest_base(bench.split_features(job), novel)
    else:
        chosen = stream.choose(episodes.n_base, min(len(novel), episodes.n_base)).tolist()
    support = episodes.support[number].numpy()
    groups = [_some_of(store, Part(f"base/{split}"), label, support, stream) for label in chosen]
    groups += [_some_of(store, Part(f"novel/{split}"), label, support, stream) for label in novel]
    return Shown(
        names=tuple(store.name_of(label) for label in [*chosen, *novel]),
        base=tuple(chosen),
        chosen=base,
        pictures=torch.from_numpy(np.concatenate(groups)),
        places=torch.repeat_interleave(torch.tensor([len(group) for group in groups])),
    )


def nearest_base(seen: SplitFeatures, novel: Sequence[int]) -> list[int]:
    """For each novel class in turn, the base class most like it that is not taken yet.

    A novel class is the mean direction of its pictures: which base classes are looked at must not
    depend on the supports of an episode.
    """
    pools = seen.store.by_class(Part(f"novel/{seen.split}"))
    means = [seen.bank[torch.from_numpy(pools[label])].mean(0) for label in novel]
    alike = cosine_logits(torch.stack(means), seen.weights)  # [N, N_b]
    found: list[int] = []
    for row in alike.argsort(dim=1, descending=True).tolist()[: alike.shape[1]]:
        found.append(next(label for label in row if label not in found))
    return found


def _some_of(
    store: ImageStore, part: Part, label: int, support: Indices, stream: KeyStream
) -> Indices:
    """Up to 30 pictures of a class that are not in the support."""
    pool = store.by_class(part).get(label, np.empty(0, np.int64))
    pool = pool[~np.isin(pool, support)]
    return pool[stream.choose(len(pool), min(PICTURES, len(pool)))]


@torch.no_grad()
def feature_space(bench: Bench, job: Job, number: int, shown: Shown) -> FeatureSpace:
    """The method of a job learns episode `number`; where it then sees the pictures and classes."""
    seen, (episodes, _) = bench.split_features(job), bench.episodes(job)
    method = job.configured
    rows = slice(number, number + 1)
    solution = method.fit(seen.task(episodes, rows, method))
    base = list(shown.base)
    if isinstance(solution, NovelWeights):
        features = seen.bank[shown.pictures]
        weights = torch.cat([seen.weights[base], solution.novel[0]])
    elif isinstance(solution, AdaptedSolution):
        (adapted,) = solution.episodes
        features = solution.network.features(shown.pictures, adapted.parameters)
        weights = torch.cat([adapted.base[base], adapted.novel])
    else:
        raise FewgraftError(
            f"'{job.method}' answers without prototypes: there is nothing to draw for them",
            f"Such as: {', '.join(METHODS)}",
        )
    return FeatureSpace(job.spec.title, features, directions(weights))


def draw_spaces(shown: Shown, views: Sequence[FeatureSpace], seed: int = 0) -> Figure:
    """A panel a method; one legend, as colours mean the same everywhere."""
    figure = Figure(figsize=(5.6 * len(views), 6.4), layout="constrained")
    panels = figure.subplots(1, len(views), squeeze=False)[0]
    for axes, one in zip(panels, views, strict=True):
        _draw_panel(axes, shown, one, seed)
    _draw_legend(figure, shown)
    return figure


def describe(shown: Shown, views: Sequence[FeatureSpace], number: int) -> str:
    """What the figure shows, in words."""
    shares = ", ".join(f"{v.title} {100 * v.nearest_right(shown.places):.1f} %" for v in views)
    which = {"nearest": "the base classes most like them", "random": "as many random base classes"}
    return (
        f"t-SNE of {len(shown.pictures)} test pictures of the novel classes of episode {number} "
        f"and of {which[shown.chosen]}; prototypes are triangles. Nearest to the prototype of "
        f"their own class among these classes: {shares}."
    )


def _draw_panel(axes: Axes, shown: Shown, one: FeatureSpace, seed: int) -> None:
    points, triangles = one.embedded(seed)
    for place in range(len(shown.names)):
        colour = COLOURS[place % len(COLOURS)]
        inside = colour if place >= len(shown.base) else "none"
        mine = points[shown.places.numpy() == place]
        axes.scatter(mine[:, 0], mine[:, 1], s=20, facecolors=inside, edgecolors=colour)
    for place, (x, y) in enumerate(triangles):
        colour = COLOURS[place % len(COLOURS)]
        axes.scatter(
            x, y, s=170, marker="^", color=colour, edgecolors="black", linewidths=1.5, zorder=3
        )
    right = 100 * one.nearest_right(shown.places)
    axes.set_title(f"{one.title}\n{right:.1f} % nearest to their own prototype", fontsize=11)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_alpha(0.3)


def _draw_legend(figure: Figure, shown: Shown) -> None:
    marks = [_triangle(place) for place in range(len(shown.names))]
    labels, base = ["x"] * len(marks), len(shown.base)
    look: dict[str, Any] = {"ncols": 3, "frameon": False}
    left = figure.legend(marks[:base], labels[:base], loc="outside lower left", **look)
    right = figure.legend(marks[base:], labels[base:], loc="outside lower right", **look)
    left.set_title("base classes (rings)")
    right.set_title("novel classes (discs)")
    # Set afterwards: a name may hold $ or begin with _, which mean something to matplotlib.
    for text, name in zip(left.get_texts() + right.get_texts(), shown.names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def _triangle(place: int) -> Line2D:
    colour = COLOURS[place % len(COLOURS)]
    return Line2D(
        [], [], linestyle="", marker="^", markersize=9, color=colour, markeredgecolor="black"
    )
