"""What a lesson leaves behind: the classifier, and beside it the record of what was done.

model.json, model.safetensors   the classifier
lesson.json                     what was gained and what was lost, for programs
pile.csv                        what each unlabelled picture did
review.csv, review.png          pictures whose labels would help most, best first
report.html                     all of it, to look at
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fewgraft.app.features.labelled import photo_name
from fewgraft.app.learning.judging import Judged
from fewgraft.app.learning.learn import Outcome
from fewgraft.app.learning.record import UnlabelledRecord
from fewgraft.app.report.review import review_sheet
from fewgraft.errors import FewgraftError, nearest
from fewgraft.model import CosineModel, load_model, save_model
from fewgraft.zoo import shipped_model, shipped_names


def open_classifier(where: str | Path) -> CosineModel:
    """A saved classifier: its folder, or the name of one inside the package, such as icons."""
    folder = Path(where)
    if (folder / "model.json").is_file():
        return load_model(folder)
    name, _, stage = str(where).partition("/")
    shipped = shipped_names()
    if name in shipped:
        return shipped_model(name, stage or "algorithm-2")
    why = "holds no classifier (model.json is missing)" if folder.is_dir() else "is not a folder"
    raise FewgraftError(
        f"{where} {why}", f"`fewgraft base` makes one. {nearest(str(where), shipped)}".strip()
    )


def save_outcome(outcome: Outcome, folder: Path, report: str = "") -> None:
    """Write everything, or nothing."""
    files = {
        "lesson.json": json.dumps(summary(outcome), indent=1, ensure_ascii=False),
        "pile.csv": table(
            UNLABELLED_COLUMNS, unlabelled_rows(outcome, range(len(outcome.unlabelled.photos)))
        ),
        "review.csv": table(
            UNLABELLED_COLUMNS, unlabelled_rows(outcome, outcome.unlabelled.review)
        ),
    }
    if report:
        files["report.html"] = report
    beside = {name: text.encode("utf-8", "backslashreplace") for name, text in files.items()}
    sheet = review_sheet(outcome)
    if sheet:
        beside["review.png"] = sheet
    save_model(outcome.model, folder, beside=beside)


def summary(outcome: Outcome) -> dict[str, Any]:
    """The figures of a lesson."""
    unknown = outcome.model.card.unknown
    return {
        "taught": {name: len(photos) for name, photos in outcome.examples.items()},
        "classes": len(outcome.model.card.classes),
        "method": asdict(outcome.choice),
        "tolerance": outcome.tolerance,
        "pile": {
            "photos": len(outcome.unlabelled.photos),
            "used": outcome.used_unlabelled,
            "why_not": outcome.why_not,
            "helped": int((outcome.unlabelled.step > 0).sum()),
        },
        "old_classes": _figures(outcome.check, outcome.check_without_unlabelled),
        "new_photos_left_out": _figures(outcome.left_out, outcome.left_out_without_unlabelled),
        "unknown": unknown.model_dump() if unknown else None,
        "foreign": asdict(outcome.foreign) if outcome.foreign else None,
        "could_not_be_used": dict(outcome.failed),
        "notes": list(outcome.notes),
    }


def _figures(judged: Judged | None, without_unlabelled: Judged | None) -> dict[str, Any] | None:
    if judged is None or without_unlabelled is None or not judged.after:
        return None
    return {
        "photos": len(judged.photos),
        "before": None if math.isnan(judged.accuracy_before) else judged.accuracy_before,
        "after": judged.accuracy_after,
        "after_without_pile": without_unlabelled.accuracy_after,
    }


UNLABELLED_COLUMNS = ("photo", "label", "score", "margin", "helped", "weight", "step")


def unlabelled_rows(outcome: Outcome, rows: Iterable[int]) -> Iterable[Sequence[str]]:
    """Rows of the record, as text; a picture that helped no class has no class there."""
    unlabelled: UnlabelledRecord = outcome.unlabelled
    classes = outcome.model.card.classes
    for row in rows:
        step = int(unlabelled.step[row])
        yield (
            photo_name(unlabelled.photos[row], row),
            classes[unlabelled.answer[row]],
            f"{unlabelled.score[row]:.4f}",
            f"{unlabelled.margin[row]:.4f}",
            outcome.taught[unlabelled.helped[row]] if step else "",
            f"{unlabelled.weight[row]:.4f}",
            str(step) if step else "",
        )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As CSV."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
