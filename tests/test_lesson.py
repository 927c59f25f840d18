"""Lessons over features: the same mathematics as the benchmark, in parts and with a record."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fewgraft.app.learning import lesson as lessons
from fewgraft.app.learning.base import left_out_cosines
from fewgraft.app.learning.bordering import SHIFTS, Bordering, Seen, usual_tolerance
from fewgraft.app.learning.gamma import best_gamma, notes_of_gamma
from fewgraft.app.learning.judging import (
    Judged,
    JudgedLesson,
    Trial,
    choose_threshold,
    count_of,
    unknown_below,
)
from fewgraft.app.learning.lesson import (
    AS_MANY_AS,
    Known,
    Learnt,
    LeftOut,
    Lesson,
    left_out_examples,
)
from fewgraft.border import Border, Tradeoff
from fewgraft.methods.base import Task
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.prototypes import Refinement, cosine_logits, directions

pytestmark = pytest.mark.numerical

D, K = 16, 6
HOW = Refinement(steps=4, alpha=0.5, temperature=1.5)


def features(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed))


def make(names: tuple[str, ...] = ("x", "y", "z"), unlabelled: int = 50) -> Lesson:
    known = Known(
        tuple(f"old {k}" for k in range(K)),
        normalize(features(0, K), dim=-1),
        9.0,
        torch.zeros(K),
        tuple(range(1, K + 1)),
    )
    labels = torch.tensor([0, 1, 1, 2, 2, 2])  # unequal shots
    return Lesson(known, names, features(1, 6), labels, features(2, unlabelled).numpy(), HOW)


@pytest.mark.parametrize("part", [7, 50, 4096])
def test_a_lesson_is_the_benchmarks_method(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "PART", part)
    lesson = make()
    unlabelled = directions(torch.from_numpy(lesson.unlabelled))[None]
    task = Task(
        3,
        directions(lesson.support)[None],
        lesson.labels[None],
        unlabelled,
        cosine_logits(unlabelled, lesson.known.weights, 9.0),
        lesson.known.weights,
        9.0,
        torch.zeros(1),
    )
    method = PrototypeRefinement(steps=4, alpha=0.5, temperature=1.5)
    expected = method.fit(task).novel[0]
    learnt = lesson.learnt()
    torch.testing.assert_close(learnt.novel, expected)
    assert not torch.allclose(lesson.learnt(with_unlabelled=False).novel, expected, atol=1e-3)
    assert learnt.known.classes == (*lesson.known.classes, "x", "y", "z")
    assert learnt.known.examples == (1, 2, 3, 4, 5, 6, 1, 2, 3)
    torch.testing.assert_close(learnt.known.weights[:K], lesson.known.weights)


def test_a_class_named_again_remembers_what_it_was() -> None:
    lesson = make(("x", "old 4", "z"))
    learnt = lesson.learnt(with_unlabelled=False)
    assert learnt.known.classes == (*lesson.known.classes, "x", "z")
    assert learnt.known.examples[4] == 5 + 2
    directions = normalize(lesson.support, dim=-1)
    expected = normalize(5 * lesson.known.weights[4] + directions[1] + directions[2], dim=-1)
    torch.testing.assert_close(learnt.known.weights[4], expected)
    torch.testing.assert_close(learnt.known.weights[:4], lesson.known.weights[:4])
    many = replace(lesson, known=replace(lesson.known, examples=(1000,) * K))
    bounded = many.learnt(with_unlabelled=False).known.weights[4]
    whole = AS_MANY_AS * lesson.known.weights[4] + directions[1] + directions[2]
    torch.testing.assert_close(bounded, normalize(whole, dim=-1))
    assert lesson.learnt().taught_places.tolist() == [K, 4, K + 1]


def test_left_out_examples_had_no_say() -> None:
    lesson = make()
    left_out = left_out_examples(lesson, with_unlabelled=False)
    places, logits = left_out.places, left_out.logits
    assert left_out.counts.tolist()[0] == [1, 1, 3]
    assert places == [1, 2, 3, 4, 5], "the only example of x cannot be left out"
    directions = normalize(lesson.support, dim=-1)
    for place, row in zip(places, logits, strict=True):
        others = [p for p in range(6) if lesson.labels[p] == lesson.labels[place] and p != place]
        mean = normalize(directions[others].sum(0), dim=0)
        own = 9.0 * (directions[place] @ mean)
        torch.testing.assert_close(row[K + lesson.labels[place]], own)


@pytest.mark.parametrize("taught", [("x", "y", "z"), ("x", "old 4", "z")])
def test_examples_left_out_together_are_those_left_out_alone(
    taught: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against lessons that never had the example, with all of U, few sets at a time."""
    lesson = replace(make(), taught=taught)
    monkeypatch.setattr("fewgraft.app.learning.lesson.LEFT_OUT_TOGETHER", 6)
    found = left_out_examples(lesson, with_unlabelled=True)
    for place, logits, counts in zip(found.places, found.logits, found.counts, strict=True):
        kept = [p for p in range(len(lesson.support)) if p != place]
        alone = replace(lesson, support=lesson.support[kept], labels=lesson.labels[kept]).learnt()
        expected = alone.known.logits(lesson.support[place : place + 1])[0]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(counts, alone.counts, rtol=1e-4, atol=1e-4)


