"""The report of a lesson and its review sheet: real lessons, a real browser, hostile names."""

import io
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer
from conftest import Pixels, noise
from pages import LOOKS, Strict, assert_fit_to_be_seen, words
from PIL import Image
from typer.testing import CliRunner

from fewgraft.app.features.embedding import Embedder, Photo
from fewgraft.app.learning.learn import LearnSettings, Outcome, learn
from fewgraft.app.learning.saving import open_classifier, save_outcome
from fewgraft.app.report.findings import (
    class_shares,
    crossings,
    doubtful_helpers,
    group_shares,
    helpers,
    mistakes,
    old_unmeasured,
)
from fewgraft.app.report.page import FAILURES_SHOWN, report_page
from fewgraft.app.report.photos import MOST_EXAMPLES, MOST_MISTAKES
from fewgraft.app.report.review import review_sheet
from fewgraft.app.report.thumbnails import SIZE, Names, thumbnail
from fewgraft.cli import tool
from fewgraft.data.contact_sheet import LABEL_WIDTH, Strip, draw_strips
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.html import picture_uri

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

SECTIONS = ["classes", "confusion", "taught", "mistakes", "review", "unknown", "border"]
SECTIONS += ["unused", "origin"]
HOSTILE_CLASS = "<img src=x onerror=y>\"'&"
HOSTILE_FILES = (
    b"<script>alert('x')<script>.png",
    b'two  spaces " onload="z.png',
    b"caf\xe9.png",
    b"a-name-without-a-space-" + 9 * b"that-is-long-" + b".png",
)


@pytest.fixture(scope="module")
def embed() -> Embedder:
    return Embedder(open_classifier("icons"), keep=False, tracker=lambda items, *_: items)


def pixels(icons: ImageStore, pictures: Iterator[int] | list[int]) -> list[Photo]:
    return [np.array(icons.pictures[picture]) for picture in pictures]


def of_class(icons: ImageStore, label: int, part: Part = Part.NOVEL_TEST) -> list[int]:
    return list(icons.by_class(part)[label])


def novel(icons: ImageStore) -> list[int]:
    return list(icons.by_class(Part.NOVEL_TEST))


def saved(photos: list[Photo], folder: Path, names: tuple[bytes, ...] = ()) -> list[Photo]:
    """The same photos as files; the first ones have the names given."""
    folder.mkdir(parents=True)
    paths: list[Photo] = []
    for number, photo in enumerate(photos):
        own = os.fsdecode(names[number]) if number < len(names) else f"{number:03}.png"
        assert isinstance(photo, np.ndarray)
        Image.fromarray(photo[:, :, 0]).save(folder / own)
        paths.append(folder / own)
    return paths


@pytest.fixture(scope="module")
def outcome(
    icons: ImageStore, embed: Embedder, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """A lesson with everything: U, check photos, hostile names, photos that broke since."""
    root = tmp_path_factory.mktemp("photos of icons")
    labels = novel(icons)[:3]
    names = [HOSTILE_CLASS, *(icons.classes[label] for label in labels[1:])]
    examples = {
        name: saved(pixels(icons, of_class(icons, label)[:5]), root / f"new-{n}", HOSTILE_FILES)
        for n, (name, label) in enumerate(zip(names, labels, strict=True))
    }
    mixed = [p for label in labels for p in of_class(icons, label)[5:35]]
    mixed += list(icons.indices(Part.BASE_TEST)[:400:4])
    unlabelled = saved(pixels(icons, mixed), root / "pile", HOSTILE_FILES)
    for number in range(FAILURES_SHOWN + 3):
        broken = root / "pile" / f"<b>{number}.png"
        broken.write_bytes(b"")
        unlabelled.append(broken)
    check = {
        icons.classes[label]: saved(pixels(icons, list(own[:3])), root / "check" / str(label))
        for label, own in list(icons.by_class(Part.BASE_VAL).items())[:30]
    }
    done = learn(embed.model, examples, unlabelled, check, embedder=embed)
    gone = examples[names[1]][0]
    assert isinstance(gone, Path)
    gone.unlink()
    return done


@pytest.fixture(scope="module")
def text(outcome: Outcome) -> str:
    return report_page(outcome)


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="([^"]*)"', page)


