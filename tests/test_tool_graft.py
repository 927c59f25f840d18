"""The tool with the method graft: the benchmark's mathematics, the choice, files, ONNX."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import fewgraft
from fewgraft.app.estimator import FewgraftClassifier
from fewgraft.app.features.embedding import Embedder
from fewgraft.app.learning import base
from fewgraft.app.learning.adapting import learn_adapted
from fewgraft.app.learning.base import build_base, model_of_backbone
from fewgraft.app.learning.choosing import NOISE, MethodChoice, choose, is_better
from fewgraft.app.learning.exemplars import (
    DENSITY,
    FEWEST_EXEMPLARS,
    GRAFT,
    MOST_BYTES,
    evenly,
    exemplars_of,
    room_for,
)
from fewgraft.app.learning.graft_rehearsal import GraftFold, compared, rehearsed_with_graft
from fewgraft.app.learning.grafting import GraftLesson
from fewgraft.app.learning.learn import LearnSettings, Outcome, learn, limit_before
from fewgraft.app.learning.lesson import Known, left_out_examples
from fewgraft.app.learning.predicting import predict
from fewgraft.app.learning.rehearsal import Rehearsal, RehearsedLesson, rehearse
from fewgraft.app.learning.saving import save_outcome
from fewgraft.app.report.page import report_page
from fewgraft.app.server.answers import answer
from fewgraft.base_knowledge import knowledge_of
from fewgraft.data.parts import Part
from fewgraft.data.pictures import read_picture
from fewgraft.data.store import ImageStore
from fewgraft.densities import ClassPlaces
from fewgraft.errors import FewgraftError
from fewgraft.export import export_onnx
from fewgraft.methods.base import Queries, Task
from fewgraft.methods.graft import Grafted
from fewgraft.model import CosineModel, ModelCard, Unknown, load_model, save_model, weights_hash
from fewgraft.prototypes import Refinement, directions

pytestmark = pytest.mark.numerical

Photos = dict[str, list[Path]]
NEW = ("robot", "sun")
BACKBONE = str(Path(fewgraft.__file__).parent / "zoo_models" / "icons" / "algorithm-2")


def looks(classes: int, each: int, kinds: int, spread: float = 0.6) -> tuple[Tensor, Tensor]:
    """Features of classes whose photos are of several kinds, by chance."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, kinds, 24, generator=rng)
    labels = torch.arange(classes).repeat_interleave(each)
    kind = torch.randint(kinds, (len(labels),), generator=rng)
    drawn = torch.randn(len(labels), 24, generator=rng)
    return centres[labels, kind] + spread * drawn, labels


def fitted(kinds: int, **settings: object) -> tuple[FewgraftClassifier, Tensor, Tensor]:
    """A classifier of the first nine of twelve classes, and all photos."""
    x, y = looks(12, 40, kinds)
    old = (y < 9) & (torch.arange(len(y)) % 2 == 0)
    classifier = FewgraftClassifier(**settings)  # type: ignore[arg-type]
    return classifier.fit(x[old].numpy(), y[old].numpy()), x, y


def taught(v1: FewgraftClassifier, x: Tensor, y: Tensor, *classes: int) -> FewgraftClassifier:
    """Three photos of each class, and a pile of every third photo."""
    rows = torch.cat([(y == label).nonzero()[1:7:2, 0] for label in classes])
    return v1.learn(x[rows].numpy(), y[rows].numpy(), unlabelled=x[::3].numpy())


# ------------------------------------------------------------------------------------- mathematics


@dataclass(frozen=True)
class Given:
    """Features of a small lesson; no exemplar is asked, or lies in the pile."""

    exemplars: list[Tensor]  # directions [5, d] of six old classes
    support: Tensor
    rest: Tensor

    @classmethod
    def make(cls) -> "Given":
        x, y = looks(9, 12, 2)
        number = torch.arange(len(y)) % 12
        kept = (y < 6) & (number < 5)
        taken = torch.zeros_like(kept)
        for label, shots in ((6, 1), (7, 2), (8, 3)):  # unequal shots
            taken |= (y == label) & (number < shots)
        exemplars = exemplars_of(directions(x[kept]), y[kept], 6, 60)
        return cls(exemplars, x[taken], x[~kept & ~taken])


