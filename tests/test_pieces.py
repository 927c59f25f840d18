"""What methods learn: trained, resumed, saved, found, and refused where it does not fit."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import fewgraft
from campaign.material import RECIPE, make_colours
from fewgraft.base_pictures import KEPT
from fewgraft.bench.results import Results
from fewgraft.bench.rows import run
from fewgraft.bench.runner import Bench, Job
from fewgraft.cli import app
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import feature_bank
from fewgraft.methods.base import Method, NovelWeights, Task
from fewgraft.methods.incremental.lwof import LwoF
from fewgraft.methods.trained import learnt_block
from fewgraft.model import embed_all, load_model
from fewgraft.network import Network
from fewgraft.pieces import load_pieces, save_pieces
from fewgraft.prototypes import directions, prototypes
from fewgraft.split_features import SplitFeatures
from fewgraft.training.fake_novel import FakeNovel, episode_numbers
from fewgraft.training.loop import learning_rate
from fewgraft.training.phase import Shard
from fewgraft.training.pieces import LearnPieces
from fewgraft.training.recipe import Optimisation, Recipe, load_recipe
from fewgraft.training.run import train

LEARNING = """
[learning.lwof]
steps = 6
episodes = 2
shots = [1, 2]
ways = 2
queries = 2
base_queries = 4
validate_every = 2
optimisation = { lr = 0.1, decays = "all" }

[learning.xtarnet-block]
steps = 4
episodes = 2
shots = [1]
ways = 2
queries = 2
base_queries = 4
novel = "rotated"
validate_every = 2
optimisation = { kind = "adam", lr = 1e-3, weight_decay = 0 }

[learning.attractor]
steps = 4
episodes = 2
shots = [1]
ways = 2
queries = 2
base_queries = 4
validate_every = 2
optimisation = { kind = "adam", lr = 0.01, weight_decay = 0, schedule = "constant" }

[learning.completion]
steps = 2
episodes = 2
shots = [1]
ways = 2
queries = 3
unlabelled = 0
validate_every = 1
optimisation = { kind = "adam", lr = 0.01, weight_decay = 0 }

[learning.dpgn]
steps = 2
episodes = 2
shots = [1]
ways = 2
queries = 3
unlabelled = 6
dropout = 0.2
validate_every = 1
optimisation = { kind = "adam", lr = 0.01, weight_decay = 0 }

[learning.tpn-sigma]
steps = 2
episodes = 2
shots = [1]
ways = 2
queries = 3
unlabelled = 6
dropout = 0.2
validate_every = 1
optimisation = { kind = "adam", lr = 0.01, weight_decay = 0 }
"""


@dataclasses.dataclass(frozen=True)
class Trained:
    store: ImageStore
    recipe: Recipe
    recipe_path: Path
    run: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("pieces")
    store = make_colours(root / "pictures", root / "home" / "data")
    (root / "small.toml").write_text(RECIPE + LEARNING)
    recipe = load_recipe(str(root / "small.toml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWGRAFT_HOME", str(root / "home"))
        train(recipe, store, root / "run", ["pre-trained"])
        train(recipe, store, root / "run", ["lwof", "attractor", "xtarnet-block"])
    return Trained(store, recipe, root / "small.toml", root / "run")


@pytest.fixture(autouse=True)
def _home(trained: Trained, _own_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWGRAFT_HOME", str(trained.run.parent / "home"))


def a_job(models: Path, shots: int = 1, method: str = "lwof") -> Job:
    changes = {"ways": 2, "queries": 3, "base_queries": 6}
    settings = EpisodeSettings.paper("incremental", shots, split="val", **changes)
    return Job("small", "colours", method, {}, settings, 4, models)


def test_pieces_are_saved_with_a_card(trained: Trained) -> None:
    for shots in (1, 2):
        pieces = load_pieces(trained.run, "lwof", shots)
        assert (pieces.card.method, pieces.card.shots) == ("lwof", shots)
        assert pieces.card.settings["steps"] == 6
        assert pieces.card.metrics["val_step"] in (2, 4, 6)
        assert f"val_acc_{shots}" in pieces.card.metrics
    assert not torch.equal(
        pieces.tensors["keys"], load_pieces(trained.run, "lwof", 1).tensors["keys"]
    )
    rows = [json.loads(line) for line in (trained.run / "lwof-1-shot.jsonl").open()]
    assert max(row["step"] for row in rows) == 6


def test_the_model_stays_as_it_is_and_the_pieces_move(trained: Trained) -> None:
    model = load_model(trained.run / "pre-trained")
    phase = LearnPieces(model, trained.store, trained.recipe, "lwof", 1)
    before = phase.result()["weights"].clone()
    assert torch.equal(before, model.weight)
    learnt = load_pieces(trained.run, "lwof", 1).tensors
    assert not torch.equal(learnt["weights"], before)
    assert all(not torch.equal(learnt[name], start) for name, start in phase.result().items())


def test_pieces_stand_on_a_model_whoever_trained_it(trained: Trained, tmp_path: Path) -> None:
    """A model of another recipe, such as a shipped one; again and again."""
    shutil.copytree(trained.run / "pre-trained", tmp_path / "pre-trained")
    changes = {"pretraining": trained.recipe.pretraining.model_copy(update={"steps": 7})}
    other = trained.recipe.model_copy(update=changes)
    for method in ("lwof", "lwof", "attractor"):
        assert f"{method}-1-shot" in train(other, trained.store, tmp_path, [method])
    with pytest.raises(FewgraftError, match=r"pretraining\.steps"):
        train(other, trained.store, tmp_path, ["pre-trained"])


@pytest.mark.parametrize("method", ["lwof", "attractor", "xtarnet-block"])
def test_a_run_that_stopped_ends_in_the_same_bits(
    trained: Trained, method: str, tmp_path: Path
) -> None:
    """A checkpoint of step 3, as an interrupted run leaves it; Adam's memory is kept, too."""
    folder = tmp_path / "run"
    shutil.copytree(trained.run / "pre-trained", folder / "pre-trained")
    from fewgraft.training import loop

    taken = loop._Steps.take

    def stop(self: loop._Steps, step: int) -> tuple[float, float]:
        if step == 3:
            raise KeyboardInterrupt
        return taken(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Steps, "take", stop)
        with pytest.raises(KeyboardInterrupt):
            train(trained.recipe, trained.store, folder, [method])
    assert (folder / f"{method}-1-shot.checkpoint").exists()
    train(trained.recipe, trained.store, folder, [method])
    assert load_pieces(folder, method, 1).hash == load_pieces(trained.run, method, 1).hash


