"""What a run leaves for the eye: a table of the validations that were kept, and the curves."""

from pathlib import Path
from typing import Any

from fewgraft.errors import writing
from fewgraft.training.log import read_log

PHASES = ("pretraining", "distillation", "algorithm-1", "algorithm-2")
COLUMNS = ("step", "acc_1", "delta_1", "acc_5", "delta_5", "b_b", "score")


def summary(metrics: dict[str, dict[str, Any]]) -> str:
    """One line per stage: the step that was kept for its score, and its figures."""
    names = [name for name in COLUMNS if any(f"val_{name}" in row for row in metrics.values())]
    lines = [f"{'stage':<18}" + "".join(f"{name:>9}" for name in names)]
    for stage, row in metrics.items():
        cells = [row.get(f"val_{name}", float("nan")) for name in names]
        lines.append(f"{stage:<18}" + "".join(f"{cell:>9.2f}" for cell in cells))
    lines.append("The step with the best score on validation episodes is kept.")
    return "\n".join(lines)


def draw_curves(folder: Path) -> Path | None:
    """Loss and validation score of every phase over its steps, as a PNG beside the logs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    phases = [*PHASES, *sorted(path.stem for path in folder.glob("*-shot.jsonl"))]
    logs = {phase: folder / f"{phase}.jsonl" for phase in phases}
    logs = {phase: path for phase, path in logs.items() if path.exists()}
    if not logs:
        return None
    figure, axes = plt.subplots(
        2, len(logs), figsize=(4 * len(logs), 5), squeeze=False, layout="constrained"
    )
    for column, (phase, path) in enumerate(logs.items()):
        rows = read_log(path)
        for axis, name in zip(axes[:, column], ("loss", "val_score"), strict=True):
            points = [(row["step"], row[name]) for row in rows if name in row]
            axis.plot(*zip(*points, strict=True), marker="." if name == "val_score" else "")
            axis.set_ylabel({"loss": "training loss", "val_score": "validation score, %"}[name])
            axis.grid(alpha=0.3)
        axes[0, column].set_title(phase)
        axes[1, column].set_xlabel("step")
    with writing(folder / "curves.png"):
        figure.savefig(folder / "curves.png", dpi=100)
    plt.close(figure)
    return folder / "curves.png"