# --- what it tells ---


def test_the_headline_counts_what_was_lost_and_gained(outcome: Outcome, text: str) -> None:
    check, left_out = outcome.check, outcome.left_out
    assert check
    right_after = sum(a == b for a, b in zip(check.truth, check.after, strict=True))
    said = words(text)
    assert "From 15 photos the classifier learnt 3 new classes; it now tells 111" in said
    assert f"{right_after} of 90 check photos named right" in said
    assert "not measured on photos" not in said
    recognised = sum(a == b for a, b in zip(left_out.truth, left_out.after, strict=True))
    assert f"{100 * recognised / 15:.1f} % of them are recognised" in said
    assert f"before: {100 * check.accuracy_before:.1f} %" in said
    assert outcome.used_unlabelled
    helped = (outcome.unlabelled.step > 0).sum()
    assert f"Of the 190 photos in the pile, {helped} helped a class" in said
    assert sections(text) == SECTIONS


def test_gains_losses_and_neither_have_words_of_their_own(outcome: Outcome) -> None:
    check = outcome.check
    assert check
    wrong = ("nothing", *check.truth[1:])
    for before, after, said in (
        (check.truth, wrong, "old classes lost 1.1 points: 89 of 90 check photos named right, 90"),
        (wrong, check.truth, "old classes gained 1.1 points: 90 of 90 check photos named right"),
        (wrong, wrong, "old classes lost nothing: 89 of 90 check photos named right, as before"),
    ):
        changed = replace(outcome, check=replace(check, before=before, after=after))
        assert said in words(report_page(changed))


def test_class_by_class_every_photo_is_counted_once(outcome: Outcome) -> None:
    check = outcome.check
    assert check
    shares = class_shares(check, check.before)
    assert sum(one.asked for one in shares) == 90
    assert sum(one.right for one in shares) == round(90 * check.accuracy_after)
    assert sum(one.right_otherwise or 0 for one in shares) == round(90 * check.accuracy_before)
    assert class_shares(check, ())[0].right_otherwise is None
    old = set(check.truth) | (set(outcome.before.card.classes) - set(outcome.taught))
    right, within, across = group_shares(check, check.after, old)
    assert right == pytest.approx(check.accuracy_after)
    assert right + within + across == pytest.approx(1)
    assert sum(one.photos for one in crossings(check, old)) == round(90 * across)
    taken = [
        (truth, answer, before == truth)
        for truth, answer, before in zip(check.truth, check.after, check.before, strict=True)
        if answer in outcome.taught
    ]
    assert sum(one.right_before or 0 for one in crossings(check, old)) == sum(t[2] for t in taken)


def test_bars_begin_with_the_class_that_lost_most(outcome: Outcome) -> None:
    check = outcome.check
    assert check
    victim = check.truth[-1]
    after = tuple("nothing" if truth == victim else truth for truth in check.truth)
    changed = replace(outcome, check=replace(check, before=check.truth, after=after))
    page = report_page(changed)
    bars = page[page.index(">Old classes <") :]
    assert re.findall(r'class="name" title="([^"]*)"', bars)[0] == victim
    assert "0 of 3; before: 3" in bars
    assert f"{30 - 12} more" in words(bars)


def test_helpers_are_weightiest_first_and_of_their_class(outcome: Outcome, text: str) -> None:
    unlabelled = outcome.unlabelled
    together = [row for name in outcome.taught for row in helpers(outcome, name)]
    assert sorted(together) == np.flatnonzero(unlabelled.step > 0).tolist()
    for label, name in enumerate(outcome.taught):
        rows = helpers(outcome, name)
        assert all(unlabelled.helped[row] == label for row in rows)
        assert sorted(unlabelled.weight[rows], reverse=True) == unlabelled.weight[rows].tolist()
        assert len(rows) > MOST_EXAMPLES
    assert text.count('class="right"') == 3 * MOST_EXAMPLES
    assert text.count('class="support"') == 15


