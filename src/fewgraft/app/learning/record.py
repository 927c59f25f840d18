"""What each unlabelled picture did, and which of them would be worth a label."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from fewgraft.app.features.embedding import Embedded, Photo
from fewgraft.app.learning.lesson import Learnt


@dataclass(frozen=True)
class UnlabelledRecord:
    """What each unlabelled picture did [U]; one row per picture that could be read."""

    photos: tuple[Photo, ...]
    answer: NDArray[np.int32]  # the class it is taken for afterwards
    score: NDArray[np.float32]  # its probability
    margin: NDArray[np.float32]  # to the second best class
    touches: NDArray[np.bool_]  # one of the two is a taught class
    helped: NDArray[np.int32]  # the taught class it counted for most
    weight: NDArray[np.float32]  # how much, as a share of one example
    step: NDArray[np.int16]  # from which step on it counted at least half; 0: it did not
    review: tuple[int, ...]  # rows whose labels would help most, best first


def record_of(
    learnt: Learnt, pictures: Embedded, unlabelled: Sequence[Photo], review: int
) -> UnlabelledRecord:
    """Go through U once more and write everything down."""
    total = len(pictures.features)
    taught = set(learnt.lesson.taught)
    is_taught = torch.tensor([name in taught for name in learnt.known.classes])
    answer, helped = np.zeros(total, np.int32), np.zeros(total, np.int32)
    score, margin, weight = (np.zeros(total, np.float32) for _ in range(3))
    touches = np.zeros(total, np.bool_)
    for part in learnt.unlabelled_parts():
        rows = slice(part.start, part.start + len(part.weights))
        answer[rows] = part.places[:, 0].numpy()
        score[rows] = part.scores[:, 0].numpy()
        margin[rows] = (part.scores[:, 0] - part.scores[:, 1]).numpy()
        touches[rows] = is_taught[part.places].any(-1).numpy()
        weight[rows], helped[rows] = (x.numpy() for x in part.weights.max(-1))
    used = len(learnt.step_helped) == total
    return UnlabelledRecord(
        tuple(unlabelled[number] for number in pictures.kept),
        answer,
        score,
        margin,
        touches,
        helped,
        weight if used else np.zeros_like(weight),
        learnt.step_helped if used else np.zeros(total, np.int16),
        _worth_labelling(margin, touches, pictures, review),
    )


def _worth_labelling(
    margin: NDArray[np.float32], touches: NDArray[np.bool_], pictures: Embedded, wanted: int
) -> tuple[int, ...]:
    """Pictures between two classes, one of them taught; no two that look the same.

    A picture is passed over where one that was chosen before lies nearer to it than most do.
    """
    order = np.lexsort((margin, ~touches))[: 20 * wanted]
    if not len(order):
        return ()
    directions = normalize(torch.from_numpy(np.array(pictures.features[order])), dim=-1)
    alike = directions @ directions.T
    too_near = alike.flatten().quantile(0.95).item() if len(order) > wanted else 1.1
    chosen: list[int] = []
    for place in range(len(order)):
        if len(chosen) < wanted and all(alike[place, other] < too_near for other in chosen):
            chosen.append(place)
    return tuple(int(order[place]) for place in chosen)
