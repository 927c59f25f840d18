"""Lessons over features: the same mathematics as the benchmark, in parts and with a record."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fewgraft.app import lesson as lessons
from fewgraft.app.base import best_gamma, left_out_cosines
from fewgraft.app.judging import choose_threshold, hold_back
from fewgraft.app.lesson import AS_MANY_AS, Known, Lesson, left_out_logits
from fewgraft.methods.base import Task
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.prototypes import Refinement, cosine_logits

D, K = 16, 6
HOW = Refinement(steps=4, alpha=0.5, temperature=1.5)


def features(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed))


def make(names: tuple[str, ...] = ("x", "y", "z"), pile: int = 50) -> Lesson:
    known = Known(
        tuple(f"old {k}" for k in range(K)),
        normalize(features(0, K), dim=-1),
        9.0,
        torch.zeros(K),
        tuple(range(1, K + 1)),
    )
    labels = torch.tensor([0, 1, 1, 2, 2, 2])  # unequal shots
    return Lesson(known, names, features(1, 6), labels, features(2, pile).numpy(), HOW)


@pytest.mark.parametrize("part", [7, 50, 4096])
def test_a_lesson_is_the_benchmarks_method(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "PART", part)
    lesson = make()
    pile = torch.from_numpy(lesson.pile)[None]
    task = Task(
        3,
        lesson.support[None],
        lesson.labels[None],
        pile,
        cosine_logits(pile, lesson.known.weights, 9.0),
        lesson.known.weights,
        9.0,
        torch.zeros(1),
    )
    method = PrototypeRefinement(steps=4, alpha=0.5, temperature=1.5)
    expected = method.fit(task).novel[0]
    learnt = lesson.learnt()
    torch.testing.assert_close(learnt.novel, expected)
    assert not torch.allclose(lesson.learnt(with_pile=False).novel, expected, atol=1e-3)
    assert learnt.known.classes == (*lesson.known.classes, "x", "y", "z")
    assert learnt.known.examples == (1, 2, 3, 4, 5, 6, 1, 2, 3)
    torch.testing.assert_close(learnt.known.weights[:K], lesson.known.weights)


def test_a_class_named_again_remembers_what_it_was() -> None:
    lesson = make(("x", "old 4", "z"))
    learnt = lesson.learnt(with_pile=False)
    assert learnt.known.classes == (*lesson.known.classes, "x", "z")
    assert learnt.known.examples[4] == 5 + 2
    directions = normalize(lesson.support, dim=-1)
    expected = normalize(5 * lesson.known.weights[4] + directions[1] + directions[2], dim=-1)
    torch.testing.assert_close(learnt.known.weights[4], expected)
    torch.testing.assert_close(learnt.known.weights[:4], lesson.known.weights[:4])
    many = replace(lesson, known=replace(lesson.known, examples=(1000,) * K))
    bounded = many.learnt(with_pile=False).known.weights[4]
    whole = AS_MANY_AS * lesson.known.weights[4] + directions[1] + directions[2]
    torch.testing.assert_close(bounded, normalize(whole, dim=-1))
    with_pile = lesson.learnt().pile_parts()
    assert next(with_pile).logits.shape == (50, K + 2)


def test_left_out_examples_had_no_say() -> None:
    lesson = make()
    places, logits = left_out_logits(lesson, with_pile=False)
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
    lesson = replace(lesson, pile=np.concatenate([[near], -lesson.pile]).astype(np.float32))
    learnt = lesson.learnt()
    assert learnt.step_helped[0] == 1
    assert len(learnt.step_helped) == 51
    never = learnt.step_helped == 0
    weights = next(learnt.pile_parts()).weights
    assert weights[0].argmax() == 1
    assert never.any()
    assert not len(lesson.learnt(with_pile=False).step_helped)


def test_new_classes_are_held_back_just_enough() -> None:
    learnt = make().learnt(with_pile=False)
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
