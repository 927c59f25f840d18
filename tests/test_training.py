"""Training: losses against plain loops, resuming to the bit, stopping in time."""

import json
import math
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import noise
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from campaign.material import RECIPE, SPLIT, make_colours
from fewgraft.augment import Augmentation
from fewgraft.data.catalogue import add_data
from fewgraft.data.parts import Part
from fewgraft.data.sources import SourceOptions
from fewgraft.data.splits import published_classes, tiered_base_pictures
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.model import CosineModel, load_model, new_model
from fewgraft.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from fewgraft.training.distil import Distil
from fewgraft.training.log import RunLog
from fewgraft.training.loop import learning_rate, make_optimiser
from fewgraft.training.metatrain import Metatrain
from fewgraft.training.phase import Shard
from fewgraft.training.pretrain import Pretrain
from fewgraft.training.recipe import (
    Distillation,
    Optimisation,
    Recipe,
    Rotation,
    load_recipe,
    recipe_names,
)
from fewgraft.training.report import draw_curves, summary
from fewgraft.training.run import train
from fewgraft.training.templates import template


@pytest.fixture
def colours(tmp_path: Path) -> ImageStore:
    return make_colours(tmp_path / "pictures", tmp_path / "home" / "data")


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return load_recipe(str(path))


def small_model(store: ImageStore) -> CosineModel:
    return new_model("conv4", store.base_classes, 16, 3, (0.5,) * 3, (0.25,) * 3)


