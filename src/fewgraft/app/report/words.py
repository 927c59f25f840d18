"""What a lesson led to, in plain words: at first, about "unknown", and about the numbers."""

from collections.abc import Sequence

from fewgraft.app.learning.learn import Outcome, border_of, limit_before
from fewgraft.app.report.findings import old_unmeasured
from fewgraft.html import Html, counted, joined, listed, percent, tag
from fewgraft.model import Unknown

HOW_TO_MEASURE = (
    "Photos of old classes tell, in one folder per class: a few that the classifier was not made "
    "from. New classes are then held back where the old ones would lose too much."
)
MEASURING = "fewgraft learn v1 --new photos/new --check photos/old_val --out v2"
METHODS = {
    "refine": "refine: classes are directions, which the pile refines",
    "graft": "graft: classes are directions, and where their photos lie",
}
NAMED = 5  # classes, before the rest is only counted


def summary(outcome: Outcome) -> Html:
    """What happened in plain words, with what to beware of set apart."""
    sentences = [_said_of_old(outcome), _said_of_taught(outcome), _said_of_unlabelled(outcome)]
    warnings = [f"The pile was not used: {outcome.why_not}."] if outcome.why_not else []
    warnings += [f"{note[:1].upper()}{note[1:]}." for note in outcome.notes]
    return joined(
        [
            _unmeasured(outcome),
            tag("p", _said_at_first(outcome), class_="lede"),
            tag("p", " ".join(filter(None, sentences))),
            *(tag("p", warning, class_="notice") for warning in warnings),
        ]
    )


def _unmeasured(outcome: Outcome) -> Html:
    """Before all else: that the loss of old classes is not known, and how to know it."""
    if not old_unmeasured(outcome):
        return Html()
    return tag(
        "p",
        tag("strong", "What the old classes lost was not measured on photos of theirs."),
        f" {HOW_TO_MEASURE}",
        tag("code", MEASURING),
        class_="notice first",
    )


def _said_at_first(outcome: Outcome) -> Html:
    before, now = len(outcome.before.card.classes), len(outcome.model.card.classes)
    again = [name for name in outcome.taught if name in outcome.before.card.classes]
    photos = counted(sum(map(len, outcome.examples.values())), "photo")
    more = f"more about {few(again)}" if again else ""
    new = counted(now - before, "new class") if now > before else ""
    learnt = tag("strong", listed([part for part in (new, more) if part]))
    apart = f"it {'now ' if new else ''}tells {now} classes apart{'' if new else ', as before'}"
    return joined([f"From {photos} the classifier learnt ", learnt, f"; {apart}."])


def _said_of_old(outcome: Outcome) -> str:
    check = outcome.check
    if check is None:  # which is said before all else
        return ""
    before, now = (_right(check.truth, answers) for answers in (check.before, check.after))
    said = f"{now} of {counted(len(check.photos), 'check photo')} named right"
    if before == now:
        return f"The old classes lost nothing: {said}, as before."
    verb = "lost" if before > now else "gained"
    points = percent(abs(before - now) / len(check.photos))
    return f"The old classes {verb} {points} points: {said}, {before} before."


def _right(truth: Sequence[str], answers: Sequence[str]) -> int:
    return sum(a == b for a, b in zip(truth, answers, strict=True))


def _said_of_taught(outcome: Outcome) -> str:
    judged, plain = outcome.left_out, outcome.left_out_without_unlabelled
    if not judged.after:
        return (
            "How well the taught classes are recognised is not known: none of them has a second "
            "photo to judge by."
        )
    said = (
        f"When each of {counted(len(judged.photos), 'new photo')} is left out in turn, "
        f"{percent(judged.accuracy_after)} % of them are recognised by what the others taught"
    )
    if not outcome.used_unlabelled:
        return f"{said}."
    if judged.accuracy_after == plain.accuracy_after:
        return f"{said}, as many as without the pile."
    return f"{said}; without the pile it would be {percent(plain.accuracy_after)} %."


def _said_of_unlabelled(outcome: Outcome) -> str:
    """Nothing where the pile was refused: that is said apart."""
    unlabelled = outcome.unlabelled
    if outcome.used_unlabelled:
        helped = int((unlabelled.step > 0).sum()) or "none"
        photos = counted(len(unlabelled.photos), "photo")
        return f"Of the {photos} in the pile, {helped} helped a class."
    if unlabelled.photos:
        return ""
    readable = " that could be read" if outcome.failed else ""
    return f"There was no pile of unlabelled photos{readable}."


