"""A lesson from photos: embed, learn, judge, and fall back where U did harm.

Nothing here writes a file or prints: what happened is an `Outcome`, which the command, the report
and the server show in their own ways.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fewgraft.app.features.embedding import Embedder, Embeds, Photo
from fewgraft.app.features.labelled import (
    Labelled,
    Photos,
    embed_classes,
    failures_of,
    refuse_twins,
)
from fewgraft.app.learning.bordering import usual_tolerance
from fewgraft.app.learning.choosing import MethodChoice, choose
from fewgraft.app.learning.exemplars import DENSITY
from fewgraft.app.learning.foreign import ForeignShare, judge_foreign
from fewgraft.app.learning.grafting import GraftLesson
from fewgraft.app.learning.hygiene import Material, warnings_of
from fewgraft.app.learning.judging import (
    Judged,
    JudgedLesson,
    Trial,
    best_logits,
    unknown_below,
)
from fewgraft.app.learning.lesson import AS_MANY_AS, Known, Lesson
from fewgraft.app.learning.record import UnlabelledRecord, record_of
from fewgraft.app.learning.rehearsal import ALPHA, STEPS
from fewgraft.border import Border
from fewgraft.densities import ClassPlaces
from fewgraft.devices import threads_for
from fewgraft.errors import FewgraftError, nearest
from fewgraft.model import CosineModel, ModelCard, Unknown
from fewgraft.prototypes import Refinement

USUAL = Refinement(steps=5, alpha=0.5)  # where nothing was rehearsed


@dataclass(frozen=True)
class LearnSettings:
    """How to learn; the defaults suit most."""

    refinement: Refinement | None = None  # None: as was rehearsed for this model
    tolerance: float | None = None  # share of their photos that old classes may lose; None: usual
    unknown: bool = True  # answer "unknown" where nothing fits
    false_rejects: float = 0.05  # share of known pictures that may be answered so
    review: int = 20  # unlabelled pictures to be proposed for labelling
    method: str = "auto"  # refine, graft, or the one that did better in rehearsal


@dataclass(frozen=True)
class Outcome:
    """What a lesson led to."""

    before: CosineModel
    model: CosineModel
    choice: MethodChoice  # of a method
    taught: tuple[str, ...]
    examples: Mapping[str, tuple[Photo, ...]]  # of each taught class, as far as they could be read
    used_unlabelled: bool
    why_not: str  # in plain words, where U was given and not used
    check: Judged | None  # photos of classes that were not taught
    check_without_unlabelled: Judged | None
    left_out: Judged  # examples of the taught classes, each judged by what the others taught
    left_out_without_unlabelled: Judged
    unlabelled: UnlabelledRecord
    tolerance: float  # share of their photos that old classes may lose
    foreign: ForeignShare | None = None  # photos of no class, where there were any
    failed: Mapping[str, str] = field(default_factory=dict)  # photo → why it could not be used
    notes: tuple[str, ...] = ()


def learn(
    model: CosineModel,
    new: Photos,
    unlabelled: Sequence[Photo] = (),
    check: Photos | None = None,
    settings: LearnSettings | None = None,
    embedder: Embeds | None = None,
    foreign: Sequence[Photo] = (),
) -> Outcome:
    """Teach the model the classes of `new`; the model itself is not changed.

    `foreign` are photos of no class, which only judge when the answer is "unknown".
    """
    settings = settings or LearnSettings()
    embed = embedder or Embedder(model)
    check = check or {}
    choice = choose(model.card, settings.method, own_settings=settings.refinement is not None)
    known = known_of(model)
    _check_names(new, check, known.classes)
    examples, example_failures = embed_classes(embed, new, "examples")
    judged_by, check_failures = embed_classes(embed, check, "check photos")
    pictures = embed(unlabelled, "pile")
    refuse_twins(examples)
    given = Material.of(examples, judged_by, pictures)
    examples, judged_by, pictures = given.examples, given.check, given.pictures
    lesson = Lesson(
        known,
        tuple(new),
        examples.features,
        examples.places(tuple(new)),
        pictures.features,
        settings.refinement or rehearsed_refinement(model),
        border_of(model.card, choice),
    )
    if choice.method == "graft":
        lesson = graft_lesson(model, lesson)
    tolerance = settings.tolerance
    if tolerance is None:
        tolerance = usual_tolerance(lesson.border)
    with threads_for(pictures.features.size * len(known.classes)):
        trial = Trial.of(lesson, judged_by, examples, tolerance)
    why_not = trial.harm(tolerance) if len(pictures.features) else ""
    used = bool(len(pictures.features)) and not why_not
    chosen = trial.with_unlabelled if used else trial.without_unlabelled
    final = chosen.learnt
    line = _line(lesson, used, len(pictures.features))
    unknown = (
        unknown_below(limit_before(model.card, choice), chosen, settings.false_rejects)
        if settings.unknown
        else None
    )
    taught = taught_model(model, final.known, unknown, line)
    return Outcome(
        before=model,
        model=taught,
        choice=choice,
        taught=lesson.taught,
        examples={name: examples.of(name) for name in new},
        used_unlabelled=used,
        why_not=why_not,
        check=chosen.check,
        check_without_unlabelled=trial.without_unlabelled.check,
        left_out=chosen.left_out,
        left_out_without_unlabelled=trial.without_unlabelled.left_out,
        unlabelled=record_of(final, pictures, unlabelled, settings.review),
        tolerance=tolerance,
        foreign=judge_foreign(taught, embed, foreign, best_logits(chosen)),
        failed={**example_failures, **check_failures, **failures_of(unlabelled, pictures)},
        notes=(
            *given.notes,
            *warnings_of(known.classes, lesson.taught, chosen.left_out),
            *_notes(examples, chosen, tolerance),
        ),
    )


def rehearsed_refinement(model: CosineModel) -> Refinement:
    """Eqs. 3–4 as this model rehearsed them."""
    border, gamma = model.card.border, model.gamma.item()
    if border is None:
        return USUAL
    return Refinement(
        STEPS, ALPHA, gamma / border.sharpness, novel_bias=gamma * border.unlabelled_bias
    )


def known_of(model: CosineModel) -> Known:
    """The classifier of a model, over features."""
    card = model.card
    examples = card.examples or (AS_MANY_AS,) * len(card.classes)
    return Known(
        card.classes, model.weight.detach(), model.gamma.item(), model.bias, examples, model.places
    )


def graft_lesson(model: CosineModel, lesson: Lesson) -> GraftLesson:
    """The same lesson with graft; what the classifier keeps of its classes counts from now on."""
    places = model.places or ClassPlaces(model.exemplars, model.exemplar_weights, DENSITY)
    return GraftLesson(
        replace(lesson.known, places=places),
        lesson.taught,
        lesson.support,
        lesson.labels,
        lesson.unlabelled,
        lesson.config,
        lesson.border,
        plain=lesson.known,
    )


def border_of(card: ModelCard, choice: MethodChoice) -> Border | None:
    """What was rehearsed with the method."""
    return card.graft.border if choice.method == "graft" and card.graft else card.border


def limit_before(card: ModelCard, choice: MethodChoice) -> Unknown | None:
    """The limit of "unknown" before the lesson, on the scale of the method's scores."""
    first = choice.method == "graft" and card.density is None
    return card.graft.unknown if first and card.graft else card.unknown


