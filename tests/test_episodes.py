"""Episodes: exact counts, disjoint roles, labels that fit, order without information."""

import dataclasses
import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewgraft.data.store import ImageStore
from fewgraft.episodes import (
    DISTRACTOR,
    SETTINGS,
    Episodes,
    EpisodeSettings,
    Pools,
    QueryLabels,
    sample_episodes,
)
from fewgraft.errors import FewgraftError

pytestmark = pytest.mark.numerical


def made_pools(novel: list[int], base: list[int], scatter: int = 1) -> Pools:
    """Classes with these numbers of pictures; base classes first, indices `scatter` apart."""
    labels = np.repeat(np.arange(len(base) + len(novel)), base + novel)
    indices = np.arange(len(labels)) * scatter
    n_base = len(base)
    is_base = labels < n_base
    return Pools(
        novel={n_base + c: indices[labels == n_base + c] for c in range(len(novel))},
        base=indices[is_base],
        base_labels=labels[is_base],
        n_base=n_base,
        names=tuple(f"class {c}" for c in range(len(base) + len(novel))),
    )


PAPER_POOLS = made_pools(novel=[600] * 20, base=[100] * 64, scatter=3)


def true_labels(pools: Pools, pictures: torch.Tensor) -> torch.Tensor:
    """The class of the data that each picture shows, looked up picture by picture."""
    lookup = dict(zip(pools.base.tolist(), pools.base_labels.tolist(), strict=True))
    for label, own in pools.novel.items():
        lookup |= dict.fromkeys(own.tolist(), label)
    return torch.tensor([[lookup[p] for p in row] for row in pictures.tolist()])


def check(pools: Pools, config: EpisodeSettings, episodes: Episodes, answers: QueryLabels) -> None:
    """Everything the task promises, checked the plain way, one episode at a time."""
    shown = {
        name: true_labels(pools, getattr(episodes, name))
        for name in ("support", "query", "unlabelled")
    }
    n_base = pools.n_base if config.kind.incremental else 0
    assert episodes.n_base == n_base
    for e in range(len(episodes)):
        classes = episodes.classes[e].tolist()
        assert len(set(classes)) == config.ways
        roles = {r: getattr(episodes, r)[e].tolist() for r in ("support", "query", "unlabelled")}
        if config.kind.unlabelled == "query":
            assert roles["unlabelled"] == roles["query"]
            roles["unlabelled"] = []
        everything = [picture for pictures in roles.values() for picture in pictures]
        assert len(everything) == len(set(everything)), "a picture has two roles"

        def in_episode(label: int, classes: list[int] = classes) -> int:
            if label in classes:
                return n_base + classes.index(label)
            return label if label < n_base else DISTRACTOR

        for role, given_labels in (
            ("support", episodes.support_labels),
            ("query", answers.query_labels),
            ("unlabelled", answers.unlabelled_labels),
        ):
            assert given_labels[e].tolist() == [in_episode(c) for c in shown[role][e].tolist()]
        support, query = episodes.support_labels[e], answers.query_labels[e]
        for way in range(n_base, n_base + config.ways):
            assert (support == way).sum() == config.shots
            assert (query == way).sum() == config.queries
        assert (query < n_base).sum() == config.base_queries
        if config.kind.unlabelled == "none":
            assert len(answers.unlabelled_labels[e]) == 0
        if config.kind.unlabelled == "extra":
            hidden = answers.unlabelled_labels[e]
            sizes = [int((hidden == n_base + way).sum()) for way in range(config.ways)]
            assert sum(sizes) == config.novel_unlabelled
            assert max(sizes) - min(sizes) <= 1
            assert ((hidden >= 0) & (hidden < n_base)).sum() == config.base_unlabelled
            strangers = shown["unlabelled"][e][hidden == DISTRACTOR]
            assert len(strangers) == config.distractors * config.distractor_pictures
            assert len(set(strangers.tolist())) == config.distractors
            assert not set(strangers.tolist()) & set(classes)


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_papers_settings(setting: str, shots: int) -> None:
    config = EpisodeSettings.paper(setting, shots)
    check(PAPER_POOLS, config, *sample_episodes(PAPER_POOLS, config, count=8))


