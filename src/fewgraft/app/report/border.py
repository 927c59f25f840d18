"""Where new classes begin: what rehearsed lessons lost and found, as a table."""

from fewgraft.app.learning.learn import Outcome, border_of
from fewgraft.border import Border, Tradeoff
from fewgraft.html import Html, boxed, joined, percent, tag

TOLERANCES = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.05)


def border(outcome: Outcome) -> Html:
    """The rehearsed trade-off, or that there is none."""
    found = border_of(outcome.before.card, outcome.choice)
    if found is None:
        text = (
            "No lesson was rehearsed for this classifier: its base has too few photos or was not "
            "made by this tool. New classes are neither pushed nor held back unless check photos "
            "say so."
        )
        return tag("p", text)
    text = (
        f"When the base classifier was made, {found.lessons} lessons were rehearsed per row with "
        f"base classes that pretended to be new, {found.ways:.0f} at a time. The table says which "
        "share of their photos was found if old classes may lose so much (--tolerance). The shares "
        "compare borders; they are no forecast for other classes."
    )
    return joined([tag("p", text), boxed(_table(found), "Rehearsed lessons"), _pushes(found)])


def _table(found: Border) -> Html:
    head = ["may lose", "found without a pile", "with a poor pile", "with a good pile"]
    curves = [found.without_unlabelled, found.with_unlabelled[0], found.with_unlabelled[-1]]
    rows = [
        [f"{100 * tolerance:g} points", *(f"{percent(_found(c, tolerance))} %" for c in curves)]
        for tolerance in TOLERANCES
    ]
    lines = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    heads = tag("tr", *(tag("th", cell) for cell in head))
    return tag("table", tag("thead", heads), tag("tbody", *lines))


def _found(curve: Tradeoff, tolerance: float) -> float:
    """The largest share of new photos found within the tolerance."""
    pairs = zip(curve.lost, curve.found, strict=True)
    return max((found for lost, found in pairs if lost <= tolerance), default=0.0)


def _pushes(found: Border) -> Html:
    pairs = zip(found.counts, found.biases, strict=True)
    said = ", ".join(f"{count}: {bias:+.3f}" for count, bias in pairs)
    return tag(
        "p", f"Push in cosines by the photos behind a class, with no bound on losses: {said}."
    )
