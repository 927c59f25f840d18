"""What a method gains among novel classes beside what it gains in all: one point per row.

Many methods make novel classes easier to tell from one another (n/n). Whether that helps the joint
classifier is another question: Acc falls where base pictures are taken for novel ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from fewgraft.bench.results import Row
from fewgraft.errors import FewgraftError

BASELINE = ("meta-inc-baseline", "incremental")
BETTER, WORSE, REFERENCE = "#0072b2", "#d55e00", "#000000"


@dataclass(frozen=True)
class Scatter:
    """Rows of one setting and number of shots, and the baseline that has no U."""

    baseline: Row
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, rows: Sequence[Row], setting: str, shots: int) -> "Scatter":
        """From all rows of a folder."""
        here = [row for row in rows if row.shots == shots]
        baseline = [row for row in here if (row.method, row.setting) == BASELINE]
        chosen = [row for row in here if row.setting == setting]
        if not baseline or not chosen:
            raise FewgraftError(
                f"the results lack rows of {setting}, or of {BASELINE[0]}, at {shots} shots",
                f"`fewgraft bench run RECIPE --settings {BASELINE[1]},{setting}` computes them.",
            )
        return cls(baseline[-1], tuple(chosen))

    def gains(self, row: Row) -> tuple[float, float]:
        """What a row is ahead of the baseline in n/n and in Acc, in percentage points."""
        both = (
            (one.interval("n_n").mean, one.interval("acc").mean) for one in (row, self.baseline)
        )
        (novel, joint), (novel_before, joint_before) = both
        return 100 * (novel - novel_before), 100 * (joint - joint_before)

    def __str__(self) -> str:
        """How many gain in each."""
        gains = [self.gains(row) for row in self.rows]
        novel = [joint for novel, joint in gains if novel > 0]
        return (
            f"{self.rows[0].setting}, {self.rows[0].shots}-shot, {self.rows[0].episodes} episodes: "
            f"{len(novel)} of {len(gains)} methods are ahead of {self.baseline.title} in n/n, and "
            f"{sum(joint > 0 for joint in novel)} of these in Acc."
        )


def draw_scatter(scatter: Scatter) -> Figure:
    """n/n to the right, Acc upwards, both as gains over the baseline."""
    figure = Figure(figsize=(8.5, 6.0), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=REFERENCE, linewidth=0.8)
    axes.axvline(0, color=REFERENCE, linewidth=0.8)
    for row in sorted(scatter.rows, key=lambda row: -scatter.gains(row)[1]):
        novel, joint = scatter.gains(row)
        colour = BETTER if joint > 0 else WORSE
        axes.plot(novel, joint, marker="o", color=colour, linestyle="none")
        axes.annotate(
            row.method, (novel, joint), (5, 3), textcoords="offset points", fontsize=8, color=colour
        )
    axes.set_xlabel(f"n/n, gain over {scatter.baseline.title}, percentage points")
    axes.set_ylabel(f"Acc, gain over {scatter.baseline.title}, percentage points")
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
