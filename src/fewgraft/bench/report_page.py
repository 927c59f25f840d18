"""The report of a benchmark as one HTML file."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from PIL import Image

from fewgraft.bench import tables
from fewgraft.bench.leaderboard import leaderboard, script
from fewgraft.bench.report import Answered, Figure, Findings, Headline, MadeOf, UnlabelledPicture
from fewgraft.bench.results import Row
from fewgraft.bench.table_formats import without_constants
from fewgraft.data.store import ImageStore
from fewgraft.html import (
    Html,
    HtmlPart,
    bar,
    bars,
    boxed,
    counted,
    data_uri,
    document,
    joined,
    listed,
    matrix,
    percent,
    picture_uri,
    tag,
    tile,
)
from fewgraft.metrics import Confusion, Interval

WORST_SHOWN = 12  # classes, before one has to unfold the rest
LARGEST_THUMBNAIL = 64  # pixels; pictures are small, pages with many of them should be too


def thumbnail(store: ImageStore, picture: int, alt: str) -> Html:
    """A picture of the data."""
    pixels = store.pictures[picture]
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((LARGEST_THUMBNAIL, LARGEST_THUMBNAIL))
    return tag("img", src=picture_uri(image), alt=alt, class_="pixels")


# ------------------------------------------------------------------------------------------ page


def page(findings: Findings) -> str:
    """The whole file."""
    top = findings.headline
    title = f"Fewgraft on {top.subject.data}"
    start = script() if findings.places else ""
    return document(title, joined([summary(top), tiles(top)]), _parts(findings), start)


def _parts(findings: Findings) -> list[HtmlPart]:
    store = findings.store
    return [
        HtmlPart("leaderboard", "All rows", leaderboard(findings.places)),
        HtmlPart("tables", "Tables", joined(map(table, findings.tables))),
        *(HtmlPart(f"figure-{n}", f.title, figure(f)) for n, f in enumerate(findings.figures)),
        HtmlPart("confusion", "Where pictures go", confusions(findings.answered)),
        HtmlPart(
            "classes", "Class by class", classes(findings.answered, store) if store else Html()
        ),
        HtmlPart(
            "unlabelled",
            "What made the prototypes",
            prototypes(findings, store) if store else Html(),
        ),
        HtmlPart("origin", "Where the numbers come from", origin(findings)),
    ]


# --------------------------------------------------------------------------------------- headline


def summary(top: Headline) -> Html:
    """The key numbers in plain words."""
    subject, acc = top.subject, top.subject.interval("acc")
    among = (
        f" among {subject.n_base} old (base) and {subject.ways} new (novel) classes"
        if subject.n_base
        else ""
    )
    first = tag(
        "p",
        f"From {counted(subject.shots, 'labelled picture')} of each of {subject.ways} new classes"
        f"{_unlabelled(subject)}, ",
        tag("strong", subject.title),
        f" learns to name {percent(acc.mean)} ± {percent(acc.half)} % of all test pictures "
        f"right{among}, on average over {subject.episodes} episodes.",
        class_="lede",
    )
    sentences = [
        _comparison(row, difference)
        + (", which has the same freedom" if row == top.counterpart else "")
        for row, difference in top.others
    ]
    others = f"On the same episodes that is {listed(sentences)}." if sentences else ""
    forgotten = (
        f" Of the old classes’ pictures it names {percent(subject.interval('b_all').mean)} % "
        f"right; with only old classes to choose from it would be "
        f"{percent(subject.interval('b_b').mean)} %."
        if subject.n_base
        else ""
    )
    return joined([first, tag("p", (others + forgotten).strip())])


def _unlabelled(row: Row) -> str:
    size = row.episode_settings["unlabelled"]
    if row.setting in ("s2i-transductive", "transductive-fsl"):
        return " and the test pictures themselves, unlabelled"
    return f" and {size} unlabelled pictures" if size else ""


def _comparison(row: Row, difference: Interval) -> str:
    how_much = f"{percent(abs(difference.mean))} ± {percent(difference.half)} points"
    without = " without unlabelled pictures" if row.setting == "incremental" else ""
    if not difference.excludes_zero:
        return f"not clearly different from {row.title}{without} ({how_much})"
    return f"{how_much} {'more' if difference.mean > 0 else 'less'} than {row.title}{without}"


def tiles(top: Headline) -> Html:
    """Four numbers to take away, beside those of the fair counterpart."""
    shown = {
        "acc": ("all pictures", "named right among all classes"),
        "n_all": ("new classes", "of their pictures named right"),
        "b_all": ("old classes", "of their pictures named right"),
        "delta": ("Δ", "what old and new classes take from each other; nearer 0 is better"),
    }
    rival = top.counterpart
    found = []
    for metric, (title, meaning) in shown.items():
        value = top.subject.interval(metric).mean
        if math.isnan(value):  # a setting without base classes
            continue
        other = f"{rival.title}: {percent(rival.interval(metric).mean)}" if rival else ""
        unit = " %" if metric != "delta" else " points"
        found.append(tile(title, percent(value), unit, meaning, other))
    return tag("ul", *found, class_="tiles")


# ----------------------------------------------------------------------------------------- tables


def table(whole: tables.Table) -> Html:
    """One of the paper's tables; a wide one scrolls in a box of its own."""
    shown, constant = without_constants(whole)
    kinds = _kinds(shown.columns)
    cells = [cell for section in shown.sections for row in section.rows for cell in row]
    element = tag(
        "table",
        tag(
            "thead",
            tag("tr", *_groups(shown.columns, kinds), class_="groups"),
            tag(
                "tr",
                *(
                    tag("th", column.name, scope="col", class_=kind)
                    for column, kind in zip(shown.columns, kinds, strict=True)
                ),
            ),
        ),
        *(_table_body(section, kinds) for section in shown.sections),
        aria_label=shown.title,
        class_="marked" if any(cell.mark for cell in cells) else "",
    )
    note = tag("p", " ".join([shown.note, *constant]), class_="note")
    return joined([boxed(element, shown.title, tag("h3", shown.title)), note])


