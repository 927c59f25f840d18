"""A lesson for which the network itself moves (`learn --adapt`; after Sec. 4.3 of the paper).

The last block is adapted to the examples and U by the benchmark's `distilled-adaptation`, as it is
registered; then the lesson is learnt as usual, on the features of the moved network.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fewgraft.app.features.embedding import Embedder, Photo, Tracker, content_of, track_photos
from fewgraft.app.features.labelled import Photos
from fewgraft.app.learning.choosing import MethodChoice
from fewgraft.app.learning.learn import LearnSettings, Outcome, learn
from fewgraft.data.pictures import PictureError, Pixels, read_picture
from fewgraft.devices import CPU
from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Task, TaskPictures
from fewgraft.methods.distilled_adaptation import DistilledAdaptation
from fewgraft.model import CosineModel
from fewgraft.network import Network, divided
from fewgraft.prototypes import cosine_logits

LARGEST_UNLABELLED = 2000  # pictures whose activations are kept in memory
STAYS = "exemplars would not move with the network"
CAUTION = (
    "the network was adapted with all new photos in view: what is said of left-out ones is "
    "optimistic"
)


def learn_adapted(
    model: CosineModel,
    new: Photos,
    unlabelled: Sequence[Photo],
    check: Photos | None = None,
    settings: LearnSettings | None = None,
    config: DistilledAdaptation | None = None,
    *,
    keep: bool = True,
    tracker: Tracker = track_photos,
    device: torch.device = CPU,
    foreign: Sequence[Photo] = (),
) -> Outcome:
    """Teach the model with a network that moves, unless old classes suffer from that."""
    settings = settings or LearnSettings()
    refuse_graft(model, settings)
    settings = replace(settings, method="refine")
    check_movable(model)
    embed = partial(Embedder, keep=keep, tracker=tracker, device=device)
    plain = learn(model, new, unlabelled, check, settings, embed(model), foreign)
    plain = replace(plain, choice=MethodChoice("refine", STAYS))
    distinct = plain.unlabelled.photos
    if not distinct:
        return replace(plain, notes=(*plain.notes, "nothing was adapted: there is no pile"))
    moved = adapted_model(model, plain.examples, distinct, config or DistilledAdaptation(), device)
    outcome = learn(moved, new, unlabelled, check, settings, embed(moved), foreign)
    if plain.check and outcome.check:
        judged = replace(outcome.check, before=plain.check.before)
        if judged.loses_more_than(plain.tolerance):
            why = "the network was not adapted: old classes would lose more than the tolerance"
            return replace(plain, notes=(*plain.notes, why))
        outcome = replace(outcome, check=judged)
    notes = (*outcome.notes, CAUTION)
    return replace(outcome, before=model, choice=plain.choice, notes=notes)


def refuse_graft(model: CosineModel, settings: LearnSettings) -> None:
    """Exemplars are features of the network as it was."""
    if model.card.density or settings.method == "graft":
        raise FewgraftError(
            "graft needs a network that stays: its exemplars are features of it",
            "Learn without --adapt, or the base classifier with --method refine.",
        )


def check_movable(model: CosineModel) -> None:
    """Adaptation needs a network that is a sequence of blocks with gradients."""
    try:
        divided(model.backbone, "last-block")
    except FewgraftError:
        raise FewgraftError(
            f"the backbone '{model.card.backbone}' cannot be adapted: it is not a sequence of "
            "blocks",
            "Learn without --adapt.",
        ) from None


def adapted_model(
    model: CosineModel,
    new: Photos,
    unlabelled: Sequence[Photo],
    config: DistilledAdaptation,
    device: torch.device = CPU,
) -> CosineModel:
    """The model with its last block and the weights of the classes not taught moved.

    It is adapted on `device`; the result is where the model is.
    """
    taught = tuple(new)
    examples = [(photo, label) for label, name in enumerate(taught) for photo in new[name]]
    thinned = unlabelled[:: -(-len(unlabelled) // LARGEST_UNLABELLED)]
    support, kept = _pixels(model, [photo for photo, _ in examples])
    rest, _ = _pixels(model, thinned)
    there = model if device == CPU else deepcopy(model).to(device)
    network = Network(there, np.concatenate([support, rest]))
    places = torch.arange(len(support) + len(rest))[None]
    others = [row for row, name in enumerate(model.card.classes) if name not in taught]
    pictures = TaskPictures(network, places[:, : len(support)], places[:, len(support) :])
    weights, gamma = there.weight.detach()[others], model.gamma.item()
    with torch.no_grad():
        features = network.features(places)
    unlabelled_features = features[:, len(support) :]
    task = Task(
        ways=len(taught),
        support=features[:, : len(support)],
        labels=torch.tensor([[examples[number][1] for number in kept]], device=device),
        unlabelled=unlabelled_features,
        base_unlabelled=cosine_logits(unlabelled_features, weights, gamma),
        weights=weights,
        gamma=gamma,
        numbers=torch.zeros(1, dtype=torch.long),
        pictures=pictures,
    )
    [found] = config.fit(task).episodes
    moved = CosineModel(model.card, deepcopy(model.backbone))
    moved.load_state_dict(model.state_dict())
    with torch.no_grad():
        moved.weight[others] = found.base.cpu()
        for name, parameter in divided(moved.backbone, "last-block")[1].named_parameters():
            parameter.copy_(found.parameters[name].cpu())
    return moved.eval()


def _pixels(model: CosineModel, photos: Sequence[Photo]) -> tuple[Pixels, list[int]]:
    """uint8 [n, size, size, channels] of the photos that can be read, and which they are."""
    card = model.card
    pixels, kept = [], []
    for number, photo in enumerate(photos):
        try:
            content = content_of(photo)
            pixels.append(read_picture(content, card.size, card.channels, card.crop))
            kept.append(number)
        except (PictureError, OSError):
            continue  # `learn` has told what is wrong with it
    shape = (0, card.size, card.size, card.channels)
    return np.stack(pixels) if pixels else np.empty(shape, np.uint8), kept
