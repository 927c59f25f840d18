"""What a report tells, as plain data that `report_page` shows.

The tables come from the rows of a folder. Where queries go, which classes are found, and which
unlabelled pictures made a prototype is computed again from the records of the rows, on the same
episodes. Answers are known here: a report is read after the fact.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure as Drawing
from PIL import Image
from torch import Tensor

from fewgraft.bench import tables
from fewgraft.bench.chosen_rows import Choice, NoRowsError, RowKey, refuse_several_runs
from fewgraft.bench.leaderboard import SETTINGS, RankedRow, places
from fewgraft.bench.results import Results, Row
from fewgraft.bench.runner import Bench, job_of
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import write_atomically
from fewgraft.methods import method_spec
from fewgraft.methods.base import Task
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.metrics import Confusion, Interval, class_accuracy, confusion, paired
from fewgraft.parsing import read_whole
from fewgraft.prototypes import base_evidence, direction_logits, pseudo_labels

# In the folder of the results.
RATIO, IMBALANCE, SCATTER, TSNE = "ratio.png", "imbalance.png", "scatter.png", "tsne.png"
FIGURES = {
    RATIO: "How much depends on the unlabelled set",
    SCATTER: "Novel classes among themselves, and all classes",
    IMBALANCE: "Unequal numbers of pictures per class",
    TSNE: "One episode in feature space",
}
# The paper's method and its fair counterpart: the same freedom on both sides. The first pair that
# is there makes the headline and is looked at closely; which one scores best has no say in it.
PAIRS = (
    ("proposed-without-adaptation+bias", "+pr+bias"),
    ("proposed-without-adaptation", "+pr"),
)
UNLABELLED_SHOWN, MISTAKES_SHOWN = 12, 6  # unlabelled pictures for each prototype
LEAST_MISTAKE = 0.05  # lighter ones move nothing


# --------------------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class Figure:
    """A drawing that says in words what it shows."""

    title: str
    text: str
    png: bytes


def write_figure(drawing: Drawing, text: str, path: Path) -> None:
    """As a PNG that carries its description, so that the two are never parted.

    Beside it a PDF and an SVG for papers, with their fonts in them, the same bytes every time.
    """
    dateless: dict[str, dict[str, str | None]] = {
        ".png": {"Description": text},
        ".pdf": {"Subject": text, "CreationDate": None},
        ".svg": {"Description": text, "Date": None},
    }
    for suffix, metadata in dateless.items():
        packed = io.BytesIO()
        with matplotlib.rc_context(
            {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fewgraft"}
        ):
            drawing.savefig(packed, format=suffix[1:], dpi=150, metadata=metadata)
        with writing(path):
            write_atomically(path.with_suffix(suffix), packed.getvalue())


def read_figures(folder: Path) -> Iterator[Figure]:
    """Those that were drawn into the folder."""
    for name, title in FIGURES.items():
        if (folder / name).is_file():
            with reading(folder / name, "readable figure", "Draw it again, or remove it."):
                png = read_whole(folder / name)
                with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
                    text = str(image.info.get("Description", title))
            yield Figure(title, text, png)


# -------------------------------------------------------------------------------------- headline


@dataclass(frozen=True)
class Headline:
    """The paper's method in the task itself at the fewest shots, and rows it is compared with."""

    subject: Row
    counterpart: Row | None  # with the same freedom
    others: tuple[tuple[Row, Interval], ...]  # the subject minus this one, on the same episodes


