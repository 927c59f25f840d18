"""A base classifier: class means over features of a trained backbone, or a head that you have.

Where photos are enough, classes are compared in a whitened space (whitening.py), their weights are
class means moved by the loss of Eq. 1 (head.py), and lessons are rehearsed (rehearsal.py). Where
they are few, features are taken from their mean over the classes (Wang et al., "SimpleShot", 2019)
and weights are class means: features of a network with rectified units all point the same way, and
cosines between them tell little. γ is the one under which left-out photos are most likely.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from fewgraft.app.features.embedding import Embedder, Photo, Tracker, track_photos, untracked
from fewgraft.app.features.labelled import Labelled, embed_classes
from fewgraft.app.learning.exemplars import evenly, exemplars_of, room_for
from fewgraft.app.learning.gamma import best_gamma, notes_of_gamma
from fewgraft.app.learning.graft_rehearsal import compared, rehearsed_with_graft
from fewgraft.app.learning.head import class_weights
from fewgraft.app.learning.hygiene import once
from fewgraft.app.learning.judging import choose_threshold
from fewgraft.app.learning.rehearsal import (
    FALSE_REJECTS,
    FOLDS,
    Rehearsal,
    can_rehearse,
    rehearse,
    value,
)
from fewgraft.backbones import backbone_spec, trained_backbone
from fewgraft.border import Border
from fewgraft.devices import threads_for
from fewgraft.errors import FewgraftError, nearest, reading
from fewgraft.heads import read_head
from fewgraft.model import CosineModel, GraftRehearsed, ModelCard, Unknown, load_model
from fewgraft.parsing import validated
from fewgraft.prototypes import cosine_logits
from fewgraft.whitening import class_means, space_of

GUESSED_GAMMA = 20.0
NOT_WHITENED = 1.0  # shrinkage


@dataclass(frozen=True)
class BuiltBase:
    """A base classifier, and what became of the photos that were brought."""

    model: CosineModel
    failed: Mapping[str, str] = field(default_factory=dict)  # photo → why it could not be used
    notes: tuple[str, ...] = ()


def model_of_backbone(backbone: str) -> CosineModel:
    """A trained backbone, as a model without classes: by name, or that of a saved model."""
    if (Path(backbone) / "model.json").is_file():
        model = load_model(Path(backbone))
        card = model.card.model_copy(
            update={
                "classes": (),
                "examples": (),
                "unknown": None,
                "border": None,
                "exemplars": 0,
                "graft": None,
                "density": None,
                "centred": True,
                "whitened": False,
            }
        )
        return CosineModel(card, model.backbone)
    spec = backbone_spec(backbone)
    if spec.trained is None or spec.mean is None or spec.std is None:
        raise FewgraftError(
            f"'{backbone}' has no weights of its own",
            "Give the folder of a trained model instead (fewgraft train makes one), or a backbone "
            "that comes with weights, such as efficientnet-lite0.",
        )
    about = {
        "backbone": _as_text(backbone),
        "backbone_settings": dict(spec.settings),
        "width": spec.width,
        "classes": (),
        "size": spec.size,
        "crop": spec.crop,
        "channels": 3,
        "mean": spec.mean,
        "std": spec.std,
        "centred": True,
        "licence": spec.licence,
    }
    with reading(backbone, "usable network"):
        card = validated(ModelCard, about)
    return CosineModel(card, trained_backbone(spec))


def _as_text(name: str) -> str:
    """A name that can be stored, even where it holds a file name that is no valid text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def import_base(
    backbone: CosineModel,
    head: Path,
    names: Path,
    photos: Mapping[str, Sequence[Photo]] | None = None,
    *,
    keep: bool = True,
) -> BuiltBase:
    """A classifier from a file of class weights and one of class names."""
    weights, classes = read_head(head, names, backbone.card.width)
    uncentred = CosineModel(backbone.card.model_copy(update={"centred": False}), backbone.backbone)
    if not photos:
        return BuiltBase(base_of_head(uncentred, weights, classes, None))
    for name in photos:
        if name not in classes:
            raise FewgraftError(f"the head has no class '{name}'", nearest(name, classes))
    labelled, failed = embed_classes(Embedder(uncentred, keep=keep), photos, "photos")
    notes: list[str] = []
    model = base_of_head(uncentred, weights, classes, once(labelled, "photo", notes))
    return BuiltBase(model, failed, (*notes, *notes_of_gamma(model.gamma.item())))


