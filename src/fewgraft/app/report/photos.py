"""The photos of a lesson: what classes were learnt from, likely mistakes, what to label next."""

from collections.abc import Iterable

from fewgraft.app.features.embedding import Photo
from fewgraft.app.learning.learn import Outcome
from fewgraft.app.report.findings import Mistake, doubtful_helpers, helpers, mistakes
from fewgraft.app.report.thumbnails import Names, thumbnail
from fewgraft.html import Html, counted, joined, picture_uri, tag

MOST_EXAMPLES = 12  # photos of each kind for each taught class
MOST_OF_CLASSES = 400  # photos of all taught classes, so that a page of many stays small
MOST_MISTAKES = 24
MOST_DOUBTFUL = 12
MOST_REVIEWED = 100


def _figure(photo: Photo, name: str, kind: str, *lines: str) -> Html:
    """A photo with a few words under it; where it cannot be read by now, its name alone."""
    image = thumbnail(photo)
    said = ", ".join(filter(None, lines))
    shown = (
        tag("img", src=picture_uri(image, "jpeg"), alt=said)
        if image
        else tag("div", "no picture", class_="missing")
    )
    first, *others = filter(None, [*lines, name])
    caption = tag("figcaption", first, *(tag("span", line) for line in others))
    return tag("figure", shown, caption, class_=kind, title=f"{name}: {said}" if name else said)


def _pictures(figures: Iterable[Html]) -> Html:
    return tag("div", *figures, class_="pictures photos")


def taught(outcome: Outcome, names: Names) -> Html:
    """A card for each taught class: its examples and the pile’s photos that helped it most."""
    text = "Each class is the mean of its labelled photos"
    if outcome.used_unlabelled:
        text += (
            " and of the pile, in which a photo weighs as much as it is likely to be of the class "
            "(1.00: as much as a labelled one). Shown are the weightiest, with the round of "
            "refinement from which on they counted"
        )
    most = MOST_OF_CLASSES // (2 * len(outcome.taught))
    most = max(2, min(MOST_EXAMPLES, most))
    cards = [_card(outcome, name, names, most) for name in outcome.taught]
    return joined([tag("p", f"{text}."), *cards])


def _card(outcome: Outcome, name: str, names: Names, most: int) -> Html:
    examples, unlabelled = outcome.examples[name], outcome.unlabelled
    rows = helpers(outcome, name)
    facts = [counted(len(examples), "labelled photo")]
    before = outcome.before.card
    if name in before.classes:
        known = before.examples[before.classes.index(name)] if before.examples else 0
        facts.append(f"known before from {counted(known, 'photo')}" if known else "known before")
    if outcome.used_unlabelled:
        weight = f", {unlabelled.weight[rows].sum():.1f} in weight" if rows else ""
        facts.append(f"{counted(len(rows), 'photo')} of the pile{weight}")
    if max(len(examples), len(rows)) > most:
        facts.append(f"at most {most} of each are shown")
    labelled = [
        _figure(photo, names(photo, number), "support", "labelled")
        for number, photo in enumerate(examples[:most])
    ]
    helped = [
        _figure(
            unlabelled.photos[row],
            names(unlabelled.photos[row], row),
            "right",
            f"{unlabelled.weight[row]:.2f}",
            f"from round {unlabelled.step[row]}",
        )
        for row in rows[:most]
    ]
    return tag(
        "article",
        tag("h3", name),
        tag("p", f"{'; '.join(facts)}."),
        _pictures([*labelled, *helped]),
        class_="card prototype",
    )


def likely_mistakes(outcome: Outcome, names: Names) -> Html:
    """Photos that are named wrongly, and photos of the pile that may have misled."""
    return joined([_named_wrongly(outcome, names), _perhaps_misleading(outcome, names)])


def _named_wrongly(outcome: Outcome, names: Names) -> Html:
    found = mistakes(outcome)
    if not found:
        judged = outcome.check or outcome.left_out.after
        return tag("p", "All photos whose class is known are named right.") if judged else Html()
    asked = len(outcome.left_out.photos) + (len(outcome.check.photos) if outcome.check else 0)
    text = (
        f"Of {counted(asked, 'photo')} whose class is known, {len(found)} "
        f"{'is' if len(found) == 1 else 'are'} named wrongly now"
        f"{_some(len(found), MOST_MISTAKES)}: what it is → what it is taken for. Sometimes it is "
        "the label that is wrong."
    )
    return joined(
        [tag("p", text), _pictures(_mistake(one, names) for one in found[:MOST_MISTAKES])]
    )


def _mistake(one: Mistake, names: Names) -> Html:
    was = "right before" if one.was_right else ""
    return _figure(one.photo, names(one.photo), "wrong", f"{one.truth} → {one.answer}", was)


def _perhaps_misleading(outcome: Outcome, names: Names) -> Html:
    found = doubtful_helpers(outcome)
    if not found:
        return Html()
    helped = int((outcome.unlabelled.step > 0).sum())
    text = (
        f"Of {counted(helped, 'photo')} that helped a class, {len(found)} may have misled it"
        f"{_some(len(found), MOST_DOUBTFUL)}: what it counted for and how much → what it is taken "
        "for in the end and by which margin."
    )
    figures = [_doubtful(outcome, row, names) for row in found[:MOST_DOUBTFUL]]
    return joined([tag("h3", "In the pile", class_="next"), tag("p", text), _pictures(figures)])


def _some(there: int, shown: int) -> str:
    return f" ({shown} of them are shown)" if there > shown else ""


def _doubtful(outcome: Outcome, row: int, names: Names) -> Html:
    unlabelled = outcome.unlabelled
    counted_for = f"{outcome.taught[unlabelled.helped[row]]} {unlabelled.weight[row]:.2f}"
    taken = outcome.model.card.classes[unlabelled.answer[row]]
    taken_for = f"→ {taken} {unlabelled.margin[row]:.2f}"
    photo = unlabelled.photos[row]
    return _figure(photo, names(photo, row), "doubtful", counted_for, taken_for)


def review(outcome: Outcome, names: Names) -> Html:
    """The photos to label next, as a contact sheet."""
    unlabelled = outcome.unlabelled
    if not unlabelled.review:
        return Html()
    text = (
        "Labels for these photos of the pile would teach most, the first more than the last: they "
        "lie between two classes. Under each stand the class that is proposed and its margin over "
        "the second best, from 0 (a toss) to 1 (sure)."
    )
    if len(unlabelled.review) > MOST_REVIEWED:
        text += f" The first {MOST_REVIEWED} of {len(unlabelled.review)} are shown."
    figures = [
        _figure(
            unlabelled.photos[row],
            names(unlabelled.photos[row], row),
            "review",
            f"{outcome.model.card.classes[unlabelled.answer[row]]}?",
            f"margin {unlabelled.margin[row]:.2f}",
        )
        for row in unlabelled.review[:MOST_REVIEWED]
    ]
    return joined([tag("p", text), _pictures(figures)])
