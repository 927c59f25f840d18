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
NOISE = 2.0  # standard errors


@dataclass(frozen=True)
class Choice:
    """What was chosen."""

    method: str  # refine or graft
    why: str  # in plain words


def choose(card: ModelCard, asked: str) -> Choice:
    """The method for a lesson of this classifier."""
    if asked not in METHODS:
        raise FewgraftError(f"there is no method '{asked}'", nearest(asked, METHODS))
    if card.density is not None:
        return _after_graft(asked)
    if card.graft is None or not card.exemplars:
        return _without_exemplars(card, asked)
    said = figures(card.graft)
    if asked != "auto":
        return Choice(asked, f"as asked for; {said}")
    return Choice("graft" if is_better(card.graft) else "refine", said)


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


def _after_graft(asked: str) -> Choice:
    if asked == "refine":
        raise FewgraftError(
            "this classifier was taught with graft, and its classes are scored by exemplars too",
            "Teach the base classifier with --method refine, or go on with --method graft.",
        )
    return Choice("graft", "as in earlier lessons")


def _without_exemplars(card: ModelCard, asked: str) -> Choice:
    """Classifiers of earlier versions, of few photos, of a head; those taught with refine."""
    taught = bool(card.lessons)
    if asked == "graft":
        why = ": earlier lessons were learnt with refine" if taught else ""
        raise FewgraftError(
            f"graft needs exemplars of the old classes, and this classifier keeps none{why}",
            "Teach its base classifier with --method graft."
            if taught
            else "Run fewgraft base again: it keeps them where lessons can be rehearsed, with six "
            "classes of three photos each or more.",
        )
    if asked == "refine":
        return Choice("refine", "as asked for")
    if taught:
        return Choice("refine", "as in earlier lessons")
    return Choice(
        "refine",
        "the base classifier keeps no exemplars to compare it with graft; fewgraft base keeps them "
        "where lessons can be rehearsed",
    )