def build_base(
    backbone: CosineModel,
    photos: Mapping[str, Sequence[Photo]],
    *,
    keep: bool = True,
    tracker: Tracker = track_photos,
) -> BuiltBase:
    """A classifier of these classes; copies of a photo in a class count once."""
    if len(photos) < 2:
        raise FewgraftError("a classifier needs at least two classes")
    embed = Embedder(backbone, keep=keep, tracker=tracker)
    labelled, failed = embed_classes(embed, photos, "photos")
    notes: list[str] = []
    labelled = once(labelled, "photo", notes)
    model = base_of_features(backbone, tuple(photos), labelled, tracker)
    return BuiltBase(model, failed, (*notes, *notes_of_gamma(model.gamma.item())))


def base_of_head(
    backbone: CosineModel, weights: Tensor, classes: tuple[str, ...], photos: Labelled | None
) -> CosineModel:
    """A classifier whose class weights [K, d] come from someone else's head.

    Photos of some of its classes, with features that are not centred, choose γ and the limit of
    "unknown"; without them there is no such limit and γ is a guess.
    """
    card = backbone.card.model_copy(
        update={"classes": classes, "centred": False, "stage": "base", "data": "an imported head"}
    )
    gamma = GUESSED_GAMMA
    if photos is not None:
        labels = photos.places(classes)
        cosines = cosine_logits(photos.features, weights)
        gamma = best_gamma((cosines, labels))
        accuracy = (cosines.argmax(-1) == labels).float().mean().item()
        unknown = choose_threshold(gamma * cosines.amax(-1), FALSE_REJECTS, "given photos")
        card = card.model_copy(update={"unknown": unknown, "metrics": {"accuracy": accuracy}})
    model = CosineModel(card, backbone.backbone)
    return _with_head(model, weights, gamma)


def base_of_features(
    backbone: CosineModel,
    classes: tuple[str, ...],
    labelled: Labelled,
    tracker: Tracker = untracked,
) -> CosineModel:
    """The classifier, from features as the network gives them.

    Where there are enough photos to rehearse lessons with, rehearsal decides whether features are
    whitened, and sets γ, the limit of "unknown" and the border of classes to come.
    """
    labels = labelled.places(classes)
    if can_rehearse(labelled.features, labels, len(classes)):
        with threads_for(labelled.features.numel() * labelled.features.shape[1]):
            return _rehearsed_base(backbone, classes, labelled.features, labels, tracker)
    centre = class_means(labelled.features, labels, len(classes)).mean(0)
    directions = normalize(labelled.features - centre, dim=-1)
    weights = normalize(class_means(directions, labels, len(classes)), dim=-1)
    cosines, judged = left_out_cosines(directions, labels, len(classes))
    gamma = best_gamma((cosines[judged], labels[judged])) if judged.any() else GUESSED_GAMMA
    accuracy = (cosines[judged].argmax(-1) == labels[judged]).float().mean().item()
    best = gamma * cosines[judged].amax(-1)
    card = _base_card(backbone, classes, labels).model_copy(
        update={
            "unknown": choose_threshold(best, FALSE_REJECTS, "left-out base photos")
            if len(best) > 1
            else None,
            "metrics": {"left_out_accuracy": accuracy} if judged.any() else {},
        }
    )
    model = CosineModel(card, backbone.backbone)
    with torch.no_grad():
        model.centre.copy_(centre)
    return _with_head(model, weights, gamma)