def test_likely_mistakes_are_those_and_no_others(outcome: Outcome) -> None:
    check, left_out = outcome.check, outcome.left_out
    assert check
    found = mistakes(outcome)
    wrong = round(90 * (1 - check.accuracy_after)) + round(15 * (1 - left_out.accuracy_after))
    assert len(found) == wrong
    assert all(one.truth != one.answer for one in found)
    spoilt = [one.was_right for one in found]
    assert spoilt == sorted(spoilt, reverse=True), "what the lesson spoilt comes first"
    for row in doubtful_helpers(outcome):
        answer = outcome.model.card.classes[outcome.unlabelled.answer[row]]
        meant = outcome.taught[outcome.unlabelled.helped[row]]
        assert outcome.unlabelled.step[row] > 0
        assert answer != meant or outcome.unlabelled.margin[row] < 0.3
    all_wrong = replace(check, after=("nothing",) * 90)
    page = report_page(replace(outcome, check=all_wrong))
    assert page.count('class="wrong"') == MOST_MISTAKES
    assert f"({MOST_MISTAKES} of them are shown)" in words(page)
    none = replace(check, after=check.truth), replace(left_out, after=left_out.truth)
    page = report_page(replace(outcome, check=none[0], left_out=none[1]))
    assert "All photos whose class is known are named right" in words(page)
    assert 'class="wrong"' not in page


def test_photos_that_could_not_be_used_are_named_with_reasons(text: str) -> None:
    unused = text[text.index('id="unused"') : text.index('id="origin"')]
    assert words(unused).count("empty file") == FAILURES_SHOWN + 3
    assert "pile/<b>0.png" in words(unused)
    assert "3 more" in words(unused)


def test_numbers_are_not_said_to_be_more_than_they_are(outcome: Outcome, text: str) -> None:
    said = words(text)
    unknown = outcome.model.card.unknown
    assert unknown
    assert f"turns away {100 * unknown.false_rejects:.1f} % of 105 check photos and" in said
    assert "their “after” is no independent measurement" in said
    assert "learnt from all the others and the pile, but not from it" in said


# --- lessons with less in them ---


def test_an_unlabelled_set_that_did_harm_is_told_in_words(
    icons: ImageStore, embed: Embedder
) -> None:
    """An unlabelled set of another class that looks like one of the new ones."""
    first, second, other = novel(icons)[5:8]
    new = {icons.classes[c]: pixels(icons, of_class(icons, c)[:3]) for c in (first, second)}
    done = learn(embed.model, new, pixels(icons, of_class(icons, other)[:60]), embedder=embed)
    assert done.why_not
    page = report_page(done)
    assert f"The pile was not used: {done.why_not}." in words(page)
    assert 'class="notice"' in page
    assert "0 of 60" in words(page)
    assert "without the pile:" not in words(page)
    assert 'class="right"' not in page, "nothing of the pile helped"
    assert 'id="review"' in page, "labels would still help"


def test_single_shots_without_an_unlabelled_set_and_without_a_check(
    icons: ImageStore, embed: Embedder
) -> None:
    new = {icons.classes[c]: pixels(icons, of_class(icons, c)[:1]) for c in novel(icons)[:7]}
    done = learn(embed.model, new, settings=LearnSettings(unknown=False), embedder=embed)
    page = report_page(done)
    said = words(page)
    assert sections(page) == ["taught", "unknown", "border", "origin"]
    assert "No lesson was rehearsed for this classifier" in said
    assert "What the old classes lost was not measured" in said
    assert "--check photos/old_val" in said
    assert 0 < page.index('class="notice first"') < page.index('class="lede"'), "it comes first"
    assert "none of them has a second photo to judge by" in said
    assert "There was no pile of unlabelled photos." in said
    assert "7 of the new photos are the only ones of their class" in said
    assert "and 3 more classes" in said
    assert "never answers “unknown”" in said
    assert not re.search(r"\bnan\b", said)
    assert review_sheet(done) is None


def test_more_of_a_class_that_is_known(icons: ImageStore, embed: Embedder) -> None:
    name = embed.model.card.classes[0]
    label = icons.classes.index(name)
    photos = pixels(icons, of_class(icons, label, Part.BASE_VAL)[:2])
    page = report_page(learn(embed.model, {name: photos}, embedder=embed))
    assert f"learnt more about {name}; it tells 108 classes apart, as before" in words(page)
    assert "known before" in words(page)
    assert "no class is new" in words(page)
    assert "not measured on photos" in words(page)


