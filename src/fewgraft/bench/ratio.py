"""How much a method depends on what is in U (the paper's Fig. 4).

Three things about U vary, each while the rest stays as it is: the share of novel pictures at a
fixed |U|; the number of distractor classes, which are neither base nor novel in the episode; and
how unequally U is shared out among the novel classes, where there are no others. All points of a
curve are on the same classes, supports and queries, so that the drop δ from its best to
its worst point has the narrow interval of a paired difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.table import Table

from fewgraft.bench.results import Results, Row
from fewgraft.bench.rows import Engine, in_this_process, run
from fewgraft.bench.runner import Bench, jobs, makes_sense
from fewgraft.episodes import EpisodeSettings, Pools, check_pools
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec
from fewgraft.methods import methods as methods_by_name
from fewgraft.metrics import Interval, paired
from fewgraft.training.recipe import Recipe

METHODS = (
    "+pr",
    "+pr+bias",
    "proposed-without-adaptation",
    "proposed-without-adaptation+bias",
)
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
DISTRACTORS = (0, 2, 4, 6)
CONCENTRATIONS = (1, 2, 5, 0)  # of a Dirichlet distribution; 0: equal numbers
MOST_COLUMNS = 4  # methods side by side
# Told apart by readers of any colour vision, and by their markers in print.
COLOURS = ("#d55e00", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#000000")
MARKERS = "osDv^<>"
LINES = ("-", (0, (4, 3)), "-", "--", "-.", ":", "-")  # two that coincide both show


@dataclass(frozen=True)
class Sweep:
    """One thing about U, and the values it takes."""

    field: str  # of EpisodeSettings
    values: tuple[float, ...]
    title: str
    setting: str = "s2i"

    @classmethod
    def of_shares(cls, values: Sequence[float] = SHARES) -> "Sweep":
        """Novel pictures in U, |U| fixed."""
        return cls("novel_share", tuple(sorted(set(values))), "share of novel pictures in U")

    @classmethod
    def of_distractors(cls, values: Sequence[int] = DISTRACTORS) -> "Sweep":
        """Classes in U, on top of the rest, that are neither base nor novel."""
        return cls("distractors", tuple(sorted(set(values))), "distractor classes in U")

    @classmethod
    def of_imbalance(cls, values: Sequence[int] = CONCENTRATIONS) -> "Sweep":
        """Novel classes share U out by a Dirichlet distribution, from most unequal to equal."""
        ordered = sorted(set(values), key=lambda value: value or math.inf)
        return cls("dirichlet", tuple(ordered), "concentration of class counts in U", "semi-fsl")

    def label(self, value: float) -> str:
        """A value as readers see it."""
        return "equal" if self.field == "dirichlet" and not value else f"{value:g}"

    def places(self, values: Sequence[float]) -> Sequence[float]:
        """Where values are on an axis."""
        return range(len(values)) if self.field == "dirichlet" else values

    def possible(
        self, pools: Pools, shots: int, split: str
    ) -> tuple[tuple[float, ...], dict[float, str]]:
        """The values that the pictures suffice for, and why the others are left out."""
        there, left_out = [], {}
        for value in self.values:
            settings = EpisodeSettings.paper(
                self.setting, shots, split=split, **{self.field: value}
            )
            try:
                check_pools(pools, settings)
                there.append(value)
            except FewgraftError as error:
                left_out[value] = error.problem
        return tuple(there), left_out


@dataclass(frozen=True)
class Curve:
    """The joint accuracy of one method along a sweep."""

    title: str
    acc: tuple[Interval, ...]  # at each value
    drop: Interval  # δ: the best point minus the worst, on the same episodes


@dataclass(frozen=True)
class Swept:
    """What a sweep found."""

    sweep: Sweep
    shots: int
    episodes: int
    values: tuple[float, ...]
    left_out: dict[float, str]  # value → reason
    curves: tuple[Curve, ...]

    def __str__(self) -> str:
        """The drops in a sentence."""
        bands = "; bands are 95 % intervals" if len(self.curves) <= MOST_COLUMNS else ""
        drops = ", ".join(f"{curve.title} {curve.drop}" for curve in self.curves)
        return (
            f"{'Joint accuracy' if self.sweep.setting == 's2i' else 'Accuracy'} against the "
            f"{self.sweep.title} ({', '.join(map(self.sweep.label, self.values))}), "
            f"{self.shots}-shot, {self.episodes} episodes{bands}. Drop δ from "
            f"the best to the worst point, in percentage points: {drops}."
        )


def run_sweep(
    sweep: Sweep,
    recipe: Recipe,
    models: Path,
    results: Results,
    bench: Bench,
    *,
    methods: Sequence[str] = METHODS,
    shots: int = 1,
    episodes: int = 600,
    split: str = "test",
    seed: int = 0,
    views: int = 1,
    engine: Engine = in_this_process,
) -> Swept:
    """Rows for every method at every value; those that are there are not computed again."""
    _check_methods(methods, sweep.setting)
    pools = bench.pools(recipe.data, models, split)
    values, left_out = sweep.possible(pools, shots, split)
    if not values:
        raise FewgraftError(
            f"no {sweep.title} of {_listed(sweep.values)} is possible",
            next(iter(left_out.values())),
        )
    wanted = [
        job
        for value in values
        for job in jobs(
            recipe,
            models,
            methods,
            [sweep.setting],
            [shots],
            episodes,
            split,
            seed,
            {sweep.field: value},
            views,
        )
    ]
    found: dict[str, list[Row]] = {method_spec(name).name: [] for name in methods}
    for row, _ in run(wanted, results, bench, engine):
        found[row.method].append(row)
    curves = tuple(_curve(rows, results) for rows in found.values())
    return Swept(sweep, shots, episodes, values, left_out, curves)


def features_methods(setting: str) -> list[str]:
    """Methods on features that learn nothing beforehand and have a row in a setting."""
    return [
        name
        for name, spec in methods_by_name().items()
        if makes_sense(spec, setting)
        and not (spec.method.moves_network or spec.method.uses_pictures or spec.method.pieces)
    ]


def _check_methods(names: Sequence[str], setting: str) -> None:
    hint = f"Such as: {', '.join(METHODS if setting == 's2i' else features_methods(setting))}"
    if not names or len(set(names)) < len(names):
        raise FewgraftError("name one or more methods, each once", hint)
    for name in names:
        if not makes_sense(method_spec(name), setting):
            raise FewgraftError(
                f"'{name}' does not use the unlabelled set of '{setting}': there is nothing to "
                "vary",
                hint,
            )


def _curve(rows: Sequence[Row], results: Results) -> Curve:
    """From the rows of one method, in the order of the values."""
    points = [row.interval("acc") for row in rows]
    by_mean = sorted(rows, key=lambda row: row.interval("acc").mean)
    best, worst = (results.scores(row).acc for row in (by_mean[-1], by_mean[0]))
    return Curve(rows[0].title, tuple(points), paired(best, worst).difference)


def sweep_table(swept: Swept) -> Table:
    """One line per value, one column per method, δ below; of many methods the other way round."""
    table = Table(
        title=f"Acc, % by {swept.sweep.title}, {swept.shots}-shot, {swept.episodes} episodes",
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    labels = [*map(swept.sweep.label, swept.values), "δ"]
    if len(swept.curves) > MOST_COLUMNS:
        for label in ("", *labels):
            table.add_column(label, justify="right" if label else "left")
        for curve in swept.curves:
            table.add_row(curve.title, *map(str, (*curve.acc, curve.drop)))
        return table
    table.add_column("")
    for curve in swept.curves:
        table.add_column(curve.title, justify="right")
    for place, label in enumerate(labels[:-1]):
        table.add_row(label, *(str(curve.acc[place]) for curve in swept.curves))
    table.add_section()
    table.add_row("δ", *(str(curve.drop) for curve in swept.curves))
    return table


def draw_sweeps(sweeps: Sequence[Swept]) -> Figure:
    """A panel a sweep, intervals as bands."""
    width = 5.4 if len(sweeps[0].curves) <= MOST_COLUMNS else 8.0
    figure = Figure(figsize=(width * len(sweeps), 4.2), layout="constrained")
    panels = figure.subplots(1, len(sweeps), sharey=True, squeeze=False)[0]
    for axes, swept in zip(panels, sweeps, strict=True):
        _draw_panel(axes, swept)
    kind = "joint accuracy" if sweeps[0].sweep.setting == "s2i" else "accuracy"
    panels[0].set_ylabel(f"{kind}, % ({sweeps[0].shots}-shot)")
    return figure


def _draw_panel(axes: Axes, swept: Swept) -> None:
    places = swept.sweep.places(swept.values)
    for number, curve in enumerate(swept.curves):
        colour = COLOURS[number % len(COLOURS)]
        means = [100 * point.mean for point in curve.acc]
        low = [100 * (point.mean - point.half) for point in curve.acc]
        high = [100 * (point.mean + point.half) for point in curve.acc]
        if len(swept.curves) <= MOST_COLUMNS:  # more bands hide each other
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            places,
            means,
            color=colour,
            marker=MARKERS[(number + number // len(COLOURS)) % len(MARKERS)],
            linestyle=LINES[number % len(LINES)],
            label=f"{curve.title}, δ {100 * curve.drop.mean:.1f}",
        )
    axes.set_xlabel(swept.sweep.title)
    axes.set_xticks(places, [swept.sweep.label(value) for value in swept.values])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(swept.curves) <= MOST_COLUMNS:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    else:  # below the panel they would leave it no height
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
