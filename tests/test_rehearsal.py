"""The head of the tool: whitening, class weights, rehearsed lessons. Checked by other means."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fewgraft.app.estimator import FewgraftClassifier
from fewgraft.app.features.embedding import untracked
from fewgraft.app.learning import base, head, rehearsal
from fewgraft.app.learning.foreign import auroc
from fewgraft.app.learning.gamma import notes_of_gamma
from fewgraft.app.learning.rehearsal import (
    FOLDS,
    Rehearsal,
    RehearsedLesson,
    can_rehearse,
    rehearse,
)
from fewgraft.prototypes import Refinement, direction_logits, prototypes, refine
from fewgraft.whitening import (
    LARGEST_WHITENED,
    class_means,
    estimated_shrinkage,
    rooted,
    space_of,
    turned,
    whitening_of,
)

pytestmark = pytest.mark.numerical

D = 12


def photos(
    classes: int, each: int, seed: int = 0, width: int = D, noise: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Classes that spread far in a few directions, the same ones in all classes."""
    rng = torch.Generator().manual_seed(seed)
    spread = torch.ones(width)
    spread[: width // 3] = 6.0
    means = 1.5 * torch.randn(classes, width, generator=rng)
    labels = torch.arange(classes).repeat_interleave(each)
    drawn = torch.randn(len(labels), width, generator=rng)
    return means[labels] + noise * spread * drawn, labels


def rehearsed(features: Tensor, labels: Tensor, n_classes: int) -> Rehearsal:
    """After all folds."""
    *_, done = rehearse(features, labels, n_classes)
    return done


def test_whitened_distances_are_those_of_a_linear_discriminant() -> None:
    """scikit-learn's shrunk LDA with equal priors takes every photo for the same class."""
    features, labels = photos(6, 40)
    means = class_means(features, labels, 6)
    residuals = features - means[labels]
    whitening = whitening_of(residuals, len(features) - 6, 0.3)
    nearest = torch.cdist(features @ whitening.T, means @ whitening.T).argmin(-1)
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3, priors=np.full(6, 1 / 6))
    expected = lda.fit(features.numpy(), labels.numpy()).predict(features.numpy())
    assert (nearest.numpy() == expected).mean() > 0.995
    plain = torch.cdist(features, means).argmin(-1)
    assert (nearest == labels).sum() > (plain == labels).sum() + 10


