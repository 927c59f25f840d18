"""What the page shows for a photo: the likeliest classes, or "unknown"."""

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import BaseModel

from fewgraft.app.features.embedding import Embedder
from fewgraft.app.learning.names import UNKNOWN

SHOWN = 5  # classes


class Score(BaseModel):
    """A class and its probability among all."""

    name: str
    score: float


class PhotoAnswer(BaseModel):
    """The answer for one photo."""

    photo: str
    label: str  # a class name or "unknown"; empty where the photo cannot be read
    classes: list[Score]  # the likeliest first, also where the label is "unknown"
    problem: str = ""  # why the photo cannot be read


@torch.inference_mode()
def answer(
    embed: Embedder, photos: Sequence[Path], names: Sequence[str], *, unknown: bool = True
) -> list[PhotoAnswer]:
    """One answer per photo, in their order. Many threads may ask one embedder that keeps nothing.

    Without `unknown`, each photo that can be read gets a class, however badly that fits.
    """
    done = embed(photos)
    model, card = embed.model, embed.model.card
    below = card.unknown.threshold if unknown and card.unknown else float("-inf")
    found: dict[int, PhotoAnswer] = {}
    for number, feature in zip(done.kept, done.features, strict=True):
        logits = model.classify(torch.from_numpy(feature)[None])[0]
        top = logits.softmax(-1).topk(min(SHOWN, len(card.classes)))
        scores = [
            Score(name=card.classes[place], score=score)
            for place, score in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        label = UNKNOWN if logits.max().item() < below else scores[0].name
        found[number] = PhotoAnswer(photo=names[number], label=label, classes=scores)
    for number, why in done.failed.items():
        found[number] = PhotoAnswer(photo=names[number], label="", classes=[], problem=why)
    return [found[number] for number in range(len(photos))]
