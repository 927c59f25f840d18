"""Answers for photos: a class name, its probability, and "unknown" where nothing fits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fewgraft.app.features.embedding import Embeds, Photo
from fewgraft.app.features.labelled import photo_name
from fewgraft.app.learning.lesson import PART
from fewgraft.app.learning.names import UNKNOWN
from fewgraft.app.learning.saving import table
from fewgraft.files import write_atomically

COLUMNS = ("photo", "label", "score", "best", "second", "second_score", "problem")


@dataclass(frozen=True)
class Prediction:
    """The answer for one photo."""

    photo: str
    label: str  # a class name or "unknown"; empty where the photo cannot be read
    score: float = 0.0  # probability of `best` among the classes
    best: str = ""  # the likeliest class, also where the label is "unknown"
    second: str = ""
    second_score: float = 0.0
    problem: str = ""  # why the photo cannot be read


def predict(
    embed: Embeds,
    photos: Sequence[Photo],
    names: Sequence[str] | None = None,
    *,
    unknown: bool = True,
) -> Iterator[Prediction]:
    """One prediction per photo, in their order; `names` are what to call the photos.

    Without `unknown`, each photo that can be read gets a class, however badly that fits.
    """
    names = names or [photo_name(photo, number) for number, photo in enumerate(photos)]
    done = embed(photos, "predict")
    rows = {number: row for row, number in enumerate(done.kept)}
    for start in range(0, len(photos), PART):
        some = range(start, min(start + PART, len(photos)))
        kept = [rows[number] for number in some if number in rows]
        answers = iter(_answers(embed, torch.from_numpy(done.features[kept]), unknown))
        for number in some:
            if number in rows:
                yield Prediction(names[number], *next(answers))
            else:
                yield Prediction(names[number], "", problem=done.failed[number])


BestTwo = tuple[str, float, str, str, float]


def _answers(embed: Embeds, features: torch.Tensor, unknown: bool) -> list[BestTwo]:
    """(label, score, best, second, second score) of features [n, d]."""
    model, card = embed.model, embed.model.card
    with torch.inference_mode():
        logits = model.classify(features)
    two = logits.softmax(-1).topk(min(2, len(card.classes)), dim=-1)
    below = card.unknown.threshold if unknown and card.unknown else float("-inf")
    answers = []
    for best_logit, scores, places in zip(
        logits.amax(-1).tolist(), two.values.tolist(), two.indices.tolist(), strict=True
    ):
        best, second = card.classes[places[0]], card.classes[places[-1]]
        label = UNKNOWN if best_logit < below else best
        answers.append((label, scores[0], best, second, scores[-1]))
    return answers


def write_csv(path: Path, predictions: Sequence[Prediction]) -> None:
    """All predictions as a table, complete or not at all."""
    write_atomically(
        path, table(COLUMNS, map(_row, predictions)).encode("utf-8", "backslashreplace")
    )


def _row(p: Prediction) -> Sequence[str]:
    scores = ("", "") if p.problem else (f"{p.score:.4f}", f"{p.second_score:.4f}")
    return p.photo, p.label, scores[0], p.best, p.second, scores[1], p.problem