def headline(rows: Mapping[RowKey, Row], results: Results) -> Headline:
    """From the rows that the tables show; without the paper's method, the newest is the subject."""
    setting = next(s for s in SETTINGS if any(key[1] == s for key in rows))
    shots = min(row.shots for row in rows.values() if row.setting == setting)
    here = {
        row.method: row for row in rows.values() if (row.setting, row.shots) == (setting, shots)
    }
    pair = next((pair for pair in PAIRS if all(name in here for name in pair)), None)
    single = next((ours for ours, _ in PAIRS if ours in here), list(here)[-1])
    subject = here[pair[0] if pair else single]
    # The counterpart first; then variants, rivals, and what is possible without U.
    names = [*(pair[1:] if pair else ()), "proposed", *(name for both in PAIRS for name in both)]
    wanted = [(name, setting) for name in dict.fromkeys(names)] + [tables.BASELINE]
    there = [rows[name, s, shots] for name, s in wanted if (name, s, shots) in rows]
    scores = results.scores(subject).acc
    return Headline(
        subject,
        here[pair[1]] if pair else None,
        tuple(
            (row, paired(scores, results.scores(row).acc).difference)
            for row in there
            if row.id != subject.id and row.n_base == subject.n_base
        ),
    )


# --------------------------------------------------------------------------------------- answers


@dataclass(frozen=True)
class Answered:
    """What a method made of the queries of all its episodes."""

    row: Row
    confusion: Confusion
    classes: dict[int, tuple[int, int]]  # class of the data → (right, asked)


def answered(row: Row, bench: Bench) -> Answered:
    """The row's answers, computed again."""
    job = job_of(row)
    now = (bench.split_features(job).weights_hash, bench.learnt(job))
    if now != (row.weights, row.learnt):
        raise FewgraftError(f"{row.models}/{row.stage} is another model than at the time")
    episodes, answers = bench.episodes(job)
    logits = torch.cat([bench.logits(job, slice(c.start, c.stop)) for c in job.chunks])
    labels, n_base = answers.query_labels, episodes.n_base
    return Answered(
        row,
        confusion(logits, labels, n_base),
        class_accuracy(logits, labels, episodes.classes, n_base),
    )


# ------------------------------------------------------------------------------------ prototypes


@dataclass(frozen=True)
class UnlabelledPicture:
    """An unlabelled picture, and what it did to a prototype."""

    picture: int
    weight: float
    name: str  # of its true class
    right: bool


@dataclass(frozen=True)
class MadeOf:
    """What a refined prototype is the mean of."""

    name: str
    support: tuple[int, ...]  # pictures, each of weight 1
    unlabelled: tuple[UnlabelledPicture, ...]  # the weightiest ones
    mistakes: tuple[
        UnlabelledPicture, ...
    ]  # the weightiest of other classes that are not in `unlabelled`
    weight: float  # of all of U
    right_weight: float  # of its pictures that are of this class
    there: int  # how many these are


def unlabelled_weights(method: PrototypeRefinement, task: Task) -> Tensor:
    """[E, U, N] how much each unlabelled picture counts in the last step of the refinement."""
    if not method.steps:
        return task.unlabelled.new_zeros(*task.unlabelled.shape[:2], task.ways)
    before = method.changed(steps=method.steps - 1).fit(task).novel
    config = method.refinement
    logits = direction_logits(task.unlabelled, before, task.gamma)
    return pseudo_labels(logits, base_evidence(task.base_unlabelled, config), config)


@torch.no_grad()
def made_of(row: Row, number: int, bench: Bench) -> Iterator[MadeOf]:
    """The prototypes of one of the row's episodes."""
    job = job_of(row)
    features, (episodes, answers) = bench.split_features(job), bench.episodes(job)
    method = job.configured
    if not isinstance(method, PrototypeRefinement):
        raise FewgraftError(f"'{row.method}' does not refine prototypes")
    if not number < len(episodes):
        raise FewgraftError(f"there is no episode {number} among the {len(episodes)} of the rows")
    rows = slice(number, number + 1)
    weights = unlabelled_weights(method, features.task(episodes, rows, method))[0]  # [U, N]
    labels = answers.unlabelled_labels[number]
    truth = features.store.labels[episodes.unlabelled[number].numpy()]
    for way, label in enumerate(episodes.classes[number].tolist()):
        mine = weights[:, way]
        right = labels == episodes.n_base + way
        order = [
            UnlabelledPicture(int(picture), weight, features.store.name_of(name), bool(is_right))
            for weight, picture, name, is_right in sorted(
                zip(mine.tolist(), episodes.unlabelled[number], truth, right, strict=True),
                key=lambda one: -one[0],
            )
        ]
        support = episodes.support_labels[number] == episodes.n_base + way
        heavy = [one for one in order[UNLABELLED_SHOWN:] if one.weight >= LEAST_MISTAKE]
        yield MadeOf(
            name=features.store.name_of(label),
            support=tuple(episodes.support[number][support].tolist()),
            unlabelled=tuple(order[:UNLABELLED_SHOWN]),
            mistakes=tuple([one for one in heavy if not one.right][:MISTAKES_SHOWN]),
            weight=mine.sum().item(),
            right_weight=mine[right].sum().item(),
            there=int(right.sum()),
        )


