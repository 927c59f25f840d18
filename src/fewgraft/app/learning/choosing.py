"""Which method a lesson is learnt with, and why.

    refine   cosines to class directions, refined with the pile (Eqs. 3–4)
    graft    the same with exemplar densities and a space of the new classes' own
    auto     graft where rehearsed lessons say that it is better by more than their noise

A classifier stays with the method of its first lesson: scores with densities and scores without
them have borders of their own.
"""

from dataclasses import dataclass

from fewgraft.errors import FewgraftError, nearest
from fewgraft.model import GraftRehearsed, ModelCard

METHODS = ("auto", "refine", "graft")
NOISE = 3.0  # standard errors: draws share classes, and so vary less than lessons to come


@dataclass(frozen=True)
class MethodChoice:
    """What was chosen."""

    method: str  # refine or graft
    why: str  # in plain words


def choose(card: ModelCard, asked: str, *, own_settings: bool = False) -> MethodChoice:
    """The method for a lesson of this classifier; settings of one's own are those of refine."""
    if asked not in METHODS:
        raise FewgraftError(f"there is no method '{asked}'", nearest(asked, METHODS))
    if card.density is not None:
        return _after_graft(asked)
    if card.graft is None or not card.exemplars:
        return _without_exemplars(card, asked)
    if asked == "auto" and own_settings:
        return MethodChoice("refine", "its settings were given")
    said = figures(card.graft)
    if asked != "auto":
        return MethodChoice(asked, f"as asked for; {said}")
    return MethodChoice("graft" if is_better(card.graft) else "refine", said)


def is_better(rehearsed: GraftRehearsed) -> bool:
    """Whether graft is ahead by more than the noise of rehearsals."""
    return rehearsed.graft - rehearsed.refine > NOISE * rehearsed.error


def figures(rehearsed: GraftRehearsed) -> str:
    """What rehearsals say of both methods."""
    ahead = 100 * (rehearsed.graft - rehearsed.refine)
    return (
        f"in {rehearsed.draws} draws of rehearsed lessons old and new photos were right in "
        f"{rehearsed.refine:.1%} with refine and in {rehearsed.graft:.1%} with graft, "
        f"{ahead:+.1f} ± {100 * NOISE * rehearsed.error:.1f} points"
    )


def _after_graft(asked: str) -> MethodChoice:
    if asked == "refine":
        raise FewgraftError(
            "this classifier was taught with graft, and its classes are scored by exemplars too",
            "Teach the base classifier with --method refine, or go on with --method graft.",
        )
    return MethodChoice("graft", "as in earlier lessons")


def _without_exemplars(card: ModelCard, asked: str) -> MethodChoice:
    """Classifiers of earlier versions, of few photos, of a head; those taught with refine."""
    taught = card.stage == "learnt"
    if asked == "graft":
        why = ": earlier lessons were learnt with refine" if taught else ""
        raise FewgraftError(
            f"graft needs exemplars of the old classes, and this classifier keeps none{why}",
            "Teach its base classifier with --method graft."
            if taught
            else "Make it anew with fewgraft base, from photos: it keeps exemplars where there are "
            "six classes of three photos or more, and no more classes than fit into 3 MB.",
        )
    if asked == "refine":
        return MethodChoice("refine", "as asked for")
    if taught:
        return MethodChoice("refine", "as in earlier lessons")
    return MethodChoice(
        "refine",
        "the classifier keeps no exemplars of its classes, which graft needs; fewgraft base keeps "
        "them where lessons can be rehearsed",
    )