@pytest.mark.parametrize("setting", ["semi-fsl", "s2i"])
@pytest.mark.parametrize("concentration", [1, 5])
def test_an_unequal_share_changes_nothing_else(setting: str, concentration: int) -> None:
    equal = EpisodeSettings.paper(setting, 1)
    unequal = dataclasses.replace(equal, dirichlet=concentration)
    (before, _), (after, answers) = (
        sample_episodes(PAPER_POOLS, config, count=40) for config in (equal, unequal)
    )
    for role in ("classes", "support", "query"):
        assert torch.equal(getattr(before, role), getattr(after, role))
    assert after.unlabelled.shape == before.unlabelled.shape
    assert all(len(set(row.tolist())) == after.unlabelled.shape[1] for row in after.unlabelled)
    ways = after.n_base + torch.arange(equal.ways)
    sizes = (answers.unlabelled_labels[..., None] == ways).sum(1)  # [E, N]
    assert (sizes.sum(1) == equal.novel_unlabelled).all()
    shares = sizes / equal.novel_unlabelled
    # A Dirichlet share has the variance (1/N)(1 − 1/N) / (N·a + 1).
    expected = 0.2 * 0.8 / (5 * concentration + 1)
    assert 0.6 * expected < shares.var() < 1.5 * expected
    assert unequal.hash != equal.hash
    assert "dirichlet" not in equal.record()


def test_a_class_with_few_pictures_passes_its_share_on() -> None:
    pools = dataclasses.replace(
        PAPER_POOLS, novel={name: own[:46] for name, own in PAPER_POOLS.novel.items()}
    )
    config = EpisodeSettings.paper("semi-fsl", 1, dirichlet=1)
    _, answers = sample_episodes(pools, config, count=20)
    sizes = (answers.unlabelled_labels[..., None] == torch.arange(5)).sum(1)
    assert (sizes == 30).all(), "each has just as many as an equal share"


def test_the_papers_numbers() -> None:
    for shots, a_class in ((1, 30), (5, 50)):
        s2i = EpisodeSettings.paper("s2i", shots)
        assert (s2i.ways, s2i.queries, s2i.base_queries) == (5, 15, 75)
        assert (s2i.novel_unlabelled, s2i.base_unlabelled) == (5 * a_class, 5 * a_class)
        semi = EpisodeSettings.paper("semi-fsl", shots)
        assert (semi.novel_unlabelled, semi.base_unlabelled) == (5 * a_class, 0)
        assert semi.base_queries == 0
    episodes, _ = sample_episodes(PAPER_POOLS, EpisodeSettings.paper("s2i-transductive"), count=2)
    assert episodes.query.shape == episodes.unlabelled.shape == (2, 150)


@st.composite
def pools_and_settings(draw: st.DrawFn) -> tuple[Pools, EpisodeSettings]:
    setting = draw(st.sampled_from(list(SETTINGS)))
    kind = SETTINGS[setting]
    changes: dict[str, Any] = {
        "ways": draw(st.integers(1, 4)),
        "shots": draw(st.integers(1, 4)),
        "queries": draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 2**63)),
        "unlabelled": draw(st.integers(0, 40)) if kind.unlabelled == "extra" else 0,
    }
    if kind.incremental:
        changes |= {
            "base_queries": draw(st.integers(0, 12)),
            "novel_share": draw(st.floats(0, 1)),
        }
    if kind.unlabelled == "extra":
        changes["distractors"] = draw(st.integers(0, 2))
        changes["distractor_pictures"] = draw(st.integers(1, 8))
    config = EpisodeSettings.paper(setting, **changes)
    n_classes = config.ways + config.distractors + draw(st.integers(0, 3))
    least = max(
        config.shots + config.queries + config.unlabelled_of_way(0), config.distractor_pictures
    )
    novel = [least + draw(st.integers(0, 5)) for _ in range(n_classes)]
    base = [draw(st.integers(1, 9)) for _ in range(draw(st.integers(1, 6)))]
    base[0] += config.base_queries + config.base_unlabelled
    return made_pools(novel, base, scatter=draw(st.integers(1, 3))), config


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pools_and_settings(), st.integers(0, 10**6))
def test_any_settings_keep_the_promises(case: tuple[Pools, EpisodeSettings], first: int) -> None:
    pools, config = case
    check(pools, config, *sample_episodes(pools, config, count=3, first=first))


def test_episodes_are_the_same_bytes_everywhere() -> None:
    """Golden: other hashes here mean that every published result has other episodes."""
    found = {}
    for setting in SETTINGS:
        for shots in (1, 5):
            episodes, answers = sample_episodes(
                PAPER_POOLS, EpisodeSettings.paper(setting, shots), count=20
            )
            found[setting, shots] = f"{episodes.hash} {answers.hash}"
    assert found == GOLDEN


