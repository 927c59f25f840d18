"""The report: its numbers against a second computation, its page in a real browser."""

import base64
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import typer
from pages import LOOKS, Strict, assert_fit_to_be_seen, shown, words
from PIL import Image
from typer.testing import CliRunner

from fewgraft.bench import report
from fewgraft.bench.chosen_rows import Choice
from fewgraft.bench.ratio import Curve, Sweep, Swept, draw_sweeps
from fewgraft.bench.report import (
    RATIO,
    TSNE,
    Findings,
    Headline,
    answered,
    chosen_rows,
    find,
    headline,
    made_of,
    unlabelled_weights,
    write_figure,
)
from fewgraft.bench.report_page import page, summary, table, thumbnail
from fewgraft.bench.results import Results, Row
from fewgraft.bench.rows import run
from fewgraft.bench.runner import Bench, job_of, jobs
from fewgraft.bench.table_formats import without_constants
from fewgraft.bench.tables import build
from fewgraft.cli import bench_figures
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.html import tag
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.metrics import Interval, paired
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import models_folder

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FEW = 10
LOOKED_AT = ("+pr", "proposed-without-adaptation")
SECTIONS = (
    "leaderboard",
    "tables",
    "figure-0",
    "figure-1",
    "confusion",
    "classes",
    "unlabelled",
    "origin",
)


