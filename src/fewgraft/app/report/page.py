"""The report of a lesson as one HTML file: what was gained, what was lost, and on which photos."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from fewgraft.app.features.embedding import Photo
from fewgraft.app.learning.judging import Judged
from fewgraft.app.learning.learn import Outcome
from fewgraft.app.report.border import border
from fewgraft.app.report.findings import ClassShare, Crossing, class_shares, crossings, group_shares
from fewgraft.app.report.photos import likely_mistakes, review, taught
from fewgraft.app.report.thumbnails import Names
from fewgraft.app.report.words import few, origin, summary, unknown
from fewgraft.html import (
    Html,
    HtmlPart,
    bar,
    bars,
    boxed,
    counted,
    document,
    joined,
    matrix,
    percent,
    tag,
    tile,
)

WORST_SHOWN = 12  # classes, before one has to unfold the rest
PAIRS_SHOWN = 12
FAILURES_SHOWN, MOST_FAILURES = 10, 500


def report_page(outcome: Outcome) -> str:
    """The whole file."""
    names = Names.of(_all_photos(outcome))
    title = f"Learnt: {few(outcome.taught)}"
    return document(title, joined([summary(outcome), _tiles(outcome)]), _parts(outcome, names))


def _all_photos(outcome: Outcome) -> Iterable[Photo]:
    check = outcome.check.photos if outcome.check else ()
    return chain(*outcome.examples.values(), check, outcome.unlabelled.photos)


def _parts(outcome: Outcome, names: Names) -> list[HtmlPart]:
    return [
        HtmlPart("classes", "Class by class", _classes(outcome)),
        HtmlPart("confusion", "What is taken for what", _confusion(outcome)),
        HtmlPart("taught", "What the classes were learnt from", taught(outcome, names)),
        HtmlPart("mistakes", "Likely mistakes", likely_mistakes(outcome, names)),
        HtmlPart("review", "Worth a label", review(outcome, names)),
        HtmlPart("unknown", "When the answer is “unknown”", unknown(outcome)),
        HtmlPart("border", "Where new classes begin", border(outcome)),
        HtmlPart("unused", "Photos that could not be used", _unused(outcome, names)),
        HtmlPart("origin", "How the numbers were obtained", origin(outcome)),
    ]


# ------------------------------------------------------------------------------------------ tiles


def _tiles(outcome: Outcome) -> Html:
    """The numbers to take away, before and after."""
    shown = (_all_tile, _old_tile, _taught_tile, _unlabelled_tile)
    return tag("ul", *(of(outcome) for of in shown), class_="tiles")


def _all_tile(outcome: Outcome) -> Html:
    before, now = len(outcome.before.card.classes), len(outcome.model.card.classes)
    return tile("classes", str(now), "", "the classifier tells apart", f"before: {before}")


def _old_tile(outcome: Outcome) -> Html:
    check = outcome.check
    if check is None:
        return Html()
    meaning = f"of {counted(len(check.photos), 'check photo')} named right"
    before = f"before: {percent(check.accuracy_before)} %"
    return tile("old classes", percent(check.accuracy_after), " %", meaning, before)


def _taught_tile(outcome: Outcome) -> Html:
    judged, plain = outcome.left_out, outcome.left_out_without_unlabelled
    if not judged.after:
        return Html()
    meaning = f"of {counted(len(judged.photos), 'new photo')} recognised when left out"
    without = (
        f"without the pile: {percent(plain.accuracy_after)} %" if outcome.used_unlabelled else ""
    )
    return tile("taught classes", percent(judged.accuracy_after), " %", meaning, without)


def _unlabelled_tile(outcome: Outcome) -> Html:
    unlabelled = outcome.unlabelled
    if not unlabelled.photos:
        return Html()
    helped, unit = int((unlabelled.step > 0).sum()), f" of {len(unlabelled.photos)}"
    used = "" if outcome.used_unlabelled else "not used"
    return tile("pile", str(helped), unit, "unlabelled photos helped a class", used)


# ---------------------------------------------------------------------------------------- classes


def _classes(outcome: Outcome) -> Html:
    """Bars for taught and for old classes."""
    columns, said = [], []
    if outcome.left_out.after:
        plain = outcome.left_out_without_unlabelled.after if outcome.used_unlabelled else ()
        shares = class_shares(outcome.left_out, plain)
        shares.sort(key=lambda one: one.right / one.asked)
        columns.append(_bars("Taught classes", shares, "without the pile"))
        line = "; the line across a bar is the share without the pile" if plain else ""
        said.append(f"Taught classes: share of the new photos recognised when left out{line}.")
    if outcome.check:
        shares = class_shares(outcome.check, outcome.check.before)
        shares.sort(key=lambda one: (one.gain / one.asked, one.right / one.asked))
        columns.append(_bars("Old classes", shares, "before"))
        said.append(
            "Old classes: share of the check photos named right, those that lost most first; the "
            "line across a bar is the share before."
        )
    if not columns:
        return Html()
    return joined([tag("p", " ".join(said)), tag("div", *columns, class_="columns")])


def _bars(heading: str, shares: Sequence[ClassShare], otherwise: str) -> Html:
    return bars(heading, [_bar(one, otherwise) for one in shares], WORST_SHOWN, "bars plain")


def _bar(one: ClassShare, otherwise: str) -> Html:
    title, mark = f"{one.right} of {one.asked}", None
    if one.right_otherwise is not None:
        title += f"; {otherwise}: {one.right_otherwise}"
        mark = one.right_otherwise / one.asked
    return bar(one.name, one.right / one.asked, mark, title=title)


# -------------------------------------------------------------------------------------- confusion


def _confusion(outcome: Outcome) -> Html:
    """How many photos cross the border between old and taught classes, and which."""
    new = set(outcome.taught)
    old = set(outcome.model.card.classes) - new
    before, after = {}, {}
    blocks = []
    if outcome.check:
        before["old classes"] = group_shares(outcome.check, outcome.check.before, old)
        after["old classes"] = group_shares(outcome.check, outcome.check.after, old)
        blocks.append(_crossings("Old classes taken for taught ones", outcome.check, old))
    if outcome.left_out.after:
        after["taught classes"] = group_shares(outcome.left_out, outcome.left_out.after, new)
        if outcome.left_out.before:
            answers = outcome.left_out.before
            before["taught classes"] = group_shares(outcome.left_out, answers, new)
        blocks.append(_crossings("Taught classes taken for old ones", outcome.left_out, new))
    if not after:
        return Html()
    columns = ("right", "wrong, same group", "wrong group")
    shown = {"Before": before, "After": after}
    matrices = [matrix(title, columns, rows) for title, rows in shown.items() if rows]
    text = (
        "Of 100 photos of old classes (the check photos) and of taught ones (each new photo left "
        "out in turn), how many are named right, mistaken within their own group, or across the "
        "border between the two."
    )
    return joined(
        [
            tag("p", text),
            tag("div", *matrices, class_="matrices"),
            tag("div", *blocks, class_="columns pairs"),
        ]
    )


def _crossings(title: str, judged: Judged, own: set[str]) -> Html:
    found = crossings(judged, own)
    if not found:
        return tag("div", tag("h3", title), tag("p", f"None of {len(judged.photos)}."))
    with_before = bool(judged.before)
    columns = ["Is", "Taken for", "Photos", *(["Right before"] if with_before else [])]
    head = [tag("th", name, scope="col", class_=_kind(n)) for n, name in enumerate(columns)]
    lines = [tag("tr", *_crossing(one)) for one in found[:PAIRS_SHOWN]]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *lines), aria_label=title)
    rest = len(found) - PAIRS_SHOWN
    more = tag("p", f"And {counted(rest, 'rarer pair')}.", class_="note") if rest > 0 else ""
    return tag("div", boxed(table, title, tag("h3", title)), more)


def _crossing(one: Crossing) -> Iterable[Html]:
    counts = [one.photos] if one.right_before is None else [one.photos, one.right_before]
    yield tag("th", one.truth, scope="row")
    yield tag("td", one.answer)
    yield from (tag("td", str(count), class_="number") for count in counts)


def _kind(column: int) -> str:
    return "number" if column > 1 else "label"


def _unused(outcome: Outcome, names: Names) -> Html:
    """Which photos, and why."""
    if not outcome.failed:
        return Html()
    lines = [
        tag("li", tag("span", names(Path(photo))), tag("span", why, class_="note"))
        for photo, why in list(outcome.failed.items())[:MOST_FAILURES]
    ]
    rest = len(outcome.failed) - len(lines)
    first, more = lines[:FAILURES_SHOWN], lines[FAILURES_SHOWN:]
    unfolded = tag(
        "details",
        tag("summary", f"{len(more) + rest} more"),
        tag("ul", *more, class_="files"),
        tag("p", f"And {rest} more.", class_="note") if rest else "",
    )
    text = f"{counted(len(outcome.failed), 'photo')} skipped; the others were not affected."
    return joined([tag("p", text), tag("ul", *first, class_="files"), unfolded if more else ""])