def taught_model(
    model: CosineModel, known: Known, unknown: Unknown | None, line: str
) -> CosineModel:
    """The model with these classes; the backbone is the same one.

    Exemplars stay with a classifier that looks at them: after a lesson without them, nothing is
    kept of the new classes.
    """
    places = known.places
    card: ModelCard = model.card.model_copy(
        update={
            "exemplars": places.weights.shape[1] if places else 0,
            "density": places.density if places else None,
            "graft": model.card.graft if places else None,
            "classes": known.classes,
            "examples": known.examples,
            "biased": bool(known.bias.any()),
            "unknown": unknown,
            "lessons": (*model.card.lessons, line),
            "stage": "learnt",
        }
    )
    taught = CosineModel(card, model.backbone)
    with torch.no_grad():
        taught.weight.copy_(known.weights)
        taught.gamma.copy_(model.gamma)
        taught.centre.copy_(model.centre)
        taught.whitening.copy_(model.whitening)
        taught.offset.copy_(model.offset)
        taught.bias.copy_(known.bias)
        if places:
            taught.exemplars.copy_(places.exemplars)
            taught.exemplar_weights.copy_(places.weights)
    return taught.eval()


def _check_names(new: Photos, check: Photos, classes: Sequence[str]) -> None:
    if not new:
        raise FewgraftError("there is nothing to learn: no class has a photo")
    for name in check:
        if name not in classes and name not in new:
            raise FewgraftError(
                f"the check photos name '{name}', which the classifier does not know",
                nearest(name, [*classes, *new]),
            )


def _line(lesson: Lesson, used: bool, unlabelled: int) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    counts = torch.bincount(lesson.labels, minlength=len(lesson.taught)).tolist()
    taught = ", ".join(f"{n} ({c})" for n, c in zip(lesson.taught, counts, strict=True))
    with_unlabelled = f" with a pile of {unlabelled}" if used else ""
    return f"{today}: {taught}{with_unlabelled}"


def _notes(examples: Labelled, answer: JudgedLesson, tolerance: float) -> tuple[str, ...]:
    notes = []
    alone = len(examples.photos) - len(answer.left_out.photos)
    if alone:
        notes.append(
            f"{alone} of the new photos are the only ones of their class and cannot be judged by "
            "leaving them out; a second photo would change that"
        )
    check = answer.check
    if check and check.loses_more_than(tolerance):
        notes.append(
            f"the old classes lose {check.accuracy_before - check.accuracy_after:.1%} on the check "
            "photos even so: some of the new classes look like old ones"
        )
    return tuple(notes)