pytestmark = pytest.mark.usefixtures("_shared_home")


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="module")
def results(home: Path, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A real run of few episodes, and figures beside it."""
    made = Results(tmp_path_factory.mktemp("results"))
    recipe, models = load_recipe("icons"), models_folder("icons")
    names = ["meta-inc-baseline", *LOOKED_AT]
    settings = ["incremental", "s2i", "fsl", "semi-fsl"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWGRAFT_HOME", str(home))
        list(run(jobs(recipe, models, names, settings, [1, 5], FEW), made, bench))
    points = (Interval(0.6, 0.01), Interval(0.7, 0.02))
    curve = Curve("A & B", points, Interval(0.1, 0.005))
    swept = Swept(Sweep("novel_share", (0.1, 0.9), "share"), 1, 40, (0.1, 0.9), {}, (curve,))
    for name in (RATIO, TSNE):
        write_figure(draw_sweeps([swept]), str(swept), made.folder / name)
    return made


@pytest.fixture(scope="module")
def findings(home: Path, results: Results, bench: Bench) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWGRAFT_HOME", str(home))
        return find(results, Choice(), 0, bench)


def the_row(results: Results, method: str, setting: str = "s2i", shots: int = 1) -> Row:
    return chosen_rows(results, Choice())[method, setting, shots]


# --- what it tells ---


def test_the_unlabelled_set_weights_are_those_that_made_the_prototypes(
    results: Results, bench: Bench
) -> None:
    """The weighted mean, picture by picture, is the prototype that the method answers with."""
    for method in LOOKED_AT:
        job = job_of(the_row(results, method))
        refinement = job.configured
        assert isinstance(refinement, PrototypeRefinement)
        task = bench.split_features(job).task(bench.episodes(job)[0], slice(0, 2))
        weights = unlabelled_weights(refinement, task)
        fitted = refinement.fit(task).novel
        for e in range(2):
            for way in range(5):
                total = torch.zeros(task.support.shape[-1])
                for feature, label in zip(task.support[e], task.labels[e], strict=True):
                    total += (label == way) * feature / feature.norm()
                for feature, weight in zip(task.unlabelled[e], weights[e, :, way], strict=True):
                    total += weight * feature / feature.norm()
                torch.testing.assert_close(total / total.norm(), fitted[e, way])
        still = unlabelled_weights(refinement.changed(steps=0), task)
        assert still.shape == weights.shape
        assert not still.any()


def test_pictures_of_the_unlabelled_set_say_what_they_truly_are(
    icons: ImageStore, results: Results, bench: Bench
) -> None:
    row = the_row(results, LOOKED_AT[1])
    episodes, answers = bench.episodes(job_of(row))
    classes = list(made_of(row, 3, bench))
    assert [made.name for made in classes] == [
        icons.classes[c] for c in episodes.classes[3].tolist()
    ]
    unlabelled = set(episodes.unlabelled[3].tolist())
    for way, made in enumerate(classes):
        assert made.support == (episodes.support[3, way].item(),)
        assert made.there == 30
        assert 0 < made.right_weight <= made.weight
        shown = [*made.unlabelled, *made.mistakes]
        assert len({one.picture for one in shown}) == len(shown)
        weights = [one.weight for one in made.unlabelled]
        assert weights == sorted(weights, reverse=True)
        assert all(0 <= one.weight <= min(weights) for one in made.mistakes)
        assert not any(one.right for one in made.mistakes)
        for one in shown:
            assert one.picture in unlabelled
            assert one.name == icons.classes[icons.labels[one.picture]]
            assert one.right == (one.name == made.name)
            place = episodes.unlabelled[3].tolist().index(one.picture)
            label = answers.unlabelled_labels[3, place].item()
            assert one.right == (label == episodes.n_base + way)
    with pytest.raises(FewgraftError, match="no episode 10 among the 10"):
        list(made_of(row, FEW, bench))


def test_answers_agree_with_the_row_they_belong_to(results: Results, bench: Bench) -> None:
    row = the_row(results, "+pr")
    found = answered(row, bench)
    assert found.confusion.base_right == pytest.approx(row.interval("b_all").mean)
    assert found.confusion.novel_right == pytest.approx(row.interval("n_all").mean)
    right, asked = (sum(counts) for counts in zip(*found.classes.values(), strict=True))
    assert asked == FEW * 150
    assert right / asked == pytest.approx(row.interval("acc").mean)


def test_the_headline_is_the_papers_method_beside_its_fair_counterpart(results: Results) -> None:
    rows = chosen_rows(results, Choice())
    top = headline(rows, results)
    assert (top.subject.method, top.subject.setting) == ("proposed-without-adaptation", "s2i")
    assert top.subject.shots == 1
    assert top.counterpart
    assert top.counterpart.method == "+pr"
    assert top.others[0][0] == top.counterpart
    assert [row.method for row, _ in top.others][-1] == "meta-inc-baseline"
    for row, difference in top.others:
        by_hand = [
            a - b
            for a, b in zip(
                results.scores(top.subject).acc.tolist(),
                results.scores(row).acc.tolist(),
                strict=True,
            )
        ]
        assert difference.mean == pytest.approx(sum(by_hand) / FEW)
    regular = {key: row for key, row in rows.items() if row.n_base == 0}
    assert headline(regular, results).subject.setting == "semi-fsl"


def test_the_best_test_accuracy_makes_no_headline(results: Results, tmp_path: Path) -> None:
    rows = chosen_rows(results, Choice())
    own, rival = rows["proposed-without-adaptation", "s2i", 1], rows["+pr", "s2i", 1]
    both = Results(tmp_path)
    names = ("proposed-without-adaptation", "+pr", "proposed-without-adaptation+bias", "+pr+bias")
    for number, (name, like) in enumerate(zip(names, (own, rival) * 2, strict=True)):
        scores = results.scores(like)
        worse = replace(scores, acc=scores.acc - 0.1 * (number > 1))  # with a bias
        both.append(like.model_copy(update={"method": name, "id": f"row-{number}"}), worse)
    found = headline(chosen_rows(both, Choice()), both)
    assert found.subject.method == "proposed-without-adaptation+bias"
    assert found.counterpart
    assert found.counterpart.method == "+pr+bias"
    assert [row.method for row, _ in found.others] == ["+pr+bias", *names[:2]]


def test_without_the_papers_method_the_newest_row_is_the_subject(
    results: Results, tmp_path: Path
) -> None:
    rows = chosen_rows(results, Choice())
    alone = Results(tmp_path)
    for name, method in (("row-1", "+graph"), ("row-2", "mine")):
        row = rows["+pr", "s2i", 1]
        changed = row.model_copy(update={"id": name, "method": method})
        alone.append(changed, results.scores(row))
    found = headline(chosen_rows(alone, Choice()), alone)
    assert found.subject.method == "mine"
    assert found.counterpart is None


def test_a_model_that_changed_is_not_passed_off_as_the_old_one(
    results: Results, bench: Bench, tmp_path: Path
) -> None:
    row = the_row(results, "+pr")
    other = Results(tmp_path)
    other.append(row.model_copy(update={"weights": "0" * 16}), results.scores(row))
    found = find(other, Choice(), 0, bench)
    assert not found.answered
    assert any("another model" in line for line in found.missing)
    assert any(RATIO in line for line in found.missing)
    text = page(found)
    assert "Not shown" in text
    assert 'id="classes"' not in text


def test_results_that_are_not_there_are_an_error(tmp_path: Path, results: Results) -> None:
    with pytest.raises(FewgraftError, match="no results"):
        chosen_rows(Results(tmp_path), Choice())
    with pytest.raises(FewgraftError, match="with --episodes 7"):
        chosen_rows(results, Choice(episodes=7))


# --- how it is said ---


def test_the_summary_says_which_way_and_whether_it_is_clear(findings: Findings) -> None:
    subject = findings.headline.subject
    text = words(summary(findings.headline))
    assert f"{100 * subject.interval('acc').mean:.1f} ±" in text
    assert f"{subject.n_base} old (base) and 5 new (novel)" in text
    assert "1 labelled picture of each" in text
    assert "300 unlabelled" in text
    rival = findings.headline.others[0][0]
    for difference, said in (
        (
            Interval(0.05, 0.01),
            f"5.0 ± 1.0 points more than {rival.title}, which has the same freedom",
        ),
        (Interval(-0.05, 0.01), f"5.0 ± 1.0 points less than {rival.title}"),
        (Interval(0.05, 0.06), f"not clearly different from {rival.title}"),
    ):
        assert said in words(summary(Headline(subject, rival, ((rival, difference),))))


def test_tables_say_what_the_data_says(results: Results) -> None:
    plain = build(results, "main")
    text = words(table(plain))
    for section in plain.sections:
        for row in section.rows:
            assert row[0].text in text
            for cell in row[2:]:
                assert cell.text.replace("-", "−").split(" ± ")[0] in text
    assert "Backbone: resnet12-tiny." in text, "said once"
    shorter, said = without_constants(plain)
    assert [column.name for column in shorter.columns][:2] == ["Method", "Acc"]
    assert len(said) == 1
    assert len(shorter.sections[0].rows[0]) == len(shorter.columns)
    marked = build(results, "ablation")
    assert without_constants(marked) == (marked, []), "ticks differ from row to row"


def test_names_are_escaped(findings: Findings) -> None:
    assert tag("p", '<b> & "x"', title='"<&') == (
        '<p title="&quot;&lt;&amp;">&lt;b&gt; &amp; "x"</p>'
    )
    hostile = "<script>alert('x')</script><img src=x onerror=y>\" onload=\"z"
    store = findings.store
    assert store
    names = (hostile,) * len(store.classes)
    renamed = replace(store, manifest=store.manifest.model_copy(update={"classes": names}))
    made = tuple(
        replace(
            one,
            name=hostile,
            unlabelled=tuple(replace(p, name=hostile) for p in one.unlabelled),
            mistakes=tuple(replace(p, name=hostile) for p in one.mistakes),
        )
        for one in findings.made
    )
    row = findings.headline.subject.model_copy(update={"title": hostile, "data": hostile})
    top = replace(findings.headline, subject=row)
    text = page(replace(findings, store=renamed, made=made, headline=top))
    assert hostile in words(text)

    Strict().feed(text)


def test_the_page_needs_nothing_beside_it(findings: Findings) -> None:
    text = page(findings)
    assert text == page(findings), "the same results give the same bytes"
    for address in re.findall(r"(?:src|href)=\"([^\"]{0,40})", text):
        assert address.startswith(("data:image/png;base64,", "#"))
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "://" not in text
    assert re.findall(r'<section id="([^"]*)"', text) == list(SECTIONS)


def test_thumbnails_are_small_and_keep_their_colours(icons: ImageStore) -> None:
    pictures = np.zeros((1, 84, 84, 3), np.uint8)
    pictures[..., 0] = 255
    photos = replace(icons, pictures=pictures)
    for store, size, mode in ((photos, 64, "RGB"), (icons, 32, "L")):
        markup = thumbnail(store, 0, alt="x")
        (packed,) = re.findall(r'src="data:image/png;base64,([^"]*)"', markup)
        image = Image.open(io.BytesIO(base64.b64decode(packed)))
        assert (image.size, image.mode) == ((size, size), mode)
        if mode == "RGB":
            assert image.getpixel((9, 9)) == (255, 0, 0)
        else:
            np.testing.assert_array_equal(np.asarray(image), icons.pictures[0, :, :, 0])


def test_without_base_classes_there_is_less_to_say(results: Results, bench: Bench) -> None:
    """Rows of regular few-shot learning alone are a report, too."""
    other = Results(results.folder / "regular")
    other.folder.mkdir()
    for method, setting in (("+pr", "semi-fsl"), ("meta-inc-baseline", "fsl")):
        row = the_row(results, method, setting)
        other.append(row, results.scores(row))
    text = words(page(find(other, Choice(), 0, bench)))
    assert "150 unlabelled pictures" in text
    assert "old classes’" not in text
    assert "nan" not in text


def test_the_command_draws_and_writes(results: Results, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(bench_figures.report)
    folder = tmp_path / "results"
    shutil.copytree(results.folder, folder, ignore=shutil.ignore_patterns("*.png", "regular"))
    done = CliRunner().invoke(app, [str(folder), "--figures", "--episode", "2"])
    assert done.exit_code == 0, done.output
    text = (folder / "report.html").read_text()
    assert re.findall(r'<section id="([^"]*)"', text) == list(SECTIONS)
    assert "Test episode 2" in text
    out = tmp_path / "elsewhere" / "page.html"
    done = CliRunner().invoke(app, [str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert out.is_file()


# --- in a browser ---


@pytest.fixture(scope="module")
def page_file(findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(findings))
    return path


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_in_a_browser(browser: "Chrome", page_file: Path, width: int, scheme: str) -> None:
    assert_fit_to_be_seen(browser, page_file, width, scheme)

    def value(script: str) -> Any:
        return browser.execute_script(f"return {script}")

    assert value("document.images.length") > 150
    sections = value("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert tuple(sections) == SECTIONS
    assert min(value("[...document.querySelectorAll('section')].map(s => s.offsetHeight)")) > 100


def test_the_list_of_contents_leads_to_the_sections(browser: "Chrome", page_file: Path) -> None:
    shown(browser, page_file, 1280, "light")
    links = browser.find_elements("css selector", "nav a")
    assert len(links) == len(SECTIONS)
    links[SECTIONS.index("confusion")].click()
    assert browser.current_url.endswith("#confusion")
    assert report.FIGURES[RATIO] == links[SECTIONS.index("figure-0")].text


def test_the_leaderboard_sorts_filters_and_compares(
    browser: "Chrome", page_file: Path, results: Results
) -> None:
    shown(browser, page_file, 1280, "light")

    def value(script: str) -> Any:
        return browser.execute_script(f"return {script}")

    there = "[...document.querySelectorAll('#board tbody tr')].filter(r => !r.hidden)"
    total = len(results.rows())
    assert value(f"{there}.length") == total
    choose = (
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input'))"
    )
    browser.execute_script(choose, "setting", "s2i")
    browser.execute_script(choose, "shots", "1")
    assert value(f"{there}.map(r => r.dataset.setting)") == ["s2i", "s2i"]
    assert value("document.getElementById('shown').textContent") == f"2 of {total} rows"
    browser.execute_script(choose, "search", "pr")
    names = [row.title for row in results.rows() if row.setting == "s2i" and row.shots == 1]
    assert value(f"{there}.length") == sum("pr" in name.lower() for name in names)
    for name, nothing in (("search", ""), ("setting", ""), ("shots", "")):
        browser.execute_script(choose, name, nothing)
    heads = browser.find_elements("css selector", "#board thead button")
    for sign in (1, -1):  # it was sorted downwards
        heads[3].click()
        accs = [sign * float(v) for v in value(f"{there}.map(r => r.cells[3].dataset.value)")]
        assert accs == sorted(accs)
    ours, rival = (the_row(results, name) for name in reversed(LOOKED_AT))
    options = "[...document.getElementById('reference').options]"
    wanted = f"{rival.title}, s2i, 1-shot"
    number = value(f"{options}.find(o => o.textContent === {json.dumps(wanted)}).value")
    browser.execute_script(choose, "reference", number)
    cell = (
        f"{there}.find(r => r.cells[0].textContent === {json.dumps(ours.title)} && "
        "r.dataset.setting === 's2i' && r.dataset.shots === '1').cells[4].textContent"
    )
    gain = paired(results.scores(ours).acc, results.scores(rival).acc).difference
    sign_of = "−" if gain.mean < 0 else "+"
    expected = f"{sign_of}{abs(100 * gain.mean):.2f} ± {100 * gain.half:.2f}"
    assert value(cell) == expected


def test_thirty_methods_fit_a_phone_and_a_desk(
    browser: "Chrome", findings: Findings, tmp_path: Path
) -> None:
    titles = [f"Meta-Inc-Baseline + a method of a long name, number {n}" for n in range(30)]
    many = [
        replace(place, row=place.row.model_copy(update={"title": title}))
        for title in titles
        for place in findings.places[:4]
    ]
    path = tmp_path / "report.html"
    path.write_text(page(replace(findings, places=tuple(many))))
    for width in (390, 1280):
        assert_fit_to_be_seen(browser, path, width, "light")
        browser.get_screenshot_as_file(str(tmp_path / f"{width}.png"))