# --- recipes ---


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_package_is_valid(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.hash == load_recipe(name).hash
    assert recipe.hash != load_recipe(name, {"seed": "7"}).hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pretraining.stepz": "3"}, "Did you mean 'steps'"),
        ({"pretraining.optimisation.learning_rate": "1"}, "no setting 'pretraining.optimisation"),
        ({"bakbone": "conv4"}, "Did you mean 'backbone'"),
        ({"backbone": "conv5"}, "Did you mean 'conv4'"),
        ({"pretraining.steps": "-1"}, "pretraining.steps"),
        ({"pretraining.steps": "many"}, "pretraining.steps"),
        ({"metatraining.moves": "nothing"}, "metatraining.moves"),
        ({"name.deeper": "1"}, "does not name a setting"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(FewgraftError, match=message):
        load_recipe("icons", change)


def test_recipes_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FewgraftError, match="Did you mean 'icons'"):
        load_recipe("icon")
    (tmp_path / "bad.toml").write_text("name = [")
    with pytest.raises(FewgraftError, match="not a readable recipe"):
        load_recipe(str(tmp_path / "bad.toml"))


def test_the_rate_warms_up_and_falls_to_nothing() -> None:
    config = Optimisation(lr=0.2, warm_up=0.1)
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[:3] == pytest.approx([0.2 / 11, 0.4 / 11, 0.6 / 11])
    assert max(rates) == rates[10] == pytest.approx(0.2)
    assert rates[55] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[-1] < 1e-3
    constant = Optimisation(lr=0.2, schedule="constant")
    assert {learning_rate(constant, step, 100) for step in range(100)} == {0.2}


# --- losses ---


def test_pretraining_sees_every_picture_once_an_epoch(colours: ImageStore, recipe: Recipe) -> None:
    phase = Pretrain(small_model(colours), colours, recipe)
    steps = len(colours.indices(Part.BASE_TRAIN)) // 16
    first = np.concatenate([phase._chosen(step) for step in range(steps)])
    second = np.concatenate([phase._chosen(step) for step in range(steps, 2 * steps)])
    for epoch in (first, second):
        assert len(set(epoch.tolist())) == len(epoch)
    assert first.tolist() != second.tolist()
    assert phase._chosen(3).tolist() == first[48:64].tolist(), "a step depends on its number alone"


@pytest.mark.numerical
def test_pretraining_loss_is_the_cross_entropy(colours: ImageStore, recipe: Recipe) -> None:
    quiet = recipe.model_copy(
        update={
            "pretraining": recipe.pretraining.model_copy(
                update={"augmentation": type(recipe.pretraining.augmentation)(), "small_share": 0.0}
            )
        }
    )
    model = small_model(colours).eval()
    phase = Pretrain(model, colours, quiet)
    loss, accuracy = phase.loss(5, Shard())
    chosen = phase._chosen(5)
    logits = model(model.prepare(torch.from_numpy(colours.pictures[chosen])))
    terms, right = [], 0
    for row, label in zip(logits.tolist(), colours.labels[chosen].tolist(), strict=True):
        terms.append(math.log(sum(math.exp(v) for v in row)) - row[label])
        right += row.index(max(row)) == label
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    assert accuracy == pytest.approx(right / len(terms))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_pretraining(recipe: Recipe, **changes: object) -> Recipe:
    section = recipe.pretraining.model_copy(update=changes)
    return recipe.model_copy(update={"pretraining": section})


@pytest.mark.numerical
def test_rotated_pictures_come_on_top_and_are_told_by_a_head_of_their_own(
    colours: ImageStore, recipe: Recipe
) -> None:
    quiet = with_pretraining(recipe, augmentation=Augmentation(), small_share=0.0)
    turning = with_pretraining(quiet, rotation=Rotation(share=0.5, weight=2.0))
    model = small_model(colours).eval()
    plain, phase = (Pretrain(model, colours, r) for r in (quiet, turning))
    rng = torch.Generator().manual_seed(0)
    pictures, _ = phase._batch(5, Shard(), rng)
    turned, turns = phase._rotated(pictures, rng)
    assert len(turned) == 8
    assert len(set(turns.tolist())) > 1
    for picture, original, quarters in zip(turned, pictures, turns.tolist(), strict=False):
        expected = np.rot90(original.numpy(), quarters, (1, 2))
        np.testing.assert_array_equal(picture.numpy(), expected)
    with torch.no_grad():
        loss, accuracy = phase.loss(5, Shard())
        upright, same_accuracy = plain.loss(5, Shard())
    extra = (loss - upright).item() / 2
    assert 0.5 < extra < 3, "about the logarithm of four"
    assert accuracy == same_accuracy
    assert {name.split(".")[0] for name, _ in phase.moving()} == {"model", "rotation_head"}


def test_a_run_with_turns_goes_on_where_it_stopped(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    turning = with_pretraining(recipe, rotation=Rotation(), steps=6, validate_every=6)
    train(turning, colours, tmp_path / "whole", ["pre-trained"])
    model = small_model(colours)
    phase = Pretrain(model, colours, turning)
    optimiser = make_optimiser(phase)
    torch.autograd.backward(phase.loss(0, Shard())[0])
    optimiser.step()
    save_checkpoint(tmp_path / "x", Progress("r", 1), phase.learner, optimiser, {})
    other = Pretrain(small_model(colours), colours, turning)
    load_checkpoint(tmp_path / "x", "r", other.learner, make_optimiser(other))
    for a, b in zip(phase.learner.parameters(), other.learner.parameters(), strict=True):
        assert torch.equal(a, b)
    names = load_file(tmp_path / "whole" / "pre-trained" / "model.safetensors")
    assert not any("turn" in name for name in names), "the head is left behind"


def test_the_step_may_be_kept_for_either_group_apart(colours: ImageStore, recipe: Recipe) -> None:
    apart = with_pretraining(recipe, selection="apart")
    figures = Pretrain(small_model(colours).eval(), colours, apart).validate()
    expected = (figures["b_b"] + (figures["n_n_1"] + figures["n_n_2"]) / 2) / 2
    assert figures["score"] == pytest.approx(expected)
    joint = Pretrain(small_model(colours).eval(), colours, recipe).validate()
    assert joint["score"] == pytest.approx((joint["acc_1"] + joint["acc_2"]) / 2)


@pytest.mark.numerical
def test_distillation_weighs_labels_against_the_teachers_answers(
    colours: ImageStore, recipe: Recipe
) -> None:
    config = Distillation(**recipe.pretraining.model_dump(), weight=0.25, temperature=2.0)
    student, teacher = small_model(colours).eval(), small_model(colours).eval()
    with torch.no_grad():
        student.weight.add_(0.5 * torch.randn(student.weight.shape, generator=generator(1)))
    phase = Distil(student, teacher, colours, recipe, config)
    pictures, labels = phase._batch(3, Shard(), generator(2))
    with torch.no_grad():
        logits = student(pictures)
        found = phase._class_loss(logits, labels, pictures).item()
        total = 0.0
        for picture, row, label in zip(pictures, logits.tolist(), labels.tolist(), strict=True):
            both = teacher.embed(torch.stack([picture, picture.flip(2)]))
            mean = (both / both.norm(dim=1, keepdim=True)).mean(0)
            weights = teacher.weight / teacher.weight.norm(dim=1, keepdim=True)
            soft = (teacher.gamma * weights @ (mean / mean.norm()) / 2).softmax(0).tolist()
            hard = math.log(sum(math.exp(v) for v in row)) - row[label]
            scale = math.log(sum(math.exp(v / 2) for v in row))
            total += 0.75 * hard + 0.25 * sum(
                p * (scale - v / 2) for p, v in zip(soft, row, strict=True)
            )
    assert found == pytest.approx(total / len(labels), rel=1e-4)


@pytest.mark.numerical
def test_distillation_ends_between_teacher_and_student(colours: ImageStore, recipe: Recipe) -> None:
    config = Distillation(**recipe.pretraining.model_dump(), teacher_share=0.25)
    teacher, student = small_model(colours), small_model(colours)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    phase = Distil(student, teacher, colours, recipe, config)
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    figures = phase.validate()
    for name, tensor in student.state_dict().items():
        assert torch.equal(tensor, before[name]), "validating leaves the student where it is"
    result = phase.result()
    theirs = teacher.state_dict()["weight"]
    torch.testing.assert_close(result["weight"], 0.75 * before["weight"] + 0.25 * theirs)
    student.load_state_dict(result)
    assert Pretrain.validate(phase) == figures, "what is validated is what comes out"


def test_a_run_with_distillation_teaches_itself(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    short = recipe.pretraining.model_copy(update={"steps": 4, "validate_every": 4})
    config = Distillation(**short.model_dump())
    twice = recipe.model_copy(update={"pretraining": short, "distillation": config})
    metrics = train(twice, colours, tmp_path / "run", ["pre-trained"])
    assert set(metrics) == {"teacher", "pre-trained"}
    first, second = (load_model(tmp_path / "run" / name) for name in metrics)
    assert (first.card.stage, second.card.stage) == ("teacher", "pre-trained")
    assert not torch.equal(first.weight, second.weight)
    assert (tmp_path / "run" / "distillation.jsonl").exists()


def plain_episode_loss(
    phase: Metatrain, store: ImageStore, model: CosineModel, step: int, refines: bool
) -> float:
    """The loop body of the paper's listings, one episode and one query at a time.

    The rows of W_b that belong to the episode's classes are overwritten by the prototypes, and the
    loss is N_b-way with the original labels.
    """
    episodes, answers = phase._sample(step, Shard())
    losses: list[float] = []

    def features(indices: Tensor) -> Tensor:
        pixels = torch.from_numpy(store.pictures[indices.numpy()])
        return torch.nn.functional.normalize(model.embed(model.prepare(pixels)), dim=-1)

    base = torch.nn.functional.normalize(model.weight, dim=-1)
    for e in range(len(episodes)):
        classes = episodes.classes[e].tolist()
        support, query = features(episodes.support[e]), features(episodes.query[e])
        weights = base.clone()
        ways = episodes.support_labels[e] - episodes.n_base
        for way, label in enumerate(classes):
            mean = support[ways == way].mean(0)
            weights[label] = mean / mean.norm()
        if refines:
            unlabelled = features(episodes.unlabelled[e])
            belief = (model.gamma * unlabelled @ weights.T).softmax(-1)
            for way, label in enumerate(classes):
                own = support[ways == way]
                total = (belief[:, label, None] * unlabelled).sum(0) + own.sum(0)
                mean = total / (belief[:, label].sum() + len(own))
                weights[label] = mean / mean.norm()
        logits = model.gamma * query @ weights.T
        for row, label in zip(logits, answers[e].tolist(), strict=True):
            original = label if label < episodes.n_base else classes[label - episodes.n_base]
            losses.append((row.logsumexp(0) - row[original]).item())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("algorithm", [1, 2])
@pytest.mark.parametrize("moves", ["all", "last-block"])
@pytest.mark.numerical
def test_meta_training_is_the_papers_loop_body(
    colours: ImageStore, recipe: Recipe, algorithm: int, moves: str
) -> None:
    quiet = recipe.metatraining.model_copy(
        update={"augmentation": type(recipe.metatraining.augmentation)(), "moves": moves}
    )
    model = small_model(colours).eval()
    assert colours.rehearses_on_base
    phase = Metatrain(
        model,
        colours,
        recipe.model_copy(update={"metatraining": quiet}),
        algorithm,  # type: ignore[arg-type]
    )
    for step in (0, 1):
        loss, _ = phase.loss(step, Shard())
        with torch.no_grad():
            expected = plain_episode_loss(phase, colours, model, step, refines=algorithm == 2)
        assert loss.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.numerical
def test_algorithm_2_learns_from_the_unlabelled_set_through_the_pseudo_labels(
    colours: ImageStore, recipe: Recipe
) -> None:
    model = small_model(colours)
    phase = Metatrain(model, colours, recipe, 2)
    phase.set_mode()
    torch.autograd.backward(phase.loss(0, Shard())[0])
    names = {name for name, _ in phase.moving()}
    assert "weight" in names
    assert "gamma" in names
    assert any(name.startswith("backbone.block4") for name in names)
    assert not any(name.startswith("backbone.block1") for name in names)
    for name, parameter in phase.moving():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.numerical
def test_disjoint_training_classes_need_no_overwriting(tmp_path: Path, recipe: Recipe) -> None:
    split = SPLIT.replace('"4", "5"]', '"4"]\n"novel/train" = ["5", "11"]').replace(
        '["11", "12"]', '["12"]'
    )
    store = make_colours(tmp_path / "p", tmp_path / "home" / "data", split)
    assert not store.rehearses_on_base
    model = small_model(store)
    phase = Metatrain(model, store, recipe, 2)
    episodes, answers = phase._sample(0, Shard())
    assert episodes.n_base == 5
    assert set(episodes.classes.flatten().tolist()) <= {5, 6}
    assert answers.max() == 6
    assert torch.isfinite(phase.loss(0, Shard())[0])


@pytest.mark.parametrize("moves", ["all", "last-block"])
@pytest.mark.numerical
def test_rotated_base_classes_can_be_the_novel_ones(
    colours: ImageStore, recipe: Recipe, moves: str
) -> None:
    section = recipe.metatraining.model_copy(
        update={"novel": "rotated", "moves": moves, "augmentation": Augmentation()}
    )
    model = small_model(colours).eval()
    phase = Metatrain(model, colours, recipe.model_copy(update={"metatraining": section}), 2)
    episodes, answers = phase._sample(1, Shard())
    n = len(colours)
    assert (episodes.support >= n).all(), "every novel picture is turned"
    assert int(episodes.classes.min()) >= len(colours.classes)
    base = episodes.query[answers < episodes.n_base]
    assert len(base)
    assert (base < n).all(), "base pictures stand upright"
    features = phase._embedder(episodes.support, 0, 1, Shard())
    for e in range(len(episodes)):
        for place, index in enumerate(episodes.support[e].tolist()):
            turned = np.rot90(colours.pictures[index % n], index // n, (0, 1)).copy()
            with torch.no_grad():
                expected = model.embed(model.prepare(torch.from_numpy(turned)[None]))[0]
            torch.testing.assert_close(features[e, place].detach(), expected, rtol=1e-4, atol=1e-5)
    assert torch.isfinite(phase.loss(1, Shard())[0])


@pytest.mark.parametrize("algorithm", [1, 2])
@pytest.mark.numerical
def test_shares_of_a_step_make_the_whole(
    colours: ImageStore, recipe: Recipe, algorithm: int
) -> None:
    """Two processes with half the episodes each: their mean gradient is that of one process."""
    gradients = []
    for shares in ([Shard()], [Shard(0, 2), Shard(1, 2)]):
        model = small_model(colours)
        phase = Metatrain(model, colours, recipe, algorithm)  # type: ignore[arg-type]
        phase.set_mode()
        for share in shares:
            torch.autograd.backward(phase.loss(0, share)[0] / len(shares))
        gradients.append({n: p.grad.clone() for n, p in phase.moving() if p.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_another_seed_trains_on_other_episodes(colours: ImageStore, recipe: Recipe) -> None:
    drawn = []
    for seed in (0, 1):
        other = recipe.model_copy(update={"seed": seed})
        phase = Metatrain(small_model(colours), colours, other, 2)
        drawn.append([phase._sample(step, Shard())[0].hash for step in range(3)])
    assert len({*drawn[0], *drawn[1]}) == 6


def test_too_many_processes_are_refused(colours: ImageStore, recipe: Recipe) -> None:
    phase = Metatrain(small_model(colours), colours, recipe, 1)
    with pytest.raises(FewgraftError, match="5 processes cannot share 2 episodes"):
        phase.loss(0, Shard(4, 5))


# --- whole runs ---


def test_a_run_learns_and_leaves_three_models(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    metrics = train(recipe, colours, tmp_path / "run")
    assert set(metrics) == {"pre-trained", "algorithm-1", "algorithm-2"}
    first = json.loads((tmp_path / "run" / "pretraining.jsonl").read_text().splitlines()[0])
    assert first["step"] == 8
    assert metrics["pre-trained"]["val_b_b"] > 60, "colours are easy"
    for stage in metrics:
        model = load_model(tmp_path / "run" / stage)
        assert model.card.stage == stage
        assert model.card.classes == colours.base_classes
        assert model.card.data.startswith("colours ")
        assert model.card.metrics["val_step"] in (4, 8, 16, 24)
    before = load_model(tmp_path / "run" / "pre-trained")
    after = load_model(tmp_path / "run" / "algorithm-2")
    assert not torch.equal(before.weight, after.weight)
    block = before.backbone.get_parameter("block1.0.weight")
    assert torch.equal(block, after.backbone.get_parameter("block1.0.weight"))


def test_the_step_that_validated_best_is_kept(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    train(recipe, colours, tmp_path / "run", ["pre-trained"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "pretraining.jsonl").open()]
    scores = {row["step"]: row["val_score"] for row in rows if "val_score" in row}
    kept = load_model(tmp_path / "run" / "pre-trained").card.metrics
    assert scores[int(kept["val_step"])] == max(scores.values())


def test_pictures_of_another_size_are_refused(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(FewgraftError, match="--size 32"):
        train(recipe.model_copy(update={"size": 32}), colours, tmp_path / "run")


def test_a_diverging_run_stops_and_says_what_to_lower(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    wild = recipe.pretraining.model_copy(
        update={"optimisation": Optimisation(lr=1e30, weight_decay=1.0)}
    )
    run = tmp_path / "run"
    with pytest.raises(FewgraftError, match=r"not finite(.|\n)*optimisation\.lr"):
        train(recipe.model_copy(update={"pretraining": wild}), colours, run)
    assert not (run / "pre-trained").exists()


@pytest.mark.numerical
def test_checkpoints_hold_everything(colours: ImageStore, recipe: Recipe, tmp_path: Path) -> None:
    model = small_model(colours)
    phase = Pretrain(model, colours, recipe)
    optimiser = make_optimiser(phase)
    for step in range(3):
        optimiser.zero_grad()
        torch.autograd.backward(phase.loss(step, Shard())[0])
        optimiser.step()
    progress = Progress("run a", step=3, best_step=2, best_score=1.5, history=[{"step": 2.0}])
    path = tmp_path / "x.checkpoint"
    best_weights = {"weight": model.weight.detach().clone()}
    save_checkpoint(path, progress, model, optimiser, best_weights)
    other = small_model(colours)
    again = make_optimiser(Pretrain(other, colours, recipe))
    found, best = load_checkpoint(path, "run a", other, again)
    assert found == progress
    assert torch.equal(best["weight"], model.weight)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(optimiser.state[a]["momentum_buffer"], again.state[b]["momentum_buffer"])
    with pytest.raises(FewgraftError, match="another run"):
        load_checkpoint(path, "run b", other, again)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(FewgraftError, match="not a readable checkpoint"):
        load_checkpoint(path, "run a", other, again)


def test_a_run_ends_with_a_table_and_curves(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    metrics = train(recipe, colours, tmp_path / "run", ["pre-trained", "algorithm-2"])
    table = summary(metrics)
    assert "algorithm-2" in table
    assert "best score" in table
    path = draw_curves(tmp_path / "run")
    assert path
    with Image.open(path) as picture:
        assert picture.width > 500
    assert draw_curves(tmp_path / "nothing") is None


def small_mini(folder: Path) -> None:
    """The five pickles of mini-ImageNet with a few pictures per class."""
    lists = published_classes("mini-imagenet")
    counts = {
        "train_phase_train": (Part.BASE_TRAIN, 5),
        "train_phase_val": (Part.BASE_TRAIN, 1),
        "train_phase_test": (Part.BASE_TRAIN, 1),
        "val": (Part.NOVEL_VAL, 5),
        "test": (Part.NOVEL_TEST, 1),
    }
    for stem, (part, a_class) in counts.items():
        names = lists[part]
        content = {
            "data": noise(0, len(names) * a_class, 84, 84, 3),
            "labels": [label for label in range(len(names)) for _ in range(a_class)],
            "catname2label": {name: label for label, name in enumerate(names)},
        }
        path = folder / f"miniImageNet_category_split_{stem}.pickle"
        path.write_bytes(pickle.dumps(content, protocol=2))


def small_tiered(folder: Path) -> None:
    """Class folders of tiered-ImageNet: a few classes of each part, a few pictures per class."""
    by_part: dict[str, dict[Part, list[str]]] = {}
    for name, part in tiered_base_pictures().items():
        by_part.setdefault(name.split("_")[0], {}).setdefault(part, []).append(name)
    files = []
    lists = published_classes("tiered-imagenet")
    for cls in lists[Part.BASE_TRAIN][:20]:
        for part, count in ((Part.BASE_TRAIN, 3), (Part.BASE_VAL, 1), (Part.BASE_TEST, 1)):
            files += [f"{cls}/{name}" for name in by_part[cls][part][:count]]
    for part in (Part.NOVEL_TRAIN, Part.NOVEL_VAL, Part.NOVEL_TEST):
        files += [f"{cls}/{cls}_{n}.JPEG" for cls in lists[part][:5] for n in range(5)]
    for number, file in enumerate(files):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(number, 84, 84, 3)).save(folder / file)


@pytest.mark.parametrize(
    ("name", "make"), [("mini-imagenet", small_mini), ("tiered-imagenet", small_tiered)]
)
def test_recipes_for_a_gpu_run_a_few_steps_on_small_files(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """The recipe itself with its own backbone, on files of exactly its layout; few steps.

    The pictures become small ones: at their own size the network takes a minute for them.
    """
    (tmp_path / "files").mkdir()
    make(tmp_path / "files")
    assert load_recipe(name).size == 84
    store = add_data(name, tmp_path / "files", options=SourceOptions(size=32))
    few = {"queries": 1, "base_queries": 4, "unlabelled": 10}
    changes = {f"metatraining.{key}": str(value) for key, value in few.items()}
    changes |= {f"validation.{key}": str(value) for key, value in few.items()}
    changes |= {
        "size": "32",
        "pretraining.steps": "1",
        "pretraining.batch": "4",
        "metatraining.steps": "1",
        "metatraining.episodes": "1",
        "metatraining.shots": "[1]",
        "validation.shots": "[1]",
        "validation.episodes": "2",
    }
    metrics = train(load_recipe(name, changes), store, tmp_path / "run")
    assert set(metrics) == {"pre-trained", "algorithm-1", "algorithm-2"}


def test_the_log_drops_what_lies_beyond_the_resumed_step(tmp_path: Path) -> None:
    log = RunLog(tmp_path, "phase", 0)
    for step in (1, 2, 3, 4):
        log.write(step, loss=float(step))
    with (tmp_path / "phase.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # killed in the middle of a line
    RunLog(tmp_path, "phase", 2).write(3, loss=30.0)
    rows = [json.loads(line) for line in (tmp_path / "phase.jsonl").open()]
    assert [row["loss"] for row in rows] == [1, 2, 30]


# --- real processes ---


def train_command(recipe: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fewgraft", "train", str(recipe), "--out", str(out), *more]


def weights(run: Path) -> dict[str, dict[str, Tensor]]:
    stages = ("pre-trained", "algorithm-1", "algorithm-2")
    return {stage: load_file(run / stage / "model.safetensors") for stage in stages}


def same_weights(a: Path, b: Path) -> bool:
    x, y = weights(a), weights(b)
    return all(torch.equal(x[stage][name], y[stage][name]) for stage in x for name in x[stage])


def written_last(folder: Path) -> int:
    """When a run last wrote its log or a checkpoint."""
    files = [*folder.glob("*.jsonl"), *folder.glob("*.checkpoint")]
    return max((file.stat().st_mtime_ns for file in files), default=0)


@pytest.mark.parametrize(
    "signs",
    [
        (signal.SIGKILL, signal.SIGINT),
        pytest.param((signal.SIGKILL,) * 20, marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_a_killed_run_resumes_to_the_same_bits(
    colours: ImageStore, tmp_path: Path, signs: Sequence[signal.Signals]
) -> None:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.replace("steps = 24", "steps = 120").replace("steps = 8", "steps = 30"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = train_command(path, tmp_path / "whole")
    subprocess.run(command, check=True, env=environment, capture_output=True)
    rng, cut = random.Random(len(signs)), tmp_path / "cut"
    command = train_command(path, cut, "--resume")
    ended_early = 0
    for sign in signs:
        before = written_last(cut)
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while written_last(cut) == before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.08))  # a few steps, or in the middle of a write
        process.send_signal(sign)
        ended_early += process.wait() != 0
    assert ended_early >= max(1, len(signs) // 2), "too few kills came before the end"
    subprocess.run(command, check=True, env=environment, capture_output=True)
    assert same_weights(tmp_path / "whole", cut)
    for name in ("pretraining", "algorithm-1", "algorithm-2"):
        logs = [(run / f"{name}.jsonl").read_text() for run in (tmp_path / "whole", cut)]
        assert logs[0] == logs[1]


def test_a_second_run_needs_a_word(colours: ImageStore, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "something").write_text("")
    result = subprocess.run(
        train_command(path, tmp_path / "run"), capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "--resume" in result.stderr


def test_a_run_per_seed(colours: ImageStore, tmp_path: Path) -> None:
    path, runs = tmp_path / "small.toml", tmp_path / "runs"
    path.write_text(RECIPE)
    words = ["--stage", "pre-trained", "--seeds", "0,3"]
    subprocess.run(train_command(path, runs, *words), check=True)
    assert sorted(run.name for run in runs.iterdir()) == ["seed-0", "seed-3"]
    cards = [json.loads((run / "run.json").read_text()) for run in sorted(runs.iterdir())]
    assert [card["recipe"]["seed"] for card in cards] == [0, 3]
    assert "seed-0 holds a run already" in refused(train_command(path, runs, *words))
    assert "--set seed" in refused(train_command(path, runs, *words, "--set", "seed=1"))


@pytest.mark.parametrize("kind", ["photos", "drawings"])
def test_a_recipe_to_start_from_fits_the_data(
    colours: ImageStore, tmp_path: Path, kind: str
) -> None:
    text = template(kind, colours)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    recipe = load_recipe(str(path))
    assert recipe.data == colours.manifest.name
    assert recipe.size == colours.pictures.shape[1]
    assert recipe.mirrored == (kind == "photos")
    assert bool(recipe.pretraining.augmentation.thicken) == (kind == "drawings")
    assert (recipe.metatraining.novel == "data") == bool(colours.by_class(Part.NOVEL_TRAIN))
    with pytest.raises(FewgraftError, match="no kind of recipe 'photo'"):
        template("photo", colours)


def test_recipes_to_start_from_by_the_command() -> None:
    words = [sys.executable, "-m", "fewgraft", "train"]
    done = subprocess.run(
        [*words, "--init", "drawings", "--data", "icons"], capture_output=True, check=True
    )
    assert tomllib.loads(done.stdout.decode())["data"] == "icons"
    assert "Name it with --data" in refused([*words, "--init", "photos"])
    assert "there is no recipe" in refused(words)
    assert "--data goes with --init" in refused([*words, "icons", "--data", "icons"])


def refused(command: list[str]) -> str:
    """What a command says that ends with code 2 and in words."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_run_goes_on_with_its_own_settings_only(colours: ImageStore, tmp_path: Path) -> None:
    path, run = tmp_path / "small.toml", tmp_path / "run"
    path.write_text(RECIPE)
    subprocess.run(train_command(path, run, "--stage", "pre-trained"), check=True)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    said = refused(train_command(path, run, "--resume", "--set", "seed=7"))
    assert "seed: 0 then, 7 now" in said
    assert "--out" in said
    (run / "run.json").unlink()  # as runs of older versions are: the finished stage tells it too
    more = ["--set", "metatraining.optimisation.lr=0.5", "--set", "seed=3"]
    said = refused(train_command(path, run, "--resume", "--stage", "algorithm-2", *more))
    assert "metatraining.optimisation.lr: 0.01 then, 0.5 now" in said
    assert "seed: 0 then, 3 now" in said
    shutil.rmtree(run / "pre-trained")  # only the checkpoint is left to tell it
    said = refused(train_command(path, run, "--resume", "--set", "seed=7"))
    assert "pretraining.checkpoint" in said
    kept = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert kept.items() <= before.items(), "a refusal changed the run"
    subprocess.run(train_command(path, run, "--resume", "--stage", "pre-trained"), check=True)


def test_a_run_goes_on_with_its_own_pictures_only(colours: ImageStore, tmp_path: Path) -> None:
    path, run = tmp_path / "small.toml", tmp_path / "run"
    path.write_text(RECIPE)
    subprocess.run(train_command(path, run, "--stage", "pre-trained"), check=True)
    next((tmp_path / "pictures").rglob("*.png")).unlink()
    options = SourceOptions(size=16, split=tmp_path / "split.toml")
    other = add_data("colours", tmp_path / "pictures", options=options)
    said = refused(train_command(path, run, "--resume"))
    old, new = (store.manifest.content[:16] for store in (colours, other))
    assert f"pictures: colours {old} then, colours {new} now" in said


def test_how_models_are_evaluated_may_change(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    train(recipe, colours, tmp_path / "run", ["pre-trained"])
    chosen = {"evaluation": ({"method": "+pr", "hyper": {"steps": 3}},)}
    changed = Recipe.model_validate(recipe.model_dump() | chosen)
    train(changed, colours, tmp_path / "run", ["pre-trained"])


def test_two_runs_never_write_into_one_folder(
    colours: ImageStore, recipe: Recipe, tmp_path: Path
) -> None:
    path, run = tmp_path / "small.toml", tmp_path / "run"
    path.write_text(RECIPE.replace("steps = 24", "steps = 4000"))
    first = subprocess.Popen(train_command(path, run), stderr=subprocess.DEVNULL)
    while first.poll() is None and not list(run.glob("*.checkpoint")):
        time.sleep(0.01)
    assert f"trained already (by process {first.pid})" in refused(
        train_command(path, run, "--resume")
    )
    first.kill()
    first.wait()
    path.write_text(RECIPE)
    assert "pretraining.steps: 4000 then, 24 now" in refused(train_command(path, run, "--resume"))


def test_two_processes_do_the_same_steps_as_one(colours: ImageStore, tmp_path: Path) -> None:
    """`accelerate launch` with two CPU processes, against one process, over whole meta-training."""
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    one, two = tmp_path / "one", tmp_path / "two"
    only = ["--stage", "pre-trained"]
    subprocess.run(
        train_command(path, one, *only), check=True, env=environment, capture_output=True
    )
    two.mkdir()
    (one / "pre-trained").rename(two / "pre-trained")
    (one / "pre-trained").symlink_to(two / "pre-trained")
    for algorithm in ("algorithm-1", "algorithm-2"):
        more = ["--resume", "--stage", algorithm]
        subprocess.run(train_command(path, one, *more), check=True, env=environment)
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes"]
        launch += ["2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        launch += ["--main_process_port", "0"]  # a free one: others may train on this machine
        launch += train_command(path, two, *more)[1:]
        subprocess.run(launch, check=True, env=environment | {"GLOO_SOCKET_IFNAME": "lo"})
        a, b = (load_file(run / algorithm / "model.safetensors") for run in (one, two))
        for name, tensor in a.items():
            torch.testing.assert_close(b[name], tensor, rtol=1e-4, atol=1e-5)