def _rehearsed_base(
    backbone: CosineModel,
    classes: tuple[str, ...],
    features: Tensor,
    labels: Tensor,
    tracker: Tracker,
) -> CosineModel:
    shrinkage, rehearsal = _rehearsed(features, labels, len(classes), tracker)
    space = space_of(features, labels, len(classes), shrinkage=shrinkage)
    gamma = rehearsal.gamma()
    border = rehearsal.border()
    room = room_for(len(classes), features.shape[1])
    graft = _rehearsed_graft(rehearsal, border, gamma, room)
    placed = space(features)
    kept = exemplars_of(placed, labels, len(classes), room) if graft else []
    card = _base_card(backbone, classes, labels).model_copy(
        update={
            "whitened": True,
            "unknown": _limit(rehearsal, gamma),
            "border": border,
            "exemplars": max(map(len, kept), default=0),
            "graft": graft,
            "metrics": {
                "held_out_accuracy": rehearsal.accuracy,
                "unknown_auroc": rehearsal.auroc,
            },
        }
    )
    model = CosineModel(card, backbone.backbone)
    with torch.no_grad():
        model.centre.copy_(space.centre)
        model.whitening.copy_(space.whitening)
        model.offset.copy_(space.offset)
        if kept:
            places = evenly(kept)
            model.exemplars.copy_(places.exemplars)
            model.exemplar_weights.copy_(places.weights)
    return _with_head(model, class_weights(placed, labels, len(classes)), gamma)


def _rehearsed_graft(
    rehearsal: Rehearsal, border: Border | None, gamma: float, room: int
) -> GraftRehearsed | None:
    """What the other method, graft, would do in the same lessons; None where it cannot be told."""
    if border is None or not room:
        return None
    graft = rehearsed_with_graft(rehearsal, room)
    return compared(rehearsal, border, graft, _limit(graft, gamma))


def _limit(rehearsal: Rehearsal, gamma: float) -> Unknown:
    """The limit of "unknown" that held-out photos set."""
    best, limit = rehearsal.best, rehearsal.limit()
    return Unknown(
        threshold=gamma * limit,
        false_rejects=(best < limit).double().mean().item(),
        pictures=len(best),
        chosen_on="held-out base photos",
    )


def _rehearsed(
    features: Tensor, labels: Tensor, n_classes: int, tracker: Tracker
) -> tuple[float | None, Rehearsal]:
    """A shrinkage and all that was rehearsed with it.

    None, which estimates it, or 1, which whitens nothing: whichever does better in the first fold.
    """
    ways = {s: rehearse(features, labels, n_classes, shrinkage=s) for s in (None, NOT_WHITENED)}
    tried = {shrinkage: next(folds) for shrinkage, folds in ways.items()}
    borders = {shrinkage: rehearsal.border() for shrinkage, rehearsal in tried.items()}
    worth = {
        shrinkage: tried[shrinkage].accuracy + _gained(border)  # of old and of new photos
        for shrinkage, border in borders.items()
        if border is not None
    }
    chosen = max(worth, key=lambda shrinkage: worth[shrinkage]) if worth else NOT_WHITENED
    for _ in tracker(range(1, FOLDS), "rehearsing lessons", FOLDS - 1):
        next(ways[chosen])
    return chosen, tried[chosen]


def _gained(border: Border) -> float:
    """The mean gain over what was rehearsed without unlabelled photos and with them."""
    curves = (border.without_unlabelled, *border.with_unlabelled)
    return sum(map(value, curves)) / len(curves)


def _base_card(backbone: CosineModel, classes: tuple[str, ...], labels: Tensor) -> ModelCard:
    examples = tuple(torch.bincount(labels, minlength=len(classes)).tolist())
    return backbone.card.model_copy(
        update={
            "classes": classes,
            "examples": examples,
            "centred": True,
            "stage": "base",
            "data": f"{len(labels)} photos",
            "recipe": {},
        }
    )


def _with_head(model: CosineModel, weights: Tensor, gamma: float) -> CosineModel:
    with torch.no_grad():
        model.weight.copy_(weights)
        model.gamma.fill_(gamma)
    return model.eval()


def left_out_cosines(directions: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Cosines [n, K] of each photo to the means of classes that it is left out of.

    Also which photos [n] are not the only ones of their class.
    """
    members = one_hot(labels, n_classes).to(directions.dtype)
    sums = members.T @ directions
    cosines = cosine_logits(directions, sums)
    without = cosine_logits(directions[:, None], (sums[labels] - directions)[:, None])[:, 0, 0]
    judged = members.sum(0)[labels] > 1
    return torch.where(members.bool(), without[:, None], cosines), judged