@pytest.mark.parametrize("width", [D, 400])
def test_whitening_inverts_the_shrunk_covariance(width: int) -> None:
    """With more photos than features, and with far fewer."""
    features, labels = photos(5, 30, width=width)
    residuals = features - class_means(features, labels, 5)[labels]
    whitening = whitening_of(residuals, len(features) - 5, 0.5).double()
    covariance = residuals.double().T @ residuals.double() / (len(features) - 5)
    mean = covariance.trace() / width
    shrunk = 0.5 * covariance / mean + 0.5 * torch.eye(width, dtype=torch.double)
    torch.testing.assert_close(
        whitening.T @ whitening, torch.linalg.inv(shrunk), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(whitening_of(residuals, 25, 1.0), torch.eye(width))
    assert torch.equal(whitening_of(0 * residuals, 25, 0.5), torch.eye(width))


def test_the_shrinkage_is_that_of_ledoit_and_wolf_and_fades_where_photos_are_few() -> None:
    features, labels = photos(5, 400)
    residuals = features - class_means(features, labels, 5)[labels]
    for some in (residuals, residuals[: D // 2], residuals[::90, :7]):
        _, expected = ledoit_wolf(some.double().numpy(), assume_centered=True)
        assert estimated_shrinkage(some) == pytest.approx(0.5 + 0.5 * expected)
    few = estimated_shrinkage(torch.randn(4, 300, generator=torch.Generator().manual_seed(0)))
    assert few > 0.75 > estimated_shrinkage(residuals)
    assert estimated_shrinkage(torch.zeros(10, D)) == 1.0


def test_a_space_step_by_step() -> None:
    features, labels = photos(4, 20)
    space = space_of(features, labels, 4, shrinkage=0.4)
    roots = np.sign(features.numpy()) * np.sqrt(np.abs(features.numpy()))
    centre = np.mean([roots[labels.numpy() == k].mean(0) for k in range(4)], axis=0)
    seen = roots - centre
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    placed = seen @ space.whitening.numpy().T
    placed -= np.mean([placed[labels.numpy() == k].mean(0) for k in range(4)], axis=0)
    placed /= np.linalg.norm(placed, axis=1, keepdims=True)
    np.testing.assert_allclose(space(features).numpy(), placed, atol=1e-4)


def test_roots_have_gradients_everywhere() -> None:
    x = torch.tensor([-4.0, 0.0, 9.0], requires_grad=True)
    assert rooted(x).tolist() == [-2.0, 0.0, 3.0]
    rooted(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([0.25, 0.0, 1 / 6])


def test_class_weights_are_at_the_minimum_of_their_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = photos(5, 30)
    features = normalize(features, dim=-1)
    means = normalize(class_means(features, labels, 5), dim=-1)

    def loss(weights: Tensor) -> float:
        logits = head.SHARPNESS * features @ normalize(weights, dim=-1).T
        penalty = head.PENALTY * (weights - means).square().sum()
        return (cross_entropy(logits, labels) + penalty).item()

    way = torch.zeros_like(means, requires_grad=True)
    optimiser = torch.optim.Adam([way], lr=0.01)
    for _ in range(2000):
        optimiser.zero_grad()
        logits = head.SHARPNESS * features @ normalize(means + way, dim=-1).T
        total = cross_entropy(logits, labels) + head.PENALTY * way.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    expected = normalize(means + way.detach(), dim=-1)
    found = head.class_weights(features, labels, 5)
    assert (found * expected).sum(-1).min() > 0.99
    monkeypatch.setattr(head, "STEPS", 200)
    found = head.class_weights(features, labels, 5)
    assert (found * expected).sum(-1).min() > 0.9995
    assert loss(means + way.detach()) < loss(means)
    monkeypatch.setattr(head, "MOST_PRODUCTS", 5 * D)  # one photo: far too few
    torch.testing.assert_close(head.class_weights(features, labels, 5), means)


def test_what_a_bias_loses_and_finds_against_a_loop() -> None:
    rng = torch.Generator().manual_seed(1)
    lesson = RehearsedLesson(
        old_best=torch.rand(30, generator=rng),
        old_right=torch.rand(30, generator=rng) < 0.8,
        old_novel=torch.rand(30, 3, generator=rng),
        new_best=torch.rand(20, generator=rng),
        new_novel=torch.rand(20, 3, generator=rng),
        new_labels=torch.arange(20) % 3,
        counts=torch.ones(3),
    )
    start = torch.tensor([-0.3, 0.0, 0.1])
    lost, found = lesson.scores(start.tolist())
    assert len(lost) == len(found) == len(rehearsal.BIASES)
    for row in range(0, len(lost), 7):
        bias = start + rehearsal.BIASES[row]
        taken = sum(
            bool(lesson.old_right[p]) and max(lesson.old_novel[p] + bias) > lesson.old_best[p]
            for p in range(30)
        )
        right = 0
        for p in range(20):
            everything = [lesson.new_best[p], *(lesson.new_novel[p] + bias)]
            right += int(np.argmax(everything)) == 1 + int(lesson.new_labels[p])
        assert lost[row].item() == pytest.approx(taken / 30)
        assert found[row].item() == pytest.approx(right / 20)


def test_auroc_is_scikit_learn_s() -> None:
    rng = np.random.default_rng(0)
    known, foreign = (rng.integers(low, low + 6, 40) / 4 for low in (2, 0))  # with ties
    truth = [1] * 40 + [0] * 40
    expected = roc_auc_score(truth, np.concatenate([known, foreign]))
    found = auroc(torch.from_numpy(known), torch.from_numpy(foreign))
    assert found == pytest.approx(expected)


def test_rehearsals_are_repeatable_and_say_something() -> None:
    features, labels = photos(12, 30, noise=0.4)
    border = rehearsed(features, labels, 12).border()
    assert border == rehearsed(features, labels, 12).border()
    assert border is not None
    assert border.counts == (1, 2, 5, 10, 20)
    assert border.ways == 4  # a third of 12
    assert border.biases[0] > border.biases[-1], "a prototype of one photo needs a push"
    for curve in (border.without_unlabelled, *border.with_unlabelled):
        assert list(curve.lost) == sorted(curve.lost)
        assert curve.found[-1] > curve.found[0]
    low, high = border.shares
    assert low < 0.3 < high


def test_a_base_goes_on_with_the_fold_that_chose_its_space() -> None:
    """It is what all folds at once give, for the shrinkage that does better in the first one."""
    features, labels = photos(12, 20, noise=0.4)
    shrinkage, found = base._rehearsed(features, labels, 12, untracked)
    *_, expected = rehearse(features, labels, 12, shrinkage=shrinkage)
    assert len(found.cosines) == FOLDS
    assert (found.border(), found.gamma()) == (expected.border(), expected.gamma())
    other = base.NOT_WHITENED if shrinkage is None else None
    worth = []
    for way in (shrinkage, other):
        first = next(rehearse(features, labels, 12, shrinkage=way))
        border = first.border()
        assert border is not None
        worth.append(first.accuracy + base._gained(border))
    assert worth[0] >= worth[1]


def test_lessons_refined_together_are_those_refined_alone() -> None:
    """All lessons and biases at once, as less for old classes, against one after the other."""
    rng = torch.Generator().manual_seed(0)
    weights, *new = (normalize(torch.randn(n, D, generator=rng), dim=-1) for n in (4, 9, 9, 2))
    draw = SimpleNamespace(new=new)
    lessons = [
        rehearsal.FoldLesson(draw, shots, used, u=_directions(photos, rng))  # type: ignore[arg-type]
        for shots, used, photos in (
            (2, {0: 4, 1: 4}, 30),
            (1, {0: 4, 1: 4, 2: 1}, 20),
            (2, {0: 5, 1: 5}, 17),
        )
    ]
    sharpness = rehearsal.SHARPNESS
    for lesson, refined in zip(lessons, rehearsal._refined(weights, lessons), strict=True):
        own = lesson.support[None], lesson.labels[None]
        base_logits = direction_logits(lesson.u[None], weights, sharpness)
        for bias, novel, counts in zip(rehearsal.UNLABELLED_BIASES, *refined, strict=True):
            config = Refinement(rehearsal.STEPS, rehearsal.ALPHA, novel_bias=sharpness * bias)
            start = prototypes(*own, lesson.ways)
            expected = refine(start, *own, lesson.u[None], base_logits, sharpness, config)[0]
            torch.testing.assert_close(novel, expected, rtol=1e-4, atol=1e-5)
            logits = torch.cat([base_logits[0], sharpness * (lesson.u @ expected.T + bias)], -1)
            counted = lesson.shots + logits.softmax(-1)[:, 4:].sum(0)
            torch.testing.assert_close(counts, counted, rtol=1e-4, atol=1e-5)


def _directions(rows: int, rng: torch.Generator) -> Tensor:
    return normalize(torch.randn(rows, D, generator=rng), dim=-1)


def test_photos_in_fewer_dimensions_rehearse_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """n photos lie in n dimensions: a border is the same there as in all of a network's."""
    features, labels = photos(9, 6, width=160, noise=0.4)
    inside = turned(features)
    assert inside.shape == (54, 54)
    torch.testing.assert_close(inside @ inside.T, features @ features.T, rtol=1e-4, atol=1e-2)
    few = rehearsed(features, labels, 9)
    monkeypatch.setattr(rehearsal, "turned", lambda rows: rows)
    whole = rehearsed(features, labels, 9)
    for one, other in zip(few.cosines, whole.cosines, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert few.gamma() == whole.gamma()
    border, expected = few.border(), whole.border()
    assert border is not None
    assert expected is not None
    np.testing.assert_allclose(border.biases, expected.biases, atol=0.02)
    np.testing.assert_allclose(border.shares, expected.shares, atol=0.01)


def test_held_out_photos_are_neighbours_and_a_draw_and_never_all() -> None:
    features, labels = photos(6, 10)
    features[:5] += 100.0  # half of a class is a series of its own
    series, drawn = rehearsal._held_out(features, labels, torch.Generator().manual_seed(0))
    assert not (series & drawn).any()
    assert torch.bincount(labels[series]).tolist() == [2] * 6
    assert torch.bincount(labels[drawn]).tolist() == [1] * 6
    assert series[:5].sum().item() in (0, 2), "a series stays together"
    single = torch.arange(4)
    assert not any(h.any() for h in rehearsal._held_out(features[:4], single, torch.Generator()))


def test_the_limit_is_that_of_the_harder_half_of_held_out_photos() -> None:
    done = Rehearsal()
    done.cosines = [torch.linspace(0, 1, 101)[:, None], torch.linspace(0.5, 1, 101)[:, None]]
    done.series = [torch.zeros(101, dtype=torch.bool), torch.ones(101, dtype=torch.bool)]
    assert done.limit() == pytest.approx(0.05)
    done.series.reverse()
    assert done.limit() == pytest.approx(0.05), "whichever half it is"
    done.cosines, done.series = done.cosines[1:], [torch.ones(101, dtype=torch.bool)]
    assert done.limit() == pytest.approx(0.525), "where all are of one kind"


def test_the_lowest_best_scores_of_new_photos_against_a_loop() -> None:
    done = rehearsed(*photos(9, 12), 9)
    border = done.border()
    assert border is not None
    lessons = [one for own in done.plain.values() for one in own]
    for place in (0, 20, 48):
        best = []
        for one in lessons:
            start = border.bias(one.counts.tolist())
            for old, novel in zip(one.new_best.tolist(), one.new_novel.tolist(), strict=True):
                pushed = [n + b + border.shifts[place] for n, b in zip(novel, start, strict=True)]
                best.append(max(old, *pushed))
        expected = np.quantile(best, 0.05)
        assert border.without_unlabelled.lowest[place] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize(
    ("classes", "each", "enough"), [(6, 3, True), (5, 30, False), (9, 2, False), (6, 1, False)]
)
def test_too_few_photos_rehearse_nothing(classes: int, each: int, enough: bool) -> None:
    features, labels = photos(classes, each)
    assert can_rehearse(features, labels, classes) is enough
    assert not can_rehearse(torch.zeros(len(labels), LARGEST_WHITENED + 1), labels, classes)
    names = np.array([f"class {label:02d}" for label in labels])
    model = FewgraftClassifier().fit(features.numpy(), names).model_
    assert model.card.whitened is enough
    assert (model.card.border is not None) is enough
    assert model.classify(model.place(features)).isfinite().all()


def test_classes_of_one_photo_stay_in_a_rehearsed_base() -> None:
    features, labels = photos(9, 8)
    kept = (labels > 1) | (torch.arange(len(labels)) % 8 == 0)  # one photo of two classes
    names = np.array([f"class {label}" for label in labels])[kept]
    v1 = FewgraftClassifier().fit(features[kept].numpy(), names)
    assert v1.model_.card.border is not None
    assert v1.model_.card.examples[:3] == (1, 1, 8)
    assert v1.predict(features[:1].numpy()).tolist() == ["class 0"]


def test_a_base_of_spread_classes_is_whitened_and_learns_better() -> None:
    """Along the directions in which all classes spread, a plain cosine is misled."""
    features, labels = photos(14, 40, width=48)
    names = np.array([f"class {label:02d}" for label in labels])
    old, new = labels < 11, labels >= 11
    train = torch.arange(len(labels)) % 2 == 0
    v1 = FewgraftClassifier().fit(features[old & train].numpy(), names[old & train])
    assert not torch.equal(v1.model_.whitening, torch.eye(48))
    assert not list(notes_of_gamma(v1.model_.gamma.item())), "inside of what is tried"
    accuracy = (v1.predict(features[old & ~train].numpy()) == names[old & ~train]).mean()
    assert v1.model_.card.metrics["held_out_accuracy"] == pytest.approx(accuracy, abs=0.12)
    shots = torch.cat([(labels == label).nonzero()[:2, 0] for label in (11, 12, 13)])
    v2 = v1.learn(features[shots].numpy(), names[shots], unlabelled=features[train].numpy())
    asked = new & ~train
    found = (v2.predict(features[asked].numpy()) == names[asked]).mean()
    kept = (v2.predict(features[old & ~train].numpy()) == names[old & ~train]).mean()
    assert found > 0.5
    assert kept > accuracy - 0.06


def test_a_base_is_the_same_however_features_are_scaled() -> None:
    features, labels = photos(7, 12)
    names = tuple(f"class {label}" for label in range(7))
    start = FewgraftClassifier().fit(features.numpy(), np.array(names)[labels]).model_
    other = FewgraftClassifier().fit(16 * features.numpy(), np.array(names)[labels]).model_
    torch.testing.assert_close(start.weight, other.weight, rtol=1e-3, atol=1e-3)