def test_where_every_class_is_taught_nothing_old_is_missing(outcome: Outcome) -> None:
    unchecked = replace(outcome, check=None)
    assert old_unmeasured(unchecked)
    assert not old_unmeasured(replace(unchecked, taught=outcome.before.card.classes))


def test_photos_of_every_kind_are_shown(icons: ImageStore, embed: Embedder, tmp_path: Path) -> None:
    arrays = pixels(icons, of_class(icons, novel(icons)[0])[:4])
    (path,) = saved(arrays[:1], tmp_path / "one")
    assert isinstance(path, Path)
    image = Image.fromarray(np.asarray(arrays[2])[:, :, 0])
    photos: list[Photo] = [path, path.read_bytes() + b"\0", image, arrays[3]]
    done = learn(embed.model, {"x": photos}, photos, embedder=embed)
    page = report_page(done)
    assert page.count('class="support"') == 4
    assert "no picture" not in words(page)
    image.close()
    path.unlink()
    page = report_page(done)
    assert "no picture" in words(page)
    assert "000.png" in words(page), "the name remains"


# --- names and pictures ---


def test_names_are_escaped_and_lie_below_the_common_folder(text: str) -> None:
    Strict().feed(text)
    said = words(text)
    assert HOSTILE_CLASS in said
    assert "new-0/<script>alert('x')<script>.png" in said
    assert 'new-0/two  spaces " onload="z.png' in said
    assert r"new-0/caf\xe9.png" in said
    assert "photos of icons" not in said
    assert "://" not in text
    for address in re.findall(r"(?:src|href)=\"([^\"]{0,40})", text):
        assert address.startswith(("data:image/jpeg;base64,", "#"))
    assert "no picture" in said, "of the file that is gone"
    text.encode()


def test_names_where_there_is_no_common_folder() -> None:
    photos = [Path("/a/b/c.png"), Path("/a/d.png")]
    assert list(map(Names.of(photos), photos)) == ["b/c.png", "d.png"]
    for others in ([Path("/a/b.png"), Path("/c/d.png")], [Path("a/b.png"), Path("/c/d.png")]):
        assert list(map(Names.of(others), others)) == [path.as_posix() for path in others]
    nameless = Names.of([b""])
    assert (nameless(b"", 2), nameless(b"")) == ("photo 3", "")
    assert Names.of(photos)(Path("photo 3")) == "photo 3"


@pytest.mark.parametrize("shape", [(300, 200, 3), (40, 30, 3), (500, 500, 1), (90, 120, 4)])
def test_thumbnails_are_small_however_much_is_on_them(shape: tuple[int, ...]) -> None:
    image = thumbnail(noise(1, *shape))
    assert image
    assert image.size == (SIZE, SIZE)
    assert 200 * len(picture_uri(image, "jpeg")) < 2_000_000, "noise is the worst case"


def test_many_classes_do_not_make_a_large_page(icons: ImageStore, embed: Embedder) -> None:
    new = {f"class {n}": pixels(icons, of_class(icons, novel(icons)[n])[:9]) for n in range(36)}
    page = report_page(learn(embed.model, new, embedder=embed))
    assert page.count('class="support"') == 36 * 5
    assert "at most 5 of each are shown" in words(page)
    assert len(page) < 2_000_000


# --- the sheet ---


def test_the_review_sheet_shows_each_photo_in_its_place(outcome: Outcome) -> None:
    packed = review_sheet(outcome)
    assert packed
    sheet = Image.open(io.BytesIO(packed))
    unlabelled = outcome.unlabelled
    assert len(unlabelled.review) == 20
    for place, row in enumerate(unlabelled.review):
        left = LABEL_WIDTH + place % 8 * (SIZE + 4)
        top = 4 + place // 8 * (SIZE + 4 + 36)
        cell = sheet.crop((left, top, left + SIZE, top + SIZE))
        image = thumbnail(unlabelled.photos[row])
        assert image
        np.testing.assert_array_equal(np.asarray(cell), np.asarray(image))
        under: Pixels = np.asarray(sheet.crop((left, top + SIZE, left + SIZE, top + SIZE + 30)))
        assert under.min() < 100, "something is written there"
    assert sheet.height > 4 + 3 * (SIZE + 4 + 36) - 1