def _kinds(columns: Sequence[tables.Column]) -> list[str]:
    """Of numbers or not, and whether a group of columns begins: as CSS classes."""
    before = ["", *(column.group for column in columns)]
    return [
        ("number" if column.numeric else "label")
        + (" start" if column.numeric and column.group != group else "")
        for column, group in zip(columns, before, strict=False)
    ]


def _groups(columns: Sequence[tables.Column], kinds: Sequence[str]) -> Iterator[Html]:
    place = 0
    for group, members in groupby(columns, lambda column: column.group):
        width = len(list(members))
        scope = {"scope": "colgroup"} if group else {}
        yield tag("th", group, colspan=str(width), class_=kinds[place], **scope)
        place += width


def _table_body(section: tables.Section, kinds: Sequence[str]) -> Html:
    title = tag("th", section.title, scope="rowgroup", colspan=str(len(kinds)))
    lines = [
        tag(
            "tr",
            tag("th", row[0].text, scope="row"),
            *(
                tag("td", _cell(c), class_=kind)
                for c, kind in list(zip(row, kinds, strict=True))[1:]
            ),
        )
        for row in section.rows
    ]
    return tag("tbody", tag("tr", title, class_="section") if section.title else "", *lines)


def _cell(cell: tables.Cell) -> Html:
    if cell.value is None:
        return joined([cell.text])
    mean, sign, half = cell.text.replace("-", "−").partition(" ± ")
    text = tag("strong", mean) if cell.bold else joined([mean])
    interval = tag("small", sign + half) if sign else ""
    direction = "up" if "↑" in cell.mark else "down"
    return joined([text, interval, tag("span", cell.mark, class_=f"mark {direction}")])


# ---------------------------------------------------------------------------------------- figures


def figure(shown: Figure) -> Html:
    """A drawing with its own words under it."""
    image = tag("img", src=data_uri(shown.png), alt=shown.text, class_="drawing")
    return tag("figure", boxed(image, shown.title), tag("figcaption", shown.text))


# ---------------------------------------------------------------------------------------- answers


def confusions(found: Sequence[Answered]) -> Html:
    """A matrix a method."""
    if not found:
        return Html()
    first = found[0].row
    crossing = [
        f"{one.row.title} takes {percent(one.confusion.base_to_novel)} of 100 old classes’ "
        "pictures for new ones"
        for one in found
    ]
    text = (
        "Of 100 pictures of old and of new classes, how many are named right, mistaken within "
        f"their own group, or across the border between the two ({first.shots}-shot, "
        f"{first.episodes} episodes). {'; '.join(crossing)}."
    )
    matrices = [_matrix(one.row.title, one.confusion) for one in found]
    return joined([tag("p", text), tag("div", *matrices, class_="matrices")])


def _matrix(title: str, shares: Confusion) -> Html:
    columns = ("right", "wrong, same group", "wrong group")
    rows = {
        "old classes": (shares.base_right, shares.base_to_other_base, shares.base_to_novel),
        "new classes": (shares.novel_right, shares.novel_to_other_novel, shares.novel_to_base),
    }
    return matrix(title, columns, rows)


def classes(found: Sequence[Answered], store: ImageStore) -> Html:
    """Bars for novel and for base classes, the worst first."""
    if not found:
        return Html()
    subject, rival = found[-1], found[0] if len(found) > 1 else None
    text = f"Share of each class’s test pictures that {subject.row.title} names right, worst first"
    text += f"; the line across a bar is {rival.row.title}." if rival else "."
    n_base = subject.row.n_base
    groups = {
        "New classes": [label for label in subject.classes if label >= n_base],
        "Old classes": [label for label in subject.classes if label < n_base],
    }
    columns = [
        _bars(title, labels, subject, rival, store) for title, labels in groups.items() if labels
    ]
    return joined([tag("p", text), tag("div", *columns, class_="columns")])