def few(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    if len(names) <= NAMED:
        return listed(names)
    return f"{', '.join(names[: NAMED - 1])} and {len(names) - NAMED + 1} more classes"


def unknown(outcome: Outcome) -> Html:
    """The threshold and what it costs."""
    limit = outcome.model.card.unknown
    if limit is None:
        text = "The classifier never answers “unknown”: it names the likeliest class of any photo."
        return tag("p", text)
    text = (
        "Where no class fits well, the answer is “unknown”: the best class then scores less than "
        f"{limit.threshold:.2f}.{_whence(outcome, limit)} {percent(limit.false_rejects)} % "
        f"of {limit.pictures} {limit.chosen_on}, on which it was chosen. All of them are of known "
        f"classes: expect about {_in_100(limit.false_rejects)} good photos to be turned away. "
        f"{_said_of_foreign(outcome)} The accuracies on this page leave “unknown” aside."
    )
    return tag("p", text)


def _whence(outcome: Outcome, limit: Unknown) -> str:
    """How the threshold came about, and the beginning of what it costs."""
    before = limit_before(outcome.before.card, outcome.choice)
    if limit == before:
        return " It is that of before the lesson. This threshold turns away"
    if before and (limit.pictures, limit.chosen_on) == (before.pictures, before.chosen_on):
        return (
            " The lesson lowered it to what 95 % of new photos reached in rehearsals. Before that "
            "it turned away"
        )
    return " This threshold turns away"


def _said_of_foreign(outcome: Outcome) -> str:
    foreign = outcome.foreign
    if foreign is None:
        return (
            "How many photos of other things are turned away was not measured (--foreign measures "
            "it)."
        )
    said = f"Of {counted(foreign.photos, 'foreign photo')}, {foreign.rejected} are turned away"
    told = f" (AUROC of the best score: {foreign.auroc:.2f})" if foreign.auroc is not None else ""
    return f"{said}{told}."


def _in_100(share: float) -> str:
    return f"{round(100 * share)} in 100" if share >= 0.005 else "none of 100"


def origin(outcome: Outcome) -> Html:
    """What each number means, and what it does not."""
    card = outcome.model.card
    facts = {
        "Left out": "Each new photo is judged by a classifier that learnt from all the others"
        f"{' and the pile' if outcome.used_unlabelled else ''}, but not from it. A photo that is "
        "the only one of its class cannot be judged so. With few photos such a share is rough.",
        "Check photos": _said_of_check(outcome),
        "Border": _said_of_bias(outcome),
        "The pile": "It is used only if no fewer new photos are recognised when left out than "
        "without it, and if the old classes lose no more than "
        f"{100 * outcome.tolerance:.2g} percentage points of the check photos.",
        "Method": f"{METHODS[outcome.choice.method]}. Why: {outcome.choice.why}.",
        "Classifier": f"{card.backbone}, {len(card.classes)} classes",
        "Lessons": "; ".join(card.lessons),
    }
    pairs = [part for key, value in facts.items() for part in (tag("dt", key), tag("dd", value))]
    return tag("dl", *pairs)


def _said_of_check(outcome: Outcome) -> str:
    if outcome.check is None:
        return (
            "None of old classes were given, so nothing here says what those lost. Photos with "
            "known classes (--check) would tell."
        )
    return (
        f"{len(outcome.check.photos)} photos of {len(set(outcome.check.truth))} classes that were "
        "not taught, answered by the classifier before the lesson and after it."
    )


def _said_of_bias(outcome: Outcome) -> str:
    new = outcome.model.bias[len(outcome.before.card.classes) :]
    if not len(new):
        return "None: no class is new."
    by_what = [
        *(["rehearsed lessons"] if border_of(outcome.before.card, outcome.choice) else []),
        *(["the check photos"] if outcome.check else []),
    ]
    if not by_what:
        return "None: there is nothing to choose it on. Check photos (--check) would tell."
    low, high = new.min().item(), new.max().item()
    pushes = f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}"
    said = (
        f"The scores of new classes are moved by {pushes}: the best for old and new classes "
        f"together, as long as old ones lose no more than {100 * outcome.tolerance:.2g} percentage "
        f"points, by {listed(by_what)}."
    )
    if outcome.check is None:
        return said
    return (
        f"{said} The check photos had a say in this, so their “after” is no independent "
        "measurement: expect a little less on other photos."
    )