GOLDEN = {
    ("fsl", 1): "0d04a46593737ede 4705489d7fc7c23a",
    ("fsl", 5): "42474d326a134614 4705489d7fc7c23a",
    ("transductive-fsl", 1): "d76e4a340116b5c3 52a2b680e9c1b852",
    ("transductive-fsl", 5): "8ca64901803d57fe 52a2b680e9c1b852",
    ("semi-fsl", 1): "46e7cf38a391c1e9 61d28eb4c3492ecb",
    ("semi-fsl", 5): "1e749420c56efc6e 36d35f16b7f08ef5",
    ("incremental", 1): "b0ca10c75732fccb 7517436edce586b5",
    ("incremental", 5): "74cda46c92a0258e 7517436edce586b5",
    ("s2i-transductive", 1): "f12257af4c75481e bd86204b50bc4d4a",
    ("s2i-transductive", 5): "4c00ca4587593438 bd86204b50bc4d4a",
    ("s2i", 1): "dfa9b99d6e39ac5c 35cf41d898e28f4a",
    ("s2i", 5): "b1a3e112cea3c25c a56a9d24b4bb9935",
}


def _hash_of(first: int) -> list[list[int]]:
    config = EpisodeSettings.paper("s2i", 5)
    episodes, _ = sample_episodes(PAPER_POOLS, config, count=10, first=first)
    rows: list[list[int]] = torch.cat(
        [episodes.support, episodes.query, episodes.unlabelled], 1
    ).tolist()
    return rows


def test_any_number_of_processes_draws_the_same_episodes() -> None:
    whole, _ = sample_episodes(PAPER_POOLS, EpisodeSettings.paper("s2i", 5), count=40)
    rows = torch.cat([whole.support, whole.query, whole.unlabelled], 1).tolist()
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        parts = workers.map(_hash_of, [0, 10, 20, 30])
    assert [row for part in parts for row in part] == rows


def test_settings_share_their_draws() -> None:
    """Episode e has the same classes and queries in all settings; 1-shot is part of 5-shot."""

    def draw(setting: str, shots: int, **changes: Any) -> Episodes:
        config = EpisodeSettings.paper(setting, shots, **changes)
        return sample_episodes(PAPER_POOLS, config, count=5)[0]

    one, five = draw("s2i", 1), draw("s2i", 5)
    for other in (
        five,
        draw("incremental", 1),
        draw("s2i-transductive", 5),
        draw("s2i", 1, novel_share=0.1),
        draw("s2i", 1, distractors=5),
    ):
        assert torch.equal(one.classes, other.classes)
        assert torch.equal(one.query, other.query)
    plain = draw("fsl", 1)
    assert torch.equal(one.classes, plain.classes)
    for e in range(5):
        assert set(plain.query[e].tolist()) < set(one.query[e].tolist())
        assert set(one.support[e].tolist()) < set(five.support[e].tolist())


def test_draws_are_uniform_over_classes_and_pictures() -> None:
    pools = made_pools(novel=[40] * 10, base=[20] * 5)
    config = EpisodeSettings.paper("s2i", 1, unlabelled=40, base_queries=25)
    episodes, _ = sample_episodes(pools, config, count=2000)
    classes = torch.bincount(episodes.classes.flatten())[5:].double()
    assert ((classes - 1000) ** 2 / 1000).sum() < 27.9  # chi-square, 9 degrees, p = 0.001
    base = episodes.query[episodes.query < 100]
    counts = torch.bincount(base, minlength=100).double()
    assert ((counts - 500) ** 2 / 500).sum() < 148.2  # 99 degrees, p = 0.001
    support = torch.bincount(episodes.support.flatten(), minlength=500)[100:].double()
    assert ((support - 25) ** 2 / 25).sum() < 490  # 399 degrees, p = 0.001


def test_the_order_of_queries_and_of_u_tells_nothing() -> None:
    """Were novel pictures first, or classes in blocks, the place of a picture would be a hint."""
    episodes, answers = sample_episodes(PAPER_POOLS, EpisodeSettings.paper("s2i", 1), count=400)
    for labels in (answers.query_labels, answers.unlabelled_labels):
        count = labels.shape[1]
        places = torch.arange(count, dtype=torch.float64).expand_as(labels)
        for group in (labels < 64, labels == 64, labels == 68):
            mean = places[group].mean()
            sigma = count / 12**0.5 / group.sum() ** 0.5
            assert abs(mean - (count - 1) / 2) < 4 * sigma
        together = (labels[:, 1:] == labels[:, :-1]).double().mean()
        novel = (labels >= 64).double().mean()
        assert together < 1.2 * novel**2 / 5 + 0.01, "equal labels stand side by side"
    # The pictures themselves are shuffled, not sorted by index, which follows the class.
    rising = (episodes.query[:, 1:] > episodes.query[:, :-1]).double().mean()
    assert 0.48 < rising < 0.52