def test_labels_end_before_the_pictures(icons: ImageStore) -> None:
    black = Image.new("RGB", (48, 48))
    plain = np.asarray(draw_strips([Strip("", [black])]))
    long = np.asarray(draw_strips([Strip(40 * "wide \udcff" + "\nB", [black])]))
    assert long.shape == plain.shape
    assert (long != plain)[:, : LABEL_WIDTH - 4].any()
    np.testing.assert_array_equal(long[:, LABEL_WIDTH - 4 :], plain[:, LABEL_WIDTH - 4 :])


def test_a_lesson_leaves_the_sheet_and_perhaps_a_report(
    outcome: Outcome, text: str, tmp_path: Path
) -> None:
    save_outcome(outcome, tmp_path / "with", text)
    assert (tmp_path / "with" / "report.html").read_text() == text
    assert (tmp_path / "with" / "review.png").read_bytes() == review_sheet(outcome)
    none = replace(outcome, unlabelled=replace(outcome.unlabelled, review=()))
    save_outcome(none, tmp_path / "without")
    left = {path.name for path in (tmp_path / "without").iterdir()}
    assert not left & {"report.html", "review.png"}


def test_the_command_writes_both(icons: ImageStore, tmp_path: Path) -> None:
    label = novel(icons)[0]
    saved(pixels(icons, of_class(icons, label)[:2]), tmp_path / "new" / "it's")
    saved(pixels(icons, of_class(icons, label)[2:20]), tmp_path / "pile")
    app = typer.Typer()
    app.command()(tool.learn)
    folders = ["--new", str(tmp_path / "new"), "--unlabelled", str(tmp_path / "pile")]
    out = tmp_path / "v2"
    done = CliRunner().invoke(app, ["icons", *folders, "--review", "3", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "Learnt: it's" in words((out / "report.html").read_text())
    assert Image.open(out / "review.png").width == LABEL_WIDTH + 3 * (SIZE + 4) + 4


# --- in a browser ---


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_in_a_browser(
    browser: "Chrome", text: str, tmp_path: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(text)
    assert_fit_to_be_seen(browser, path, width, scheme)
    assert browser.execute_script("return document.images.length") > 70
    links = browser.find_elements("css selector", "nav a")
    assert len(links) == len(SECTIONS)
    links[4].click()
    assert browser.current_url.endswith("#review")


def test_wide_tables_on_a_phone(browser: "Chrome", outcome: Outcome, tmp_path: Path) -> None:
    """The first column stays, and the box shows that there is more."""
    check = outcome.check
    assert check
    longer = {name: f"{name} with a name that is long" for name in outcome.taught}
    after = tuple(outcome.taught[n % 3] for n in range(len(check.truth)))
    changed = replace(outcome, check=replace(check, after=tuple(longer[name] for name in after)))
    path = tmp_path / "report.html"
    path.write_text(report_page(changed))
    assert_fit_to_be_seen(browser, path, 390, "light")

    def value(script: str) -> Any:
        return browser.execute_script(f"const box = document.querySelector('.scroll'); {script}")

    assert value("return box.scrollWidth - box.clientWidth") > 40
    assert "local" in value("return getComputedStyle(box).backgroundAttachment")
    value("box.scrollLeft = 40")
    for first in ("thead th", "tbody th[scope=row]"):
        left = f"box.querySelector('{first}').getBoundingClientRect().left"
        assert value(f"return {left} - box.getBoundingClientRect().left") == pytest.approx(0, abs=1)
    assert value("return box.querySelector('td').getBoundingClientRect().left") < value(
        "return box.querySelector('th').getBoundingClientRect().right"
    )


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_what_was_not_measured_is_seen_first(
    browser: "Chrome", outcome: Outcome, tmp_path: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_page(replace(outcome, check=None)))
    assert_fit_to_be_seen(browser, path, width, scheme)
    notice = browser.find_element("css selector", "header > :nth-child(2)")
    assert notice.text.startswith("What the old classes lost was not measured")
    script = "return getComputedStyle(arguments[0]).backgroundColor"
    plain = browser.execute_script(script, browser.find_element("css selector", ".tiles li"))
    assert browser.execute_script(script, notice) != plain