def test_the_record_tells_when_a_picture_began_to_help() -> None:
    lesson = make()
    near = normalize(lesson.support[1] + lesson.support[2], dim=-1).numpy()
    lesson = replace(
        lesson, unlabelled=np.concatenate([[near], -lesson.unlabelled]).astype(np.float32)
    )
    learnt = lesson.learnt()
    assert learnt.step_helped[0] == 1
    assert len(learnt.step_helped) == 51
    never = learnt.step_helped == 0
    weights = next(learnt.unlabelled_parts()).weights
    assert weights[0].argmax() == 1
    assert never.any()
    assert not len(lesson.learnt(with_unlabelled=False).step_helped)


def test_what_old_classes_make_of_the_unlabelled_set_is_computed_once() -> None:
    for names in (("x", "y", "z"), ("x", "old 4", "z")):
        learnt = make(names).learnt()
        learnt = replace(learnt, bias=torch.tensor([0.5, 0.25, -1.0]))
        whole = learnt.known.logits(torch.from_numpy(learnt.lesson.unlabelled)).softmax(-1)
        [part] = learnt.unlabelled_parts()
        torch.testing.assert_close(part.scores, whole.topk(2, dim=-1).values)
        assert part.places.tolist() == whole.topk(2, dim=-1).indices.tolist()


def seen(learnt: Learnt, photos: Tensor, labels: Tensor, left_out: LeftOut | None = None) -> Seen:
    none = LeftOut([], torch.empty(0, 0), torch.empty(0, 3))
    return Seen(learnt, learnt.known.logits(photos), labels, left_out or none)


def test_new_classes_are_held_back_just_enough() -> None:
    """Nothing was rehearsed and no example is left out: nothing speaks for a push."""
    learnt = make().learnt(with_unlabelled=False)
    photos, labels = features(5, 200), torch.arange(200) % K
    photos = photos + 2 * learnt.known.weights[labels]
    before = (learnt.known.logits(photos)[:, :K].argmax(-1) == labels).sum().item()

    def lost(bias: Tensor) -> int:
        held = replace(learnt, bias=bias)
        return int(before - (held.known.logits(photos).argmax(-1) == labels).sum())

    chosen = {}
    for tolerance in (0.0, 0.02, 0.1, 1.0):
        bias = Bordering(None, tolerance).of(seen(learnt, photos, labels)).bias
        assert lost(bias) - lost(bias) ** 0.5 <= 200 * tolerance + 1e-6
        if bias[0] < 0:
            looser = lost(bias + 9.0 / 80)
            assert looser - looser**0.5 > 200 * tolerance, "a smaller bias would not do"
        chosen[tolerance] = bias[0].item()
    assert chosen[0.0] < chosen[0.02] < chosen[1.0] == 0.0


def curve(lost: list[float], found: list[float]) -> Tradeoff:
    return Tradeoff(lost=tuple(lost), error=(0.0,) * len(lost), found=tuple(found))


BORDER = Border(
    counts=(1, 4),
    biases=(0.2, 0.1),
    shifts=(-0.1, 0.0, 0.1),
    without_unlabelled=curve([0.0, 0.01, 0.05], [0.2, 0.5, 0.8]),
    with_unlabelled=(
        curve([0.0, 0.03, 0.1], [0.1, 0.2, 0.3]),
        curve([0.0, 0.01, 0.02], [0.4, 0.6, 0.9]),
    ),
    shares=(0.1, 0.5),
    ways=3,
    lessons=18,
)