def test_too_few_pictures_name_the_class_and_the_numbers() -> None:
    pools = made_pools(novel=[60, 60, 45, 60, 60, 60], base=[100] * 4)
    with pytest.raises(FewgraftError, match=r"'class 6' has 45 pictures in novel/test; 46 are"):
        sample_episodes(pools, EpisodeSettings.paper("s2i", 1), count=1)
    with pytest.raises(FewgraftError, match="novel/test has 6 classes; 5 ways and 2 distractors"):
        sample_episodes(pools, EpisodeSettings.paper("semi-fsl", 1, distractors=2), count=1)
    pools = made_pools(novel=[60] * 6, base=[50] * 4)
    with pytest.raises(FewgraftError, match=r"base/test has 200 pictures; 225 are needed \(75 que"):
        sample_episodes(pools, EpisodeSettings.paper("s2i", 1), count=1)
    sample_episodes(pools, EpisodeSettings.paper("semi-fsl", 1), count=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"setting": "s2y"}, "Did you mean 's2i'"),
        ({"split": "tset"}, "tset"),
        ({"ways": 0}, "ways"),
        ({"shots": 0}, "shots"),
        ({"queries": 0}, "queries"),
        ({"unlabelled": -1}, "unlabelled"),
        ({"novel_share": 1.5}, "share"),
        ({"setting": "incremental", "distractors": 1}, "distractors"),
        ({"setting": "s2i-transductive", "distractors": 1}, "distractors"),
        ({"setting": "fsl", "base_queries": 75}, "base"),
        ({"setting": "semi-fsl", "novel_share": 0.5}, "base"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FewgraftError, match=message):
        EpisodeSettings.paper(**changes)


def test_settings_are_frozen_hashed_and_printable() -> None:
    config = EpisodeSettings.paper("s2i", 5, distractors=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.shots = 1  # type: ignore[misc]
    assert config.hash == EpisodeSettings.paper("s2i", 5, distractors=2).hash
    assert config.hash != EpisodeSettings.paper("s2i", 5).hash
    assert str(config) == (
        "s2i (test): 5-way 5-shot, Q 5×15 novel + 75 base, U 250 novel + 250 base + 2×50 of other "
        f"classes, seed 0 [{config.hash}]"
    )


def test_the_task_object_holds_no_answers() -> None:
    names = {field.name for field in dataclasses.fields(Episodes)}
    assert not names & {field.name for field in dataclasses.fields(QueryLabels)}


@pytest.mark.parametrize("split", ["test", "val", "train"])
def test_icons_have_enough_for_every_setting(icons: ImageStore, split: str) -> None:
    pools = Pools.of(icons, split)
    for setting in SETTINGS:
        for shots in (1, 5):
            config = EpisodeSettings.paper(setting, shots, split=split)
            check(pools, config, *sample_episodes(pools, config, count=2))


def test_the_pools_of_a_store_are_its_parts(icons: ImageStore) -> None:
    pools = Pools.of(icons, "val")
    assert set(icons.parts[pools.base]) == {1}
    for label, pictures in pools.novel.items():
        assert set(icons.parts[pictures]) == {4}
        assert set(icons.labels[pictures]) == {label}
    assert pools.n_base == len(icons.base_classes)


def test_an_episode_that_rehearses_does_without_its_classes_as_base_classes() -> None:
    plain = made_pools(novel=[60] * 6, base=[90] * 12)
    by_class = {c: plain.base[plain.base_labels == c] for c in range(12)}
    pools = dataclasses.replace(plain, novel=by_class, rehearsal=True)
    config = EpisodeSettings.paper("s2i", 5, split="train")
    episodes, answers = sample_episodes(pools, config, count=30)
    for e in range(30):
        chosen = set(episodes.classes[e].tolist())
        query, hidden = answers.query_labels[e], answers.unlabelled_labels[e]
        for labels, n_base in ((query, 75), (hidden, 250)):
            base = labels[labels < 12]
            assert len(base) == n_base
            assert not chosen & set(base.tolist())
        everything = torch.cat([episodes.support[e], episodes.query[e], episodes.unlabelled[e]])
        assert len(set(everything.tolist())) == len(everything)
        shown = torch.from_numpy(plain.base_labels)[episodes.support[e]]
        ways = episodes.support_labels[e] - 12
        assert torch.equal(shown, episodes.classes[e][ways])
    few = dataclasses.replace(pools, base=plain.base[:700], base_labels=plain.base_labels[:700])
    with pytest.raises(FewgraftError, match=r"base/train has 250 pictures; 325 are needed"):
        sample_episodes(few, config, count=1)


def test_no_episodes_at_all() -> None:
    episodes, _ = sample_episodes(PAPER_POOLS, EpisodeSettings.paper("s2i"), count=0)
    assert len(episodes) == 0