def lesson(names: tuple[str, ...] = ("x", "y", "z")) -> GraftLesson:
    """With a pile of forty."""
    given = Given.make()
    weights = torch.stack([directions(own.sum(0)) for own in given.exemplars])
    return GraftLesson(
        Known(tuple("abcdef"), weights, 9.0, torch.zeros(6), (5,) * 6, evenly(given.exemplars)),
        names,
        given.support,
        torch.tensor([0, 1, 1, 2, 2, 2]),
        given.rest[-40:].numpy(),
        Refinement(),
    )


def test_a_lesson_is_the_benchmarks_method() -> None:
    """The same answers as Graft's own, from features and knowledge alone."""
    own, given = lesson(), Given.make()
    knowledge = knowledge_of(given.exemplars)

    def base_scores(features: Tensor) -> Tensor:
        return GRAFT.base_scores(features, 9.0 * features @ own.known.weights.T, knowledge)

    u, asked = directions(given.rest[-40:]), directions(given.rest)
    task = Task(
        3,
        directions(own.support)[None],
        own.labels[None],
        u[None],
        base_scores(u)[None],
        own.known.weights,
        9.0,
        torch.zeros(1),
        knowledge=knowledge,
    )
    expected = GRAFT.fit(task).logits(Queries(asked[None], base_scores(asked)[None]))[0]
    learnt = replace(own, known=replace(own.known, places=with_room(own.places, 60))).learnt()
    torch.testing.assert_close(learnt.known.logits(given.rest), expected, rtol=0, atol=5e-3)
    plain = own.learnt(with_unlabelled=False).known.logits(given.rest)
    assert (plain - expected).abs().max() > 0.1, "the pile matters"
    directed = replace(learnt.known, places=None).logits(given.rest)
    assert (directed - expected).abs().max() > 0.1, "densities matter"


def with_room(places: ClassPlaces, most: int) -> ClassPlaces:
    """The same with room for more exemplars."""
    more = most - places.weights.shape[1]
    exemplars = torch.nn.functional.pad(places.exemplars, (0, 0, 0, more))
    return ClassPlaces(exemplars, torch.nn.functional.pad(places.weights, (0, more)), DENSITY)