def test_the_loss_is_on_classes_that_the_episode_does_without(trained: Trained) -> None:
    model = load_model(trained.run / "pre-trained")
    phase = LearnPieces(model, trained.store, trained.recipe, "lwof", 1)
    phase.loss(0, Shard())[0].backward()  # type: ignore[no-untyped-call]
    source = FakeNovel(trained.store, "data", 60)
    episodes, labels = source.sample(phase._settings, episode_numbers(0, 2, Shard()))
    absent = source.absent(episodes)
    assert absent is not None
    in_both = set(absent[0].tolist()) & set(absent[1].tolist())
    gradient = dict(phase.learner.named_parameters())["keys"].grad
    assert gradient is not None
    struck = [k for k in range(6) if (gradient[k] == 0).all()]
    assert struck == sorted(in_both)
    for row, classes in zip(labels.tolist(), absent.tolist(), strict=True):
        assert not set(row) & set(classes)


def test_a_second_block_begins_as_the_first_and_moves(trained: Trained) -> None:
    model = load_model(trained.run / "pre-trained")
    phase = LearnPieces(model, trained.store, trained.recipe, "xtarnet-block", 1)
    start = {name: p.clone() for name, p in Network(model, trained.store.pictures).start.items()}
    before = learnt_block(phase.result(), start)
    assert before.keys() == start.keys()
    assert all(torch.equal(before[name], p) for name, p in start.items())
    after = learnt_block(load_pieces(trained.run, "xtarnet-block", 1).tensors, start)
    assert all(not torch.equal(after[name], p) for name, p in start.items())
    for name, p in start.items():
        change = (after[name] - p).flatten(1) if p.ndim > 1 else p[None]
        assert torch.linalg.matrix_rank(change, rtol=1e-3) <= 4
    phase.loss(0, Shard())[0].backward()  # type: ignore[no-untyped-call]
    gradients = [
        p.grad
        for name, p in phase.learner.named_parameters()
        if "block/" in name and not name.endswith("_in")  # times 0 before training
    ]
    assert all(g is not None and g.abs().sum() > 0 for g in gradients)
    assert all(p.grad is None for p in model.parameters()), "the first block stays"


def test_a_second_block_sees_what_the_features_are_of(trained: Trained) -> None:
    """Rotated pictures, too: before training its features are the model's."""
    model = load_model(trained.run / "pre-trained")
    phase = LearnPieces(model, trained.store, trained.recipe, "xtarnet-block", 1)
    episodes, _ = phase._fake_novel.sample(phase._settings, [0, 1])
    assert (episodes.support >= len(trained.store)).all()
    task = phase._train.task(episodes, slice(None), phase._method)
    queries = phase._train.queries(episodes, slice(None))
    assert task.pictures is not None
    assert queries.pictures is not None
    for pictures, features in (
        (task.pictures.support, task.support),
        (queries.pictures, queries.features),
    ):
        found = task.pictures.network.features(pictures)
        torch.testing.assert_close(found, features, rtol=1e-4, atol=1e-5)