def _share(one: Answered, label: int) -> float:
    right, asked = one.classes[label]
    return right / asked


def _bars(
    title: str,
    labels: Iterable[int],
    subject: Answered,
    rival: Answered | None,
    store: ImageStore,
) -> Html:
    order = sorted(labels, key=lambda label: (_share(subject, label), store.name_of(label)))
    ordered = [_bar(label, subject, rival, store) for label in order]
    return bars(title, ordered, WORST_SHOWN)


def _bar(label: int, subject: Answered, rival: Answered | None, store: ImageStore) -> Html:
    right, asked = subject.classes[label]
    more, there = f"{right} of {asked}", None
    if rival and label in rival.classes:
        there = _share(rival, label)
        more += f"; {rival.row.title}: {percent(there, 0)} %"
    example = int((store.labels == label).argmax())
    picture = thumbnail(store, example, alt="")
    return bar(store.name_of(label), right / asked, there, title=more, picture=picture)


# ------------------------------------------------------------------------------------- prototypes


def prototypes(findings: Findings, store: ImageStore) -> Html:
    """A card for each novel class of one episode."""
    if not findings.made:
        return Html()
    row = findings.answered[-1].row
    text = (
        f"Test episode {findings.episode} under {row.title}. Each new class’s prototype is the "
        "mean of its labelled pictures (weight 1) and of the unlabelled set, weighted by "
        "pseudo-label. Shown are the unlabelled pictures of largest weight: ✓ truly of that class, "
        "✗ of another."
    )
    return joined([tag("p", text), *(_card(made, store) for made in findings.made)])


def _card(made: MadeOf, store: ImageStore) -> Html:
    share = made.right_weight / made.weight if made.weight else 0.0
    facts = (
        f"The unlabelled set holds {counted(made.there, 'picture')} of it. All of it weighs "
        f"{made.weight:.1f}, beside {counted(len(made.support), 'labelled picture')}; "
        f"{percent(share, 0)} % of that weight is truly {made.name}."
    )
    supports = [
        tag(
            "figure",
            thumbnail(store, picture, alt=f"Labelled picture of {made.name}"),
            tag("figcaption", "labelled"),
            class_="support",
        )
        for picture in made.support
    ]
    unlabelled = [_unlabelled_picture(one, store) for one in made.unlabelled]
    mistakes = [_unlabelled_picture(one, store) for one in made.mistakes]
    wrong = [
        tag("h4", "Further down, the weightiest pictures of other classes"),
        tag("div", *mistakes, class_="pictures"),
    ]
    return tag(
        "article",
        tag("h3", made.name),
        tag("p", facts),
        tag("div", *supports, *unlabelled, class_="pictures"),
        *(wrong if mistakes else []),
        class_="card prototype",
    )


def _unlabelled_picture(one: UnlabelledPicture, store: ImageStore) -> Html:
    verdict = "truly of this class" if one.right else f"in truth {one.name}"
    text = f"✓ {one.weight:.2f}" if one.right else f"✗ {one.weight:.2f}"
    name = "" if one.right else tag("span", one.name)
    return tag(
        "figure",
        thumbnail(
            store, one.picture, alt=f"Unlabelled picture of weight {one.weight:.2f}, {verdict}"
        ),
        tag("figcaption", text, name),
        class_="right" if one.right else "wrong",
        title=f"weight {one.weight:.3f}, {verdict}",
    )


# ----------------------------------------------------------------------------------------- origin


def origin(findings: Findings) -> Html:
    """All that is needed to make the numbers again."""
    row = findings.headline.subject
    facts = {
        "Recipe": row.recipe,
        "Data": f"{row.data}, content {row.content[:16]}",
        "Models": f"{row.models} ({row.backbone}); {row.stage} has weights {row.weights}",
        "Episodes": f"{row.episodes} of {row.split}, seed {row.episode_settings['seed']}, "
        f"hash {row.episode_hash}",
        "Hyper-parameters": ", ".join(f"{k} {v}" for k, v in row.hyper.items()) or "none",
        "Versions": ", ".join(f"{k} {v}" for k, v in row.versions.items()),
        "Machine": row.machine,
        "Compute again": f"fewgraft bench rerun {row.id} --in FOLDER",
    }
    pairs = [part for key, value in facts.items() for part in (tag("dt", key), tag("dd", value))]
    text = tag("p", f"For the row of {row.title} above; every row of results.jsonl tells its own.")
    lines = [tag("li", line) for line in findings.missing]
    missing = joined([tag("h3", "Not shown"), tag("ul", *lines)]) if lines else ""
    return joined([text, tag("dl", *pairs), missing])
