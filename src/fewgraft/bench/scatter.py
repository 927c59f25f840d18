"""What a method gains among novel classes beside what it gains in all: one point per row.

Many methods make novel classes easier to tell from one another (n/n). Whether that helps the joint
classifier is another question: Acc falls where base pictures are taken for novel ones.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fewgraft.bench.comparison import compare
from fewgraft.bench.results import Results, Row
from fewgraft.errors import FewgraftError
from fewgraft.metrics import Interval

BASELINE = ("meta-inc-baseline", "incremental")
GAP = 4  # pixels between names in a line
# Where a name may be: points of distance from its own point, and angles, to the right first.
DISTANCES = (6, 16, 28, 42, 58, 76, 96)
TURNS = tuple(math.radians(turn) for turn in (0, 180, 30, -30, 150, -150, 60, -60, 120, -120))
BETTER, WORSE, REFERENCE = "#0072b2", "#d55e00", "#000000"


@dataclass(frozen=True)
class Gain:
    """What a row is ahead of the baseline, paired over the same queries."""

    row: Row
    novel: Interval  # in n/n
    joint: Interval  # in Acc


@dataclass(frozen=True)
class Scatter:
    """Rows of one setting and number of shots against the baseline that has no U."""

    baseline: Row
    gains: tuple[Gain, ...]  # the largest in Acc first

    @classmethod
    def of(cls, results: Results, setting: str, shots: int) -> "Scatter":
        """From a folder; of several rows of a method the last."""
        here = [row for row in results.rows() if row.shots == shots]
        baseline = [row for row in here if (row.method, row.setting) == BASELINE]
        chosen = {row.method: row for row in here if row.setting == setting}
        if not baseline or not chosen:
            raise FewgraftError(
                f"the results lack rows of {setting}, or of {BASELINE[0]}, at {shots} shots",
                f"`fewgraft bench run RECIPE --settings {BASELINE[1]},{setting}` computes them.",
            )
        found = [_gain(results, row.id, baseline[-1].id) for row in chosen.values()]
        found.sort(key=lambda gain: -gain.joint.mean)
        return cls(baseline[-1], tuple(found))

    def __str__(self) -> str:
        """How many gain in each."""
        ahead = [gain for gain in self.gains if gain.novel.mean > 0]
        row = self.gains[0].row
        return (
            f"{row.setting}, {row.shots}-shot, {row.episodes} episodes: "
            f"{len(ahead)} of {len(self.gains)} methods are ahead of {self.baseline.title} in n/n, "
            f"and {sum(gain.joint.mean > 0 for gain in ahead)} of these in Acc."
        )

    def table(self) -> str:
        """A line per method, in percentage points."""
        lines = [f"{'':<44}  {'n/n':>15}  {'Acc':>15}"]
        lines += [f"{g.row.title:<44}  {g.novel!s:>15}  {g.joint!s:>15}" for g in self.gains]
        return "\n".join(lines)


def _gain(results: Results, row: str, baseline: str) -> Gain:
    found = compare(results, row, baseline, metrics=("n_n", "acc"))
    novel, joint = (found.differences[metric].difference for metric in ("n_n", "acc"))
    return Gain(found.a.row, novel, joint)


def draw_scatter(scatter: Scatter) -> Figure:
    """n/n to the right, Acc upwards, both as gains over the baseline."""
    figure = Figure(figsize=(8.5, 6.5), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=REFERENCE, linewidth=0.8)
    axes.axvline(0, color=REFERENCE, linewidth=0.8)
    points = [
        Point(
            gain.row.method,
            100 * gain.novel.mean,
            100 * gain.joint.mean,
            BETTER if gain.joint.mean > 0 else WORSE,
        )
        for gain in scatter.gains
    ]
    for point in points:
        axes.plot(point.x, point.y, marker="o", markersize=4, color=point.colour, linestyle="none")
    axes.set_xlabel(f"n/n, gain over {scatter.baseline.title}, percentage points")
    axes.set_ylabel(f"Acc, gain over {scatter.baseline.title}, percentage points")
    axes.margins(0.15)
    axes.spines[["top", "right"]].set_visible(False)
    label_points(axes, points)
    return figure


@dataclass(frozen=True)
class Point:
    """A method and what it gains."""

    name: str
    x: float
    y: float
    colour: str


def label_points(axes: Axes, points: Sequence[Point]) -> None:
    """Names beside points, where no other name or point is; a line leads to a name further away."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw_without_rendering()  # so that places in the figure are known
    places = [axes.transData.transform((point.x, point.y)) for point in points]
    taken = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in places]
    x, y = axes.transData.transform((0, 0))
    taken += [
        Bbox.from_extents(x, axes.bbox.y0, x + 1, axes.bbox.y1),  # the lines of no gain
        Bbox.from_extents(axes.bbox.x0, y, axes.bbox.x1, y + 1),
    ]
    for point in sorted(points, key=lambda point: (-point.y, point.x)):
        for distance, turn in itertools.product(DISTANCES, TURNS):
            across, up = distance * math.cos(turn), distance * math.sin(turn)
            label = axes.annotate(
                point.name,
                (point.x, point.y),
                (across, up),
                textcoords="offset points",
                fontsize=8,
                color=point.colour,
                horizontalalignment="left" if across > -1 else "right",
                verticalalignment="center",
                arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": point.colour}
                if distance > DISTANCES[0]
                else None,
            )
            label.set_in_layout(False)
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer).padded(GAP, 0)  # without the line
            inside = axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 and axes.bbox.y0 < box.y0
            if inside and not box.count_overlaps(taken):
                taken.append(box)
                break
            label.remove()