def test_a_second_block_answers_beside_the_model(trained: Trained) -> None:
    settings = a_job(trained.run).episode_settings
    found = fewgraft.evaluate(
        "xtarnet-block", trained.store, settings, episodes=4, model=trained.run
    )
    assert torch.isfinite(found.scores.acc).all()


def test_a_row_depends_on_what_was_learnt(trained: Trained, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(trained.run, models)
    job, results = a_job(models), Results(tmp_path / "results")
    [(row, computed)] = list(run([job], results, Bench()))
    assert computed
    assert row.learnt == load_pieces(models, "lwof", 1).hash
    [(_, computed)] = list(run([job], results, Bench()))
    assert not computed
    pieces = load_pieces(models, "lwof", 1)
    changed = {**pieces.tensors, "average": pieces.tensors["average"] + 0.5}
    save_pieces(dataclasses.replace(pieces, tensors=changed), models)
    [(other, computed)] = list(run([job], results, Bench()))
    assert computed
    assert other.id != row.id
    plain = Bench().identity(a_job(models, method="nearest-prototype"))
    assert "learnt" not in plain


def test_evaluate_finds_pieces_beside_the_model(trained: Trained) -> None:
    settings = a_job(trained.run).episode_settings
    named = fewgraft.evaluate("lwof", trained.store, settings, episodes=4, model=trained.run)
    folder = trained.run / "pre-trained"
    given = fewgraft.evaluate(LwoF(), trained.store, settings, episodes=4, model=folder)
    assert torch.equal(named.scores.acc, given.scores.acc)
    with pytest.raises(FewgraftError, match="folder of a training run"):
        fewgraft.evaluate("lwof", trained.store, settings, episodes=4, model=load_model(folder))


def test_pieces_that_do_not_fit_are_refused(trained: Trained, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(trained.run, models)
    with pytest.raises(FewgraftError, match="nothing that 'lwof' has learnt for 5 shots") as error:
        Bench().identity(a_job(models, shots=5))
    assert "fewgraft train RECIPE --only lwof" in error.value.hint
    pieces = load_pieces(models, "lwof", 1)
    card = pieces.card.model_copy(update={"weights": "0" * 16})
    save_pieces(dataclasses.replace(pieces, card=card), models)
    with pytest.raises(FewgraftError, match="learnt on another model"):
        Bench().identity(a_job(models))
    other = dataclasses.replace(a_job(models, method="attractor"), hyper={"gradient": "exact"})
    with pytest.raises(FewgraftError, match="learnt with gradient = recurrent, not exact"):
        Bench().identity(other)
    path = models / "lwof-2-shot" / "pieces.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "keys": tensors["keys"][:3]}, path)
    with pytest.raises(FewgraftError, match="'keys' is"):
        Bench().identity(a_job(models, shots=2))


def test_the_command_names_what_cannot_be_trained(trained: Trained, tmp_path: Path) -> None:
    recipe, out = str(trained.recipe_path), str(tmp_path / "out")
    found = CliRunner().invoke(app, ["train", recipe, "--only", "lwoff", "--out", out])
    assert isinstance(found.exception, FewgraftError)
    assert "methods, lwof, xtarnet-block" in found.exception.hint
    with pytest.raises(FewgraftError, match="nothing to learn"):
        train(trained.recipe, trained.store, tmp_path / "out", ["meta-inc-baseline"])
    bare = trained.recipe.model_copy(update={"learning": {}})
    with pytest.raises(FewgraftError, match="does not say how 'lwof' learns"):
        train(bare, trained.store, tmp_path / "out", ["lwof"])
    with pytest.raises(FewgraftError, match="no model 'pre-trained' to learn on"):
        train(trained.recipe, trained.store, tmp_path / "out", ["lwof"])


def test_rates_that_fall() -> None:
    config = Optimisation(lr=2.0, schedule="falls", falls=((0.5, 0.1), (0.75, 0.01)))
    rates = [learning_rate(config, step, 8) for step in range(8)]
    assert rates == pytest.approx([2, 2, 2, 2, 0.2, 0.2, 0.02, 0.02])


def test_rotated_pictures_have_features_of_their_own(trained: Trained) -> None:
    model, store = load_model(trained.run / "pre-trained"), trained.store
    n, pictures = len(store), np.array([3, 7, 9])
    bank = feature_bank(model, store, np.concatenate([pictures, pictures + 2 * n]))
    turned = np.rot90(store.pictures[pictures], 2, (1, 2)).copy()
    expected = directions(embed_all(model, turned))
    found = bank[torch.from_numpy(pictures + 2 * n)]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["completion", "dpgn", "tpn-sigma"])
def test_methods_without_base_classes_learn_with_u(
    trained: Trained, name: str, tmp_path: Path
) -> None:
    """They need a model of Algorithm 1: the pre-trained one stands in for it."""
    shutil.copytree(trained.run / "pre-trained", tmp_path / "algorithm-1")
    phase = LearnPieces(
        load_model(tmp_path / "algorithm-1"), trained.store, trained.recipe, name, 1
    )
    episodes, labels = phase._fake_novel.sample(phase._settings, [0, 1])
    assert episodes.n_base == 0
    assert episodes.unlabelled.shape[1] == trained.recipe.learning[name].unlabelled
    assert set(labels.flatten().tolist()) == {0, 1}
    metrics = train(trained.recipe, trained.store, tmp_path, [name])[f"{name}-1-shot"]
    assert set(metrics) == {"val_step", "val_acc_1", "val_n_all_1", "val_n_n_1", "val_score"}
    changes = {"ways": 2, "queries": 3, "unlabelled": 6}
    for method, setting, more in (
        (name, "semi-fsl", {}),
        (f"+{name}", "s2i", {"base_queries": 6}),
    ):
        settings = EpisodeSettings.paper(setting, 1, split="val", **changes, **more)
        job = Job("small", "colours", method, {}, settings, 4, tmp_path)
        [(row, _)] = list(run([job], Results(tmp_path / "results"), Bench()))
        assert row.learnt == load_pieces(tmp_path, name, 1).hash


def test_what_is_searched_may_be_chosen_after_learning(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.run / "pre-trained", tmp_path / "algorithm-1")
    train(trained.recipe, trained.store, tmp_path, ["completion"])
    settings = EpisodeSettings.paper("semi-fsl", 1, split="val", ways=2, queries=3, unlabelled=6)
    for hyper, fits in (({"scale": 5.0}, True), ({"neighbours": 3}, False)):
        job = Job("small", "colours", "completion", hyper, settings, 4, tmp_path)
        if fits:
            Bench().identity(job)
            continue
        with pytest.raises(FewgraftError, match="learnt with neighbours = 10, not 3"):
            Bench().identity(job)


@dataclasses.dataclass(frozen=True)
class Remembering(Method):
    """Prototypes, moved away from the mean of base/train."""

    uses_base_features = True

    def fit(self, task: Task) -> NovelWeights:
        assert task.base_features is not None
        novel = prototypes(task.support, task.labels, task.ways)
        return NovelWeights(novel - task.base_features.mean((0, 1)), task.gamma)


def test_base_features_come_with_the_task(trained: Trained) -> None:
    model, store = load_model(trained.run / "pre-trained"), trained.store
    features = SplitFeatures(model, store, "val")
    settings = a_job(trained.run).episode_settings
    train_pools = store.by_class(Part.BASE_TRAIN)
    kept = features.base_features
    assert kept.shape == (6, min(KEPT, *map(len, train_pools.values())), model.card.width)
    for label, pool in train_pools.items():
        everything = directions(embed_all(model, store.pictures[pool]))
        nearest = (kept[label] @ everything.T).amax(1)
        torch.testing.assert_close(nearest, torch.ones(len(nearest)))
    found = fewgraft.evaluate(
        Remembering(), store, settings, episodes=4, model=trained.run / "pre-trained"
    )
    assert torch.isfinite(found.scores.acc).all()


def test_base_features_of_plain_arrays() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 30)
    base = np.where(np.arange(360) % 30 < 10, "base/train", "base/test")
    parts = np.where(labels < 6, base, "novel/test")
    features = rng.normal(size=(12, 8))[labels] + rng.normal(size=(360, 8))
    data = fewgraft.FeatureSet(features, labels, parts)
    settings = EpisodeSettings.paper("incremental", 1, queries=5, base_queries=10)
    assert len(fewgraft.evaluate(Remembering(), data, settings, episodes=4)) == 4
    kept = data.of_split("test", torch.device("cpu")).base_features
    assert kept.shape == (6, 10, 8)
    for label in range(6):
        of_class = data.features[(labels == label) & (parts == "base/train")]
        assert all(any(torch.equal(row, other) for other in of_class) for row in kept[label])
    few = fewgraft.FeatureSet(
        features[parts != "base/train"],
        labels[parts != "base/train"],
        parts[parts != "base/train"],
        weights=data.weights,
    )
    with pytest.raises(FewgraftError, match="uses features of base/train"):
        fewgraft.evaluate(Remembering(), few, settings, episodes=4)
    with pytest.raises(FewgraftError, match="needs what it has learnt beside a model"):
        fewgraft.evaluate(LwoF(), data, settings, episodes=4)