def test_a_rehearsed_border_goes_by_the_photos_behind_a_prototype() -> None:
    assert BORDER.bias([1, 2, 4, 100]) == pytest.approx([0.2, 0.15, 0.1, 0.1])
    assert BORDER.curve(None) == BORDER.without_unlabelled
    assert BORDER.curve(0.3).lost == pytest.approx((0.0, 0.02, 0.06))
    assert BORDER.curve(0.9) == BORDER.with_unlabelled[1]
    learnt = make().learnt(with_unlabelled=False)
    nothing = torch.empty(0, D), torch.empty(0, dtype=torch.long)
    for tolerance, shift in ((0.005, -0.1), (0.01, 0.0), (0.05, 0.1)):
        bias = Bordering(BORDER, tolerance).of(seen(learnt, *nothing)).bias
        expected = [9.0 * (b + shift) for b in BORDER.bias([1, 2, 3])]
        assert bias.tolist() == pytest.approx(expected)
    # Twice as many classes as were rehearsed take twice as much.
    more = BORDER.model_copy(update={"ways": 1.5})
    assert Bordering(more, 0.01).of(seen(learnt, *nothing)).bias[0].item() == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("mistakes", "usual"), [(0.0, 0.003), (0.06, 0.006), (0.1, 0.01), (0.2, 0.02), (0.9, 0.02)]
)
def test_a_classifier_that_is_nearly_always_right_may_lose_less(
    mistakes: float, usual: float
) -> None:
    assert usual_tolerance(BORDER.model_copy(update={"mistakes": mistakes})) == usual
    assert usual_tolerance(None) == 0.015


def test_check_photos_outweigh_rehearsals_where_they_are_many() -> None:
    """Rehearsals would allow any push; the check photos lie where a new class does."""
    learnt = make().learnt(with_unlabelled=False)
    easy = curve([0.0, 0.0, 0.0], [0.1, 0.5, 0.9])
    border = BORDER.model_copy(update={"without_unlabelled": easy, "biases": (0.0, 0.0)})
    between = normalize(learnt.known.weights[:1] + 0.95 * learnt.novel[:1], dim=-1)
    chosen = [
        Bordering(border, 0.02)
        .of(seen(learnt, between.repeat(photos, 1), torch.zeros(photos, dtype=torch.long)))
        .bias[0]
        .item()
        for photos in (1, 1000)
    ]
    assert chosen[0] == pytest.approx(0.9)
    assert chosen[1] < 0.9


def test_old_classes_that_were_not_looked_at_keep_their_limit() -> None:
    before = choose_threshold(torch.arange(100).float(), 0.05, "those of before")
    learnt = make().learnt()
    for check in (None, answered(5, 5, 5)):
        judged = JudgedLesson(learnt, check, answered(9, 9, 9))
        assert unknown_below(before, judged, 0.05) == before
        assert unknown_below(None, judged, 0.05) is None
    enough = JudgedLesson(learnt, answered(30, 30, 30), answered(9, 9, 9))
    chosen = unknown_below(before, enough, 0.05)
    assert chosen is not None
    assert chosen.pictures == 39


def test_without_check_photos_the_limit_comes_down_to_where_new_photos_lay() -> None:
    before = choose_threshold(torch.arange(100).float(), 0.05, "those of before")
    learnt, left_out = make().learnt(), answered(9, 9, 9)
    lowered = unknown_below(before, JudgedLesson(learnt, None, left_out, lowest=2.5), 0.05)
    assert lowered == before.model_copy(update={"threshold": 2.5})
    higher = JudgedLesson(learnt, None, left_out, lowest=before.threshold + 1)
    assert unknown_below(before, higher, 0.05) == before, "and is never raised"
    assert unknown_below(None, JudgedLesson(learnt, None, left_out, lowest=2.5), 0.05) is None


def test_a_lesson_knows_the_lowest_best_score_of_its_shift() -> None:
    learnt = make().learnt(with_unlabelled=False)
    rehearsed = BORDER.without_unlabelled.model_copy(update={"lowest": (0.1, 0.2, 0.4)})
    border = BORDER.model_copy(update={"without_unlabelled": rehearsed})
    nothing = torch.empty(0, learnt.known.weights.shape[1])
    asked = seen(learnt, nothing, torch.empty(0, dtype=torch.long))
    bordering = Bordering(border, 0.02)
    expected = np.interp(bordering._shift(asked), border.shifts, (0.1, 0.2, 0.4))
    assert bordering.of(asked).lowest == pytest.approx(learnt.known.gamma * expected)
    assert Bordering(BORDER, 0.02).of(asked).lowest is None, "a card of an earlier version"


def test_unknown_rejects_no_more_than_it_may() -> None:
    logits = torch.arange(100).float()
    chosen = choose_threshold(logits, 0.05, "these")
    assert chosen.false_rejects == pytest.approx(0.05)
    assert ((logits < chosen.threshold).float().mean()).item() == pytest.approx(0.05)
    assert choose_threshold(logits[:3], 0.05, "few").false_rejects == 0


