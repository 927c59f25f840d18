"""Lessons over features: the same mathematics as the benchmark, in parts and with a record."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fewgraft.app.learning import lesson as lessons
from fewgraft.app.learning.base import best_gamma, left_out_cosines
from fewgraft.app.learning.judging import (
    Judged,
    JudgedLesson,
    Trial,
    choose_threshold,
    count_of,
    hold_back,
)
from fewgraft.app.learning.lesson import AS_MANY_AS, Known, Lesson, left_out_logits
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
    with_unlabelled = lesson.learnt().unlabelled_parts()
    assert next(with_unlabelled).logits.shape == (50, K + 2)


def test_left_out_examples_had_no_say() -> None:
    lesson = make()
    places, logits = left_out_logits(lesson, with_unlabelled=False)
    assert places == [1, 2, 3, 4, 5], "the only example of x cannot be left out"
    directions = normalize(lesson.support, dim=-1)
    for place, row in zip(places, logits, strict=True):
        others = [p for p in range(6) if lesson.labels[p] == lesson.labels[place] and p != place]
        mean = normalize(directions[others].sum(0), dim=0)
        own = 9.0 * (directions[place] @ mean)
        torch.testing.assert_close(row[K + lesson.labels[place]], own)


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


def test_new_classes_are_held_back_just_enough() -> None:
    learnt = make().learnt(with_unlabelled=False)
    photos, labels = features(5, 200), torch.arange(200) % K
    photos = photos + 2 * learnt.known.weights[labels]
    logits = learnt.known.logits(photos)
    before = (logits[:, :K].argmax(-1) == labels).float().mean()
    lost = {}
    for tolerance in (0.0, 0.02, 0.1, 1.0):
        bias = hold_back(learnt, photos, labels, tolerance)
        held = replace(learnt, held_back=bias)
        after = (held.known.logits(photos).argmax(-1) == labels).float().mean()
        assert (before - after).item() <= tolerance + 1e-6
        looser = replace(learnt, held_back=bias + 0.25)
        if bias < 0:
            too_much = (looser.known.logits(photos).argmax(-1) == labels).float().mean()
            assert (before - too_much).item() > tolerance, "a smaller bias would not do"
        lost[tolerance] = bias
    assert lost[0.0] < lost[0.02] < lost[1.0] == 0.0


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
    assert best_gamma(cosines, labels) == pytest.approx(12, rel=0.1)


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
            if before > allowed:
                assert answered(photos, before, before - allowed - 1).loses_more_than(tolerance)


def test_the_unlabelled_set_is_judged_by_counts() -> None:
    learnt = make().learnt()
    left_out = answered(0, 0, 0)
    for after, harmful in ((169, False), (168, True)):
        one = JudgedLesson(learnt, answered(200, 173, after), left_out)
        assert bool(Trial(one, one).harm(0.02)) is harmful


@pytest.mark.parametrize(("tolerance", "held"), [(0.29, False), (0.28, True)])
def test_new_classes_are_held_back_by_counts(tolerance: float, held: bool) -> None:
    """Of 100 check photos 29 go to a new class that lies where they do."""
    known = Known(("a", "b"), torch.eye(4)[:2], 10.0, torch.zeros(2), (1, 1))
    support = normalize(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), dim=-1)
    none = np.empty((0, 4), np.float32)
    learnt = Lesson(known, ("new",), support, torch.tensor([0]), none, HOW).learnt(
        with_unlabelled=False
    )
    check = torch.cat([support.repeat(29, 1), torch.eye(4)[1:2].repeat(71, 1)])
    labels = torch.tensor([0] * 29 + [1] * 71)
    assert (hold_back(learnt, check, labels, tolerance) < 0) is held