# ---------------------------------------------------------------------------------------- report


@dataclass(frozen=True)
class Findings:
    """All that a page shows."""

    headline: Headline
    tables: tuple[tables.Table, ...]
    figures: tuple[Figure, ...]
    answered: tuple[Answered, ...]
    made: tuple[MadeOf, ...]
    episode: int  # whose prototypes are shown
    store: ImageStore | None  # for the pictures; None where it is not needed
    missing: tuple[str, ...]  # what is not shown, and why
    places: tuple[RankedRow, ...] = ()  # of the leaderboard


def chosen_rows(results: Results, choice: Choice) -> dict[RowKey, Row]:
    """The rows that the tables show: the last one of each kind."""
    rows = [row for row in results.rows() if choice.takes(row)]
    refuse_several_runs(rows)
    found = {(row.method, row.setting, row.shots): row for row in rows}
    if not found:
        raise FewgraftError(
            f"{results.folder} has no results{choice.options and ' with'}{choice.options}",
            "Make some: fewgraft bench run RECIPE --out FOLDER",
        )
    return found


def find(results: Results, choice: Choice, episode: int, bench: Bench) -> Findings:
    """Collect what there is to tell of a folder of results."""
    rows = chosen_rows(results, choice)
    # First, as they refuse rows that cannot be compared.
    shown = tuple(_tables(results, choice, {row.shots for row in rows.values()}))
    top = headline(rows, results)
    answers, missing = _answers(top, bench)
    figures = tuple(read_figures(results.folder))
    drawn = {figure.title for figure in figures}
    missing += [
        f"{title}: {name} is not in {results.folder} (`bench report --figures` draws it)."
        for name, title in FIGURES.items()
        if title not in drawn
    ]
    subject = next((one.row for one in answers if one.row.id == top.subject.id), None)
    refined = subject is not None and isinstance(job_of(subject).configured, PrototypeRefinement)
    return Findings(
        headline=top,
        tables=shown,
        figures=figures,
        answered=tuple(answers),
        made=tuple(made_of(subject, episode, bench)) if subject and refined else (),
        episode=episode,
        store=bench.store(top.subject.data) if answers else None,
        missing=tuple(missing),
        places=tuple(places(results, list(rows.values()))),
    )


def _answers(top: Headline, bench: Bench) -> tuple[list[Answered], list[str]]:
    """Of the headline's subject, behind its counterpart; and why one of them is not shown."""
    found, missing = [], []
    for row in (top.counterpart, top.subject):
        if row is None:
            continue
        try:
            if not row.n_base:
                raise FewgraftError(
                    "there are no base classes that novel ones could be mistaken for"
                )
            if method_spec(row.method).method.moves_network:
                raise FewgraftError("it moves the network, which takes too long for a report")
            bench.store(row.data)  # imported features have no pictures to show
            found.append(answered(row, bench))
        except FewgraftError as error:
            missing.append(f"Answers of {row.method}: {error.problem}.")
    return found, missing


def _tables(results: Results, choice: Choice, shots: Iterable[int]) -> Iterator[tables.Table]:
    """All layouts that have rows; the detailed one for each number of shots."""
    plain = [("main", choice), ("regular", choice), ("ablation", choice)]
    detailed = [("detail", replace(choice, shots=k)) for k in sorted(shots)]
    for layout, which in [plain[0], *detailed, *plain[1:]]:
        try:
            yield tables.build(results, layout, which)
        except NoRowsError:
            continue