def test_left_out_cosines_against_a_loop() -> None:
    directions = normalize(features(3, 9), dim=-1)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
    cosines, judged = left_out_cosines(directions, labels, 4)
    assert judged.tolist() == [True] * 8 + [False]
    for i in range(8):
        for k in range(4):
            others = [j for j in range(9) if labels[j] == k and j != i]
            mean = directions[others].mean(0)
            expected = directions[i] @ mean / mean.norm()
            torch.testing.assert_close(cosines[i, k], expected)


def test_gamma_is_the_likeliest() -> None:
    generator = torch.Generator().manual_seed(0)
    cosines = torch.rand(4000, 5, generator=generator)
    labels = torch.multinomial((12 * cosines).softmax(-1), 1, generator=generator)[:, 0]
    found = best_gamma((cosines, labels))
    assert found == pytest.approx(12, rel=0.1)
    halves = zip(cosines.chunk(2), labels.chunk(2), strict=True)
    assert best_gamma(*halves) == pytest.approx(12, rel=0.1)
    assert not list(notes_of_gamma(found))


@pytest.mark.parametrize(("right", "said"), [(True, "easily"), (False, "hardly")])
def test_gamma_at_an_end_is_told(right: bool, said: str) -> None:
    """Photos that are all right, or all wrong, want a γ without end."""
    cosines = torch.tensor([[0.51, 0.49], [0.49, 0.51]], dtype=torch.double)
    found = best_gamma((cosines, torch.tensor([0, 1] if right else [1, 0])))
    [note] = notes_of_gamma(found)
    assert said in note


def answered(photos: int, before: int, after: int) -> Judged:
    """So many photos, the first of them answered right."""
    truth = ("right",) * photos
    rights = [("right",) * right + ("wrong",) * (photos - right) for right in (before, after)]
    return Judged((b"",) * photos, truth, rights[0], rights[1], torch.zeros(photos))


@pytest.mark.parametrize("hundredths", [0, 1, 2, 7, 29, 57, 58, 100])
def test_a_lesson_at_exactly_its_tolerance_is_accepted(hundredths: int) -> None:
    """173/200 − 169/200 > 0.02 and 0.29 · 100 < 29 in floating point; photos are whole."""
    tolerance = hundredths / 100
    for photos in (1, 3, 50, 100, 200, 300, 699):
        allowed = int(Fraction(hundredths, 100) * photos)
        assert count_of(tolerance, photos) == allowed
        for before in (photos, allowed + 1 if allowed < photos else photos):
            kept = answered(photos, before, max(0, before - allowed))
            assert not kept.loses_more_than(tolerance)
            if before > 4 * allowed + 4:  # far more than chance explains
                worse = answered(photos, before, before - 4 * allowed - 4)
                assert worse.loses_more_than(tolerance)


def test_the_unlabelled_set_is_judged_by_counts() -> None:
    learnt = make().learnt()
    left_out = answered(0, 0, 0)
    for after, harmful in ((169, False), (167, False), (166, True)):
        one = JudgedLesson(learnt, answered(200, 173, after), left_out)
        assert bool(Trial(one, one).harm(0.02)) is harmful


@pytest.mark.parametrize(("right", "harmful"), [(20, False), (19, False), (18, True), (0, True)])
def test_one_left_out_example_is_no_harm(right: int, harmful: bool) -> None:
    learnt, check = make().learnt(), None
    with_u = JudgedLesson(learnt, check, answered(25, 0, right))
    assert bool(Trial(with_u, JudgedLesson(learnt, check, answered(25, 0, 20))).harm(0)) is harmful
    lost_and_found = replace(with_u.left_out, after=with_u.left_out.after[::-1])
    assert not lost_and_found.is_worse_than(with_u.left_out)


@pytest.mark.parametrize(("tolerance", "held"), [(0.24, False), (0.23, True)])
def test_new_classes_are_held_back_by_counts(tolerance: float, held: bool) -> None:
    """Of 100 check photos 29 ± 5.4 go to a new class that lies where they do."""
    known = Known(("a", "b"), torch.eye(4)[:2], 10.0, torch.zeros(2), (1, 1))
    support = normalize(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), dim=-1)
    none = np.empty((0, 4), np.float32)
    learnt = Lesson(known, ("new",), support, torch.tensor([0]), none, HOW).learnt(
        with_unlabelled=False
    )
    check = torch.cat([support.repeat(29, 1), torch.eye(4)[1:2].repeat(71, 1)])
    labels = torch.tensor([0] * 29 + [1] * 71)
    bias = Bordering(None, tolerance).of(seen(learnt, check, labels)).bias
    assert (bias[0].item() < 0) is held
    assert min(SHIFTS) < 0 < max(SHIFTS)
