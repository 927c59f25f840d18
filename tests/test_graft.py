"""Graft, piece by piece, against loops over single pictures."""

import dataclasses
import math

import pytest
import torch
from session_tasks import made_features
from torch import Tensor

import fewgraft
from fewgraft.base_knowledge import BaseKnowledge, axes_of, knowledge_of, spread_within
from fewgraft.data.store import ImageStore
from fewgraft.densities import nearness
from fewgraft.methods.base import Queries, Solution, Task
from fewgraft.methods.graft import (
    Graft,
    Grafted,
    base_densities,
    novel_densities,
    strangers,
    told_apart,
    weighted_mean,
    whitening,
)
from fewgraft.prototypes import direction_logits, directions
from fewgraft.sessions import SessionSettings, draw_sessions
from fewgraft.split_features import SplitFeatures
from fewgraft.zoo import shipped_model

pytestmark = pytest.mark.numerical

E, N, N_BASE, D, C, GAMMA = 2, 3, 4, 6, 5, 10.0
LABELS = torch.tensor([[0, 1, 2, 2], [2, 0, 1, 1]])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Directions in double precision, so that loops and matrices agree closely."""
    rng = torch.Generator().manual_seed(seed)
    return directions(torch.randn(*shape, generator=rng, dtype=torch.float64))


def knowledge() -> BaseKnowledge:
    exemplars, mid = drawn(N_BASE, 7, D, seed=1), drawn(N_BASE, 7, C, seed=2)
    return BaseKnowledge(exemplars, spread_within(list(exemplars)), spread_within(list(mid)))


def task(pile: int = 9) -> Task:
    unlabelled, weights = drawn(E, pile, D, seed=4), drawn(N_BASE, D, seed=5)
    return Task(
        ways=N,
        support=drawn(E, 4, D, seed=3),
        labels=LABELS,
        unlabelled=unlabelled,
        base_unlabelled=direction_logits(unlabelled, weights, GAMMA),
        weights=weights,
        gamma=GAMMA,
        numbers=torch.arange(E),
        mid=(drawn(E, 4, C, seed=6), drawn(E, pile, C, seed=7)),
        knowledge=knowledge(),
    )


def unit(row: Tensor) -> Tensor:
    return directions(row)


def k(x: Tensor, y: Tensor, sharpness: float) -> float:
    cosine = float(x @ y)
    return 0.0 if cosine > 0.99999 else math.exp(sharpness * (cosine - 1))


def test_base_densities_against_a_loop() -> None:
    features, exemplars = drawn(5, D), drawn(N_BASE, 7, D, seed=1)
    exemplars[2, 4:] = 0  # a class with fewer exemplars
    features[1] = exemplars[0, 0]  # an exemplar itself does not count
    found = base_densities(features, exemplars, 8.0)
    for i, x in enumerate(features):
        for label, own in enumerate(exemplars):
            there = own[:4] if label == 2 else own
            mean = sum(k(x, e, 8.0) for e in there) / len(there)
            # Rows of zeros and the bound are at a right angle: e^−8 in all.
            assert found[i, label].item() == pytest.approx(math.log(mean + math.exp(-8)))


def test_novel_densities_against_a_loop() -> None:
    features, others, weights = drawn(E, 5, D), drawn(E, 8, D, seed=1), torch.rand(E, 8, N).double()
    found = novel_densities(nearness(features, others, 4.0), weights, 4.0)
    for e in range(E):
        for i, x in enumerate(features[e]):
            for j in range(N):
                total = sum(weights[e, n, j] * k(x, y, 4.0) for n, y in enumerate(others[e]))
                mean = float(total / weights[e, :, j].sum())
                assert found[e, i, j].item() == pytest.approx(math.log(mean + math.exp(-4)))


@pytest.mark.parametrize("ways", [1, 2, 3, 4, 9])
def test_strangers_against_a_loop(ways: int) -> None:
    exemplars, weights = drawn(5, 4, D, seed=1), 3 * drawn(5, D, seed=2)
    exemplars[2, 3:] = 0  # a class with fewer exemplars
    means, groups = exemplars.sum(1), max(1, 5 // ways)
    base, novel = [], []
    for label, own in enumerate(exemplars):
        for e in own[:3] if label == 2 else own:
            scores = [math.exp(GAMMA * float(e @ unit(w))) for w in weights]
            base.append(math.log(sum(scores) - scores[label]))
            for group in range(groups):
                some = [k for k in range(5) if k % groups == group]
                if groups > 1 and label in some:
                    continue
                total = sum(math.exp(GAMMA * float(e @ unit(means[k]))) for k in some if k != label)
                novel.append(math.log(total))
    expected = sum(base) / len(base) - sum(novel) / len(novel)
    assert strangers(exemplars, weights, GAMMA, ways) == pytest.approx(expected)
    assert strangers(exemplars[:1], weights[:1], GAMMA, ways) == 0


def test_whitening_is_the_inverse_root_of_the_shrunk_covariance() -> None:
    spread = knowledge().spread
    root = whitening(axes_of(spread), 0.3)
    shrunk = 0.7 * spread + 0.3 * spread.trace() / D * torch.eye(D, dtype=torch.float64)
    torch.testing.assert_close(root @ shrunk @ root, torch.eye(D, dtype=torch.float64))
    torch.testing.assert_close(root, root.T)


def test_spread_within_classes_against_a_loop() -> None:
    classes = [drawn(5, D), drawn(3, D, seed=1)]
    total = torch.zeros(D, D, dtype=torch.float64)
    for own in classes:
        for x in own:
            apart = x - own.mean(0)
            total += torch.outer(apart, apart)
    torch.testing.assert_close(spread_within(classes), total / total.diagonal().mean())
    still = [torch.ones(4, D)]
    assert torch.equal(spread_within(still), torch.eye(D)), "pictures that do not differ"


def expected_bias(t: Task) -> float:
    apart = strangers(knowledge().exemplars, t.weights, GAMMA, N)
    return CONFIG.strangers * apart - CONFIG.margin


def refined_by_a_loop(t: Task, config: Graft, e: int) -> tuple[list[Tensor], list[list[float]]]:
    """Step 2: p and R of one episode."""
    support, pile, labels = t.support[e], t.unlabelled[e], t.labels[e].tolist()
    bias = expected_bias(t)
    own = [sum((s for s, y in zip(support, labels, strict=True) if y == j), 0 * support[0])
           for j in range(N)]  # fmt: skip
    p, r = [unit(total) for total in own], [[0.0] * N for _ in pile]
    for _ in range(config.steps):
        r_before, r = r, []
        for u, x in enumerate(pile):
            base = [float(b) / config.temperature for b in t.base_unlabelled[e, u]]
            novel = []
            for j in range(N):
                near = sum(k(x, s, config.sharpness) for s, y in zip(support, labels, strict=True)
                           if y == j)  # fmt: skip
                count = float(labels.count(j))
                near += sum(w[j] * k(x, y, config.sharpness)
                            for w, y in zip(r_before, pile, strict=True))  # fmt: skip
                count += sum(w[j] for w in r_before)
                density = math.log(near / count + math.exp(-config.sharpness))
                score = GAMMA * float(x @ p[j]) + config.density * density + bias
                novel.append(score / config.temperature)
            total = sum(map(math.exp, [*base, *novel]))
            r.append([math.exp(v) / total for v in novel])
        p = [unit(own[j] + sum((w[j] * x for w, x in zip(r, pile, strict=True)), 0 * own[j]))
             for j in range(N)]  # fmt: skip
    return p, r


CONFIG = Graft(sharpness=4.0, density=0.5, steps=3, temperature=2.0, scale=3.0, own_steps=2)


def test_refinement_against_a_loop() -> None:
    t = task()
    found = CONFIG.refined(t)
    for e in range(E):
        p, r = refined_by_a_loop(t, CONFIG, e)
        torch.testing.assert_close(found.novel[e], torch.stack(p))
        torch.testing.assert_close(found.weights[e, 4:], torch.tensor(r, dtype=torch.float64))


def test_a_space_of_their_own_against_a_loop() -> None:
    t, novelty = task(), torch.rand(E, 9, generator=torch.Generator().manual_seed(0)).double()
    found = told_apart(t, novelty, CONFIG)
    known = knowledge()
    assert t.mid is not None
    assert known.mid_spread is not None
    roots = [whitening(axes_of(s), CONFIG.shrinkage) for s in (known.spread, known.mid_spread)]
    for e in range(E):

        def space(f: Tensor, g: Tensor, e: int = e) -> Tensor:
            assert t.mid is not None
            parts = []
            for x, pile, root in ((f, t.unlabelled[e], roots[0]), (g, t.mid[1][e], roots[1])):
                mean = sum((w * (root @ u) for w, u in zip(novelty[e], pile, strict=True)), 0 * x)
                parts.append(unit(root @ x - mean / novelty[e].sum()))
            return unit(torch.cat([parts[0], CONFIG.mid * parts[1]]))

        of_support = [space(*pair) for pair in zip(t.support[e], t.mid[0][e], strict=True)]
        of_pile = [space(*pair) for pair in zip(t.unlabelled[e], t.mid[1][e], strict=True)]
        own = [
            sum((h for h, y in zip(of_support, LABELS[e], strict=True) if y == j), 0 * of_pile[0])
            for j in range(N)
        ]
        q = [unit(total) for total in own]
        for _ in range(CONFIG.own_steps):
            weights = []
            for w, h in zip(novelty[e], of_pile, strict=True):
                powers = [math.exp(CONFIG.scale * float(h @ one)) for one in q]
                weights.append([float(w) * power / sum(powers) for power in powers])
            q = [
                unit(own[j] + sum((w[j] * h for w, h in zip(weights, of_pile, strict=True)), 0))
                for j in range(N)
            ]
        torch.testing.assert_close(found[e], torch.tensor(weights, dtype=torch.float64))


def test_the_answer_is_made_of_the_weights_of_the_own_space() -> None:
    t, query = task(), drawn(E, 5, D, seed=9)
    fitted = CONFIG.fit(t)
    assert isinstance(fitted, Grafted)
    novelty = CONFIG.refined(t).weights[:, 4:].sum(-1)
    torch.testing.assert_close(fitted.weights[:, 4:], told_apart(t, novelty, CONFIG))
    base = torch.zeros(E, 5, N_BASE).double()
    logits = fitted.logits(Queries(query, base))
    near = nearness(query, torch.cat([t.support, t.unlabelled], 1), CONFIG.sharpness)
    density = novel_densities(near, fitted.weights, CONFIG.sharpness)
    expected = GAMMA * query @ fitted.novel.mT + CONFIG.density * density + expected_bias(t)
    torch.testing.assert_close(logits[..., N_BASE:], expected)
    assert torch.equal(logits[..., :N_BASE], base)


def test_base_scores_are_once_per_picture_and_beside_cosines() -> None:
    features, known = drawn(5, D), knowledge()
    logits = torch.randn(5, N_BASE).double()
    found = CONFIG.base_scores(features, logits, known)
    densities = base_densities(features, known.exemplars, CONFIG.sharpness)
    torch.testing.assert_close(found, logits + CONFIG.density * densities)
    assert torch.equal(CONFIG.base_scores(features, logits, None), logits)


def test_what_is_not_known_is_left_out() -> None:
    """Features alone: no exemplars, no covariance, no mid level; each part can be turned off."""
    t, queries = task(), Queries(drawn(E, 5, D, seed=9), torch.zeros(E, 5, N_BASE).double())
    whole = CONFIG.fit(t).logits(queries)
    bare = dataclasses.replace(t, knowledge=None, mid=None)
    answers = {
        "whole": whole,
        "no mid level": CONFIG.fit(dataclasses.replace(t, mid=None)).logits(queries),
        "bare": CONFIG.fit(bare).logits(queries),
        "one space": CONFIG.changed(own_space=False).fit(t).logits(queries),
        "no densities": CONFIG.changed(density=0.0).fit(t).logits(queries),
    }
    assert all(torch.isfinite(answer).all() for answer in answers.values())
    kinds = list(answers.values())
    for i, one in enumerate(kinds):
        assert not any(torch.allclose(one, other) for other in kinds[:i])
    without = CONFIG.changed(mid=0.0).fit(t).logits(queries)
    torch.testing.assert_close(without, answers["no mid level"])


def test_the_mean_of_nothing_is_no_nan() -> None:
    assert torch.isfinite(weighted_mean(drawn(E, 4, D), torch.zeros(E, 4).double())).all()


def test_it_beats_refinement_on_icons_and_takes_bare_features() -> None:
    ours = fewgraft.evaluate("graft", episodes=40, split="val", seed=21)
    paper = fewgraft.evaluate("proposed-without-adaptation", episodes=40, split="val", seed=21)
    assert ours.compare(paper).summary()["acc"].difference.mean > 0.01
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(18).repeat_interleave(60)
    centres = torch.randn(18, 32, generator=rng)
    features = centres[labels] + 2 * torch.randn(len(labels), 32, generator=rng)
    parts = ["novel/test" if y >= 10 else "base/train" if i % 60 < 10 else "base/test"
             for i, y in enumerate(labels.tolist())]  # fmt: skip
    data = fewgraft.FeatureSet(features, labels, parts)
    found = fewgraft.evaluate("graft", data=data, episodes=10)
    assert found.summary()["acc"].mean > 0.5


def test_knowledge_is_of_half_precision_and_pads_small_classes() -> None:
    found = knowledge_of([torch.rand(3, D), torch.rand(5, D)])
    assert found.exemplars.shape == (2, 5, D)
    assert not found.exemplars[0, 3:].any()
    assert torch.equal(found.exemplars, found.exemplars.half().float())
    assert found.mid_spread is None


def test_base_scores_are_computed_once_for_what_they_depend_on(icons: ImageStore) -> None:
    features = SplitFeatures(shipped_model("icons", "algorithm-2"), icons, "val")
    first = features._scores_for(Graft())
    assert features._scores_for(Graft(margin=1.0)) is first
    other = features._scores_for(Graft(density=0.2))
    assert not torch.equal(other, first)
    torch.testing.assert_close(features._scores_for(None), features._base_scores)
    assert features._scores_for(Graft(density=0.0)) is features._base_scores


def test_sessions_take_it_with_all_that_it_uses(icons: ImageStore) -> None:
    features = made_features(icons)
    settings = SessionSettings(sessions=2, ways=3, shots=2, unlabelled=6, queries=15)
    rng = torch.Generator().manual_seed(1)
    noise = 2.5 * torch.randn(len(features.weights), 9, features.weights.shape[1], generator=rng)
    features.knowledge = knowledge_of(list(directions(features.weights[:, None] + noise)))
    features.mid = features.bank
    seen: list[Task] = []

    class Seeing(Graft):
        def fit(self, task: Task) -> Solution:
            seen.append(task)
            return super().fit(task)

    draws = draw_sessions(features.pools, settings, 1)
    scores = features.session_scores(Seeing(), draws, range(1))
    assert scores.acc.shape == (1, 3)
    assert (scores.acc > 0.3).all()  # of 114 classes
    assert [task.grafted for task in seen] == [0, 3]
    for task in seen:
        assert task.mid is not None
        assert torch.equal(task.mid[1], task.unlabelled)
        base = features.begin("weights", Graft()).base_logits(task.unlabelled)
        assert torch.equal(task.base_unlabelled[..., :108], base), "densities count once"


@pytest.mark.parametrize("own_space", [True, False])
def test_rarity_lowers_what_novel_classes_answer_and_nothing_else(own_space: bool) -> None:
    given, asked = task(), drawn(E, 5, D, seed=8)
    queries = Queries(asked, direction_logits(asked, given.weights, GAMMA))
    plain, rare = (Graft(own_space=own_space, rarity=z).fit(given) for z in (0.0, 1.5))
    lowered = torch.tensor([0.0] * N_BASE + [1.5] * N, dtype=torch.float64)
    torch.testing.assert_close(plain.logits(queries) - lowered, rare.logits(queries))
    assert torch.equal(plain.carried, rare.carried)  # type: ignore[attr-defined]