@pytest.mark.parametrize("names", [("x", "y", "z"), ("x", "c", "z")])
def test_examples_left_out_together_are_those_left_out_alone(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = lesson(names)
    monkeypatch.setattr("fewgraft.app.learning.grafting.LEFT_OUT_TOGETHER", 2)
    found = left_out_examples(own, with_unlabelled=True)
    assert len(found.places) >= 5
    for place, logits in zip(found.places, found.logits, strict=True):
        kept = [p for p in range(len(own.support)) if p != place]
        alone = replace(own, support=own.support[kept], labels=own.labels[kept]).learnt()
        expected = alone.known.logits(own.support[[place]])[0]
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


def test_a_class_named_again_goes_on_from_its_exemplars() -> None:
    own = lesson(("x", "c", "z"))
    assert own.remembered[1].tolist() == [1] * 5
    learnt = own.learnt(with_unlabelled=False)
    assert learnt.known.classes == (*"abcdef", "x", "z")
    assert learnt.known.examples[2] == 5 + 2
    sums = own.exemplars_of(2).sum(0) + directions(own.support[1:3]).sum(0)
    torch.testing.assert_close(learnt.known.weights[2], directions(sums), rtol=0, atol=1e-3)
    assert learnt.known.places is not None
    torch.testing.assert_close(learnt.known.places.exemplars[:2], own.places.exemplars[:2])


def test_all_classes_at_once_and_no_pile() -> None:
    """Nothing is old then, and there is no border."""
    own = lesson()
    labels = torch.arange(6)
    every = replace(own, taught=tuple("abcdef"), labels=labels, unlabelled=own.unlabelled[:0])
    learnt = every.learnt()
    assert learnt.known.classes == tuple("abcdef")
    assert torch.isfinite(learnt.known.logits(own.support)).all()
    with_pile = replace(every, unlabelled=own.unlabelled).learnt()
    assert torch.isfinite(with_pile.known.logits(own.support)).all()


def test_a_large_pile_is_thinned_and_all_of_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fewgraft.app.learning.grafting.LARGEST_UNLABELLED", 15)
    own = lesson()
    learnt = own.learnt()
    assert learnt.grafted is not None
    assert learnt.grafted.pictures.shape[1] == 6 + 14, "every third of 40"
    [part] = learnt.unlabelled_parts()
    assert part.places.shape == (40, 2)
    assert not part.weights[1::3].any()
    assert part.weights[::3].any()
    assert len(learnt.step_helped) == 40


def test_a_photo_that_is_kept_does_not_vouch_for_itself() -> None:
    """Half precision must not hide that it is the same one."""
    x, y = looks(3, 6, 1)
    own = directions(x)
    places = evenly(exemplars_of(own, y, 3, 6))
    for row, label in enumerate(y.tolist()):
        others = [own[(y == k) & (torch.arange(len(y)) != row)] for k in range(3)]
        expected = evenly(others).scores(own[[row]])[0]
        shares = torch.tensor([0.0] * 3)
        shares[label] = DENSITY.weight * np.log(5 / 6)  # it still counts as one of six
        torch.testing.assert_close(
            places.scores(own[[row]])[0], expected + shares, rtol=0, atol=1e-3
        )


# ------------------------------------------------------------------------------------- the choice


def test_what_is_kept_is_bounded() -> None:
    for classes, width in ((6, 128), (32, 1280), (190, 1280), (108, 640)):
        room = room_for(classes, width)
        assert FEWEST_EXEMPLARS <= room <= 60
        assert 2 * classes * width * room <= MOST_BYTES <= 3_000_000
    assert room_for(1000, 1280) == 0
    assert room_for(6, 128) == 60


def test_auto_takes_graft_where_rehearsals_say_so() -> None:
    """Classes of several kinds are no directions; classes of one kind are."""
    chosen = {}
    for kinds in (3, 1):
        v1, x, y = fitted(kinds)
        card = v1.model_.card
        assert card.exemplars == 20
        assert card.graft is not None
        assert is_better(card.graft) == (kinds == 3)
        v2 = taught(v1, x, y, 9, 10, 11)
        chosen[kinds] = v2.outcome_.choice.method
        assert f"{card.graft.graft:.1%} with graft" in v2.outcome_.choice.why
    assert chosen == {3: "graft", 1: "refine"}


def test_graft_is_better_where_it_is_taken() -> None:
    """What rehearsals promise holds for photos that no lesson has seen."""
    v1, x, y = fitted(3)
    rows = (torch.arange(len(y)) % 2 == 1) & (torch.arange(len(y)) % 3 != 0)
    right = {}
    for method in ("refine", "graft"):
        v2 = taught(v1.set_params(method=method), x, y, 9, 10, 11)
        answers = v2.predict(x[rows].numpy())
        right[method] = [(answers == y[rows].numpy())[part].mean() for part in (y[rows] < 9,)]
        right[method] += [(answers == y[rows].numpy())[y[rows] >= 9].mean()]
    assert sum(right["graft"]) > sum(right["refine"]) + 0.05


def test_the_noise_of_rehearsals_is_in_the_way() -> None:
    v1, _, _ = fitted(1)
    card = v1.model_.card
    assert card.graft is not None

    def says(ahead: float) -> str:
        graft = card.graft.model_copy(  # type: ignore[union-attr]
            update={"refine": 0.5, "graft": 0.5 + ahead, "error": 0.01}
        )
        return choose(card.model_copy(update={"graft": graft}), "auto").method

    assert says(NOISE * 0.01 + 0.001) == "graft"
    assert says(NOISE * 0.01 - 0.001) == "refine"
    assert says(-0.2) == "refine"


def test_refine_is_not_touched_by_graft_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit the classifier of a base that never heard of graft."""
    v1, x, y = fitted(3, method="refine")
    with_graft = taught(v1, x, y, 9, 10).model_
    monkeypatch.setattr(base, "room_for", lambda *_: 0)
    v0, _, _ = fitted(3)
    assert v0.model_.card.graft is None
    without = taught(v0, x, y, 9, 10).model_
    assert weights_hash(with_graft) == weights_hash(without)
    assert with_graft.card == without.card
    assert not with_graft.card.exemplars


def test_settings_of_refine_are_a_choice() -> None:
    v1, x, y = fitted(3, steps=3)
    assert taught(v1, x, y, 9).outcome_.choice.method == "refine"
    assert taught(v1.set_params(method="graft"), x, y, 9).outcome_.choice.method == "graft"


def test_accuracies_are_paired_over_the_same_lessons() -> None:
    x, y = looks(9, 20, 2)
    *_, plain = rehearse(x, y, 9)
    graft = rehearsed_with_graft(plain, 20)
    assert {k: len(v) for k, v in plain.plain.items()} == {
        k: len(v) for k, v in graft.plain.items()
    }
    nothing = Unknown(threshold=0, false_rejects=0, pictures=0, chosen_on="")
    border = plain.border()
    assert border is not None
    found = compared(plain, border, graft, nothing)
    assert found is not None
    assert found.draws == 18
    same = compared(plain, border, plain, nothing)
    assert same is not None
    assert (same.refine, same.error) == (same.graft, 0)
    assert same.refine == pytest.approx(found.refine)
    assert compared(plain, border, Rehearsal(), nothing) is None


def test_a_rehearsed_lesson_scores_as_a_lesson_does() -> None:
    """Held-out old photos and new ones, against Graft's own solution of that lesson."""
    x, y = looks(9, 20, 2)
    *_, plain = rehearse(x, y, 9)
    fold, draws = plain.drawn[0]
    own = GraftFold(fold, 60)
    asked = draws[0].mixed[0]
    [solved] = own.grafted([asked])
    answered: RehearsedLesson = own.answered(asked, solved, own.answers([asked]))
    expected = solved.scores(asked.draw.old[None], solved.nearness(asked.draw.old[None]))[0]
    torch.testing.assert_close(own.gamma * answered.old_novel, expected, rtol=0, atol=5e-3)
    assert isinstance(solved, Grafted)
    assert solved.bias == 0


# ------------------------------------------------------------------------- lessons, files, answers


def test_lesson_after_lesson(tmp_path: Path) -> None:
    """What graft began goes on with graft, through files, and nothing of it is lost."""
    v1, x, y = fitted(3)
    v2 = taught(v1, x, y, 9, 10)
    v2.save(tmp_path / "v2")
    again = fewgraft.load(tmp_path / "v2")
    assert again.model_.card == v2.model_.card
    assert weights_hash(again.model_) == weights_hash(v2.model_)
    np.testing.assert_array_equal(again.predict_proba(x.numpy()), v2.predict_proba(x.numpy()))
    rows = (y == 11).nonzero()[1:7:2, 0]
    v3 = again.learn(x[rows].numpy(), y[rows].numpy().astype(str), unlabelled=x[::3].numpy())
    assert v3.outcome_.choice.why == "as in earlier lessons"
    card = v3.model_.card
    assert len(card.classes) == 12
    assert card.density == DENSITY
    assert card.exemplars == v1.model_.card.exemplars
    before, after = v2.model_, v3.model_
    torch.testing.assert_close(after.exemplars[:11], before.exemplars, rtol=0, atol=0)
    assert after.exemplar_weights[11].sum() >= 3
    with pytest.raises(FewgraftError, match="was taught with graft"):
        again.set_params(method="refine").learn(x[rows].numpy(), y[rows].numpy().astype(str))


def test_the_limit_of_unknown_is_on_the_scale_of_the_scores() -> None:
    v1, x, y = fitted(3)
    card = v1.model_.card
    assert card.graft is not None
    assert card.unknown is not None
    graft = MethodChoice("graft", "")
    assert limit_before(card, graft) == card.graft.unknown
    assert limit_before(card, MethodChoice("refine", "")) == card.unknown
    v2 = taught(v1, x, y, 9, 10, 11)
    limit = v2.model_.card.unknown
    assert limit is not None
    assert limit_before(v2.model_.card, graft) == limit, "from the second lesson on it is its own"
    assert limit.threshold <= card.graft.unknown.threshold < card.unknown.threshold
    answers = v2.set_params(unknown=True)._logits(x.numpy()).amax(-1) < limit.threshold
    assert answers.double().mean() < 0.15


def test_a_base_on_the_backbone_of_a_grafted_classifier(tmp_path: Path, photos: Photos) -> None:
    grafted = outcome_of(photos).model
    save_model(grafted, tmp_path / "v2")
    start = model_of_backbone(str(tmp_path / "v2"))
    assert (start.card.exemplars, start.card.graft, start.card.density) == (0, None, None)


@pytest.fixture(scope="module")
def photos(icons: ImageStore, tmp_path_factory: pytest.TempPathFactory) -> Photos:
    """Files of icons: eight old classes, two new ones, a pile, others to ask about."""
    root = tmp_path_factory.mktemp("graft photos")

    def write(folder: str, part: Part, name: str, rows: slice) -> None:
        found = icons.indices(part)
        own = found[icons.labels[found] == icons.manifest.classes.index(name)][rows]
        (root / folder).mkdir(parents=True, exist_ok=True)
        for picture in own.tolist():
            Image.fromarray(icons.pictures[picture][:, :, 0]).save(root / folder / f"{picture}.png")

    for name in icons.base_classes[:8]:
        write(f"old/{name}", Part.BASE_TRAIN, name, slice(12))
        write("pile", Part.BASE_TEST, name, slice(3))
        write("inbox", Part.BASE_TEST, name, slice(3, 6))
    for name in NEW:
        write(f"new/{name}", Part.NOVEL_TEST, name, slice(3))
        write("pile", Part.NOVEL_TEST, name, slice(3, 18))
        write("inbox", Part.NOVEL_TEST, name, slice(18, 24))
    return {
        str(p.relative_to(root)): sorted(p.iterdir()) for p in root.glob("*/*") if p.is_dir()
    } | {name: sorted((root / name).iterdir()) for name in ("pile", "inbox")}


def classes(photos: Photos, kind: str) -> Photos:
    return {name.split("/")[1]: own for name, own in photos.items() if name.startswith(f"{kind}/")}


def outcome_of(photos: Photos, method: str = "graft") -> Outcome:
    v1 = build_base(model_of_backbone(BACKBONE), classes(photos, "old"), keep=False).model
    embed = Embedder(v1, keep=False)
    new = classes(photos, "new")
    return learn(v1, new, photos["pile"], settings=LearnSettings(method=method), embedder=embed)


@pytest.fixture(scope="module")
def outcome(photos: Photos) -> Outcome:
    return outcome_of(photos)


def test_the_page_and_the_command_answer_alike(outcome: Outcome, photos: Photos) -> None:
    model = outcome.model
    assert model.card.density is not None
    embed = Embedder(model, keep=False)
    said = list(predict(embed, photos["inbox"], unknown=False))
    shown = answer(embed, photos["inbox"], [p.name for p in photos["inbox"]], unknown=False)
    assert [one.best for one in said] == [one.label for one in shown]
    assert {one.best for one in said} >= set(NEW)
    plain = CosineModel(model.card.model_copy(update={"density": None}), model.backbone)
    plain.load_state_dict(model.state_dict())
    other = [one.score for one in predict(Embedder(plain.eval(), keep=False), photos["inbox"])]
    assert np.abs(np.array([one.score for one in said]) - other).max() > 0.01, "densities count"


def test_onnx_answers_as_the_classifier_does(
    outcome: Outcome, photos: Photos, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = outcome.model
    export_onnx(model, tmp_path / "v2.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "v2.onnx")
    files = [*photos["inbox"], *photos["pile"]]  # some of the pile are exemplars
    pixels = np.stack([read_picture(file, model.card.size, model.card.channels) for file in files])
    with torch.inference_mode():
        expected = model(model.prepare(torch.from_numpy(pixels)))
    for rows in (slice(None), slice(1)):
        logits, shares = session.run(["logits", "probabilities"], {"pixels": pixels[rows]})
        torch.testing.assert_close(torch.from_numpy(logits), expected[rows], rtol=0, atol=1e-3)
        expected_shares = expected[rows].softmax(-1)
        torch.testing.assert_close(torch.from_numpy(shares), expected_shares, rtol=0, atol=1e-4)


def test_the_report_says_which_method_and_why(outcome: Outcome, photos: Photos) -> None:
    page = report_page(outcome)
    assert "graft: classes are directions, and where their photos lie" in page
    assert "as asked for; in 18 draws of rehearsed lessons" in page
    plain = outcome_of(photos, "refine")
    assert "refine: classes are directions, which the pile refines" in report_page(plain)
    assert plain.unlabelled.photos == outcome.unlabelled.photos


def test_a_network_that_moves_has_no_exemplars(outcome: Outcome, photos: Photos) -> None:
    new = classes(photos, "new")
    with pytest.raises(FewgraftError, match="a network that stays"):
        learn_adapted(outcome.before, new, (), settings=LearnSettings(method="graft"), keep=False)
    with pytest.raises(FewgraftError, match="a network that stays"):
        learn_adapted(outcome.model, new, (), keep=False)
    still = learn_adapted(outcome.before, new, (), keep=False)
    assert still.choice.method == "refine"
    assert "would not move" in still.choice.why


# -------------------------------------------------------------------------------------- commands


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def call(*arguments: "str | Path") -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "fewgraft", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return call


def test_the_commands(
    run: Callable[..., "subprocess.CompletedProcess[str]"],
    outcome: Outcome,
    photos: Photos,
    tmp_path: Path,
) -> None:
    save_model(outcome.before, tmp_path / "v1")
    new = photos["new/sun"][0].parents[1]
    pile = photos["pile"][0].parent
    done = run(
        "learn", "v1", "--new", new, "--unlabelled", pile, "--method", "graft", "--out", "v2"
    )
    assert done.returncode == 0, done.stderr
    assert "method: graft (as asked for; in 18 draws" in done.stdout
    told = json.loads((tmp_path / "v2" / "lesson.json").read_text())
    assert told["method"]["method"] == "graft"
    written = load_model(tmp_path / "v2")
    torch.testing.assert_close(written.weight, outcome.model.weight)
    torch.testing.assert_close(written.exemplars, outcome.model.exemplars, rtol=0, atol=1e-3)
    wrong = run("learn", "v1", "--new", new, "--method", "graff", "--out", "v3")
    assert wrong.returncode == 2
    assert "there is no method 'graff'" in wrong.stderr
    assert "graft" in wrong.stderr.split("graff'")[1]
    assert "Traceback" not in wrong.stderr
    assert not (tmp_path / "v3").exists()


def test_files_of_before(
    run: Callable[..., "subprocess.CompletedProcess[str]"],
    outcome: Outcome,
    photos: Photos,
    tmp_path: Path,
) -> None:
    """A classifier that was saved before there were exemplars learns as it did."""
    save_model(outcome.before, tmp_path / "v1")
    without_exemplars(tmp_path / "v1")
    new = photos["new/sun"][0].parents[1]
    refused = run("learn", "v1", "--new", new, "--method", "graft", "--out", "v2")
    assert refused.returncode == 2
    assert "graft needs exemplars of the old classes" in refused.stderr
    assert "Make it anew with fewgraft base" in refused.stderr
    assert "Traceback" not in refused.stderr
    model = load_model(tmp_path / "v1")
    learnt = learn(model, classes(photos, "new"), embedder=Embedder(model, keep=False))
    assert learnt.choice.method == "refine"
    assert "keeps no exemplars" in learnt.choice.why
    assert "keeps no exemplars" in report_page(learnt)
    again = choose(learnt.model.card, "auto")
    assert (again.method, again.why) == ("refine", "as in earlier lessons")
    with pytest.raises(FewgraftError, match="earlier lessons were learnt with refine"):
        choose(learnt.model.card, "graft")


def test_a_write_that_breaks_off_leaves_nothing(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(tensors: dict[str, Tensor], path: Path) -> None:
        assert "exemplars" in tensors
        path.write_bytes(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr("fewgraft.model.save_file", breaks)
    with pytest.raises(FewgraftError, match="no space left"):
        save_outcome(outcome, tmp_path / "v2")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    save_outcome(outcome, tmp_path / "v2")
    assert weights_hash(load_model(tmp_path / "v2")) == weights_hash(outcome.model)


def without_exemplars(folder: Path) -> None:
    """Make a folder what it would have been."""
    tensors = load_file(folder / "model.safetensors")
    for name in ("exemplars", "exemplar_weights"):
        del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    card = json.loads((folder / "model.json").read_text())
    for name in ("exemplars", "graft", "density"):
        del card[name]
    (folder / "model.json").write_text(json.dumps(card))


def test_exemplars_that_do_not_fit_the_card_are_refused(outcome: Outcome, tmp_path: Path) -> None:
    save_model(outcome.before, tmp_path / "v1")
    stored = load_file(tmp_path / "v1" / "model.safetensors")
    assert stored["exemplars"].dtype == torch.half
    for name, changed in (
        ("exemplars", stored["exemplars"][:, 1:].contiguous()),
        ("exemplar_weights", torch.full_like(stored["exemplar_weights"], torch.nan)),
    ):
        save_file({**stored, name: changed}, tmp_path / "v1" / "model.safetensors")
        with pytest.raises(FewgraftError, match=name):
            load_model(tmp_path / "v1")
    with pytest.raises(ValueError, match="it needs exemplars"):
        ModelCard.model_validate({**outcome.model.card.model_dump(), "exemplars": 0})


def test_exemplars_are_part_of_the_hash(outcome: Outcome) -> None:
    model = outcome.before
    before = weights_hash(model)
    kept = model.exemplars[0, 0, 0].clone()
    model.exemplars[0, 0, 0] += 1
    assert weights_hash(model) != before
    model.exemplars[0, 0, 0] = kept
    assert weights_hash(model) == before


def test_the_help_says_what_the_methods_are() -> None:
    from typer.testing import CliRunner

    from fewgraft.cli import app

    shown = CliRunner().invoke(app, ["learn", "--help"], terminal_width=300).output
    assert "--method" in shown
    words = " ".join(shown.replace("│", " ").split())
    assert "auto takes graft where it was clearly better" in words
