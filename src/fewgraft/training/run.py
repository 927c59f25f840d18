"""A whole run: from pictures to a pre-trained and two meta-trained models, and to pieces."""

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from fewgraft.base_knowledge import (
    KnowledgeCard,
    has_knowledge,
    knowledge_folder,
    save_knowledge,
)
from fewgraft.base_pictures import base_knowledge
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError, writing
from fewgraft.files import make_folder, replacing_folder
from fewgraft.locks import hold_lock
from fewgraft.methods import method_spec
from fewgraft.model import CosineModel, load_model, new_model, save_model, weights_hash
from fewgraft.network import KeptActivations
from fewgraft.pieces import has_pieces, load_pieces, save_pieces
from fewgraft.training.checkpoint import Progress
from fewgraft.training.distil import Distil
from fewgraft.training.loop import train_phase
from fewgraft.training.metatrain import Metatrain
from fewgraft.training.phase import Phase
from fewgraft.training.pieces import KeptBySplit, LearnPieces, learning_of, trained_method
from fewgraft.training.pretrain import Pretrain
from fewgraft.training.recipe import Recipe, learning_hash
from fewgraft.training.record import check_record, data_name, run_name, write_record
from fewgraft.zoo import models_folder

STAGES = ("pre-trained", "algorithm-1", "algorithm-2")
TEACHER = "teacher"  # what comes before "pre-trained" where that is distilled
METHODS = "methods"  # the pieces of all methods that the recipe has a section for


def train(
    recipe: Recipe,
    store: ImageStore,
    folder: Path,
    stages: Sequence[str] = STAGES,
    accelerator: Accelerator | None = None,
    kept: KeptActivations | None = None,
) -> dict[str, dict[str, Any]]:
    """Train the stages that are not there yet; {stage: its card's metrics}.

    A stage is a model, or a method that learns pieces on one: {method-K-shot: its card's metrics}.
    For a method that uses base knowledge, that of its model is computed: it has no metrics.
    Phases that move the last block of the same network share the `kept` activations below it.
    """
    kept = {} if kept is None else kept
    accelerator = accelerator or Accelerator(cpu=True)
    _check_size(recipe, store)
    models = [stage for stage in stages if stage in STAGES]
    learners = [stage for stage in stages if stage not in STAGES]
    check_learners(recipe, learners)
    if recipe.distillation and "pre-trained" in models:
        models = [TEACHER, *models]
    with writing(folder):
        make_folder(folder)
    with _only_one(folder) if accelerator.is_main_process else contextlib.nullcontext():
        if models:  # pieces name the model that they stand on, whoever trained it
            check_record(folder, recipe, store, (TEACHER, *STAGES))
            if accelerator.is_main_process:
                write_record(folder, recipe, store)
        _train_stages(recipe, store, folder, models, accelerator, kept)
        found = {stage: load_model(folder / stage).card.metrics for stage in models}
        for name in learners:
            learn = _know if method_spec(name).method.uses_knowledge else _learn
            found |= learn(recipe, store, folder, name, accelerator)
    return found


def check_learners(recipe: Recipe, names: Sequence[str]) -> None:
    """Refuse, before anything is trained, methods that have nothing to learn or no section."""
    for name in names:
        if not method_spec(name).method.uses_knowledge:
            learning_of(recipe, trained_method(recipe, name, 1).pieces)


def _know(
    recipe: Recipe, store: ImageStore, folder: Path, name: str, accelerator: Accelerator
) -> dict[str, dict[str, Any]]:
    """What is kept of base classes beside the weights of a method's model, if it is not there."""
    stage = method_spec(name).stage
    if accelerator.is_main_process:
        _provide(recipe, stage, folder)
        if not has_knowledge(folder, stage):
            model = load_model(folder / stage)
            card = KnowledgeCard(stage=stage, weights=weights_hash(model), data=data_name(store))
            save_knowledge(base_knowledge(model, store), card, folder)
    accelerator.wait_for_everyone()
    return {knowledge_folder(folder, stage).name: {}}


def _learn(
    recipe: Recipe, store: ImageStore, folder: Path, name: str, accelerator: Accelerator
) -> dict[str, dict[str, Any]]:
    """The pieces of a method that are not there yet, for each number of shots."""
    stage, pieces = method_spec(name).stage, trained_method(recipe, name, 1).pieces
    if accelerator.is_main_process:
        _provide(recipe, stage, folder)
    accelerator.wait_for_everyone()
    found: dict[str, dict[str, Any]] = {}
    kept: KeptBySplit = {}
    for shots in learning_of(recipe, pieces).shots:
        if not has_pieces(folder, pieces, shots):
            model = load_model(folder / stage).to(accelerator.device)
            phase = LearnPieces(model, store, recipe, name, shots, kept=kept)
            learning = f"{learning_hash(recipe, pieces, shots)} on {weights_hash(model)}"
            run = f"{run_name(recipe, store, phase.name)} {learning}"
            progress = train_phase(phase, folder, run, recipe.checkpoint_every, accelerator)
            if accelerator.is_main_process:
                save_pieces(phase.pieces(progress), folder)
        accelerator.wait_for_everyone()
        found[f"{pieces}-{shots}-shot"] = load_pieces(folder, pieces, shots).card.metrics
    return found


def _provide(recipe: Recipe, stage: str, folder: Path) -> None:
    """The model that pieces stand on: the run's own, else a copy of the shipped one."""
    if (folder / stage / "model.json").exists():
        return
    try:
        shipped = models_folder(recipe.name) / stage
    except FewgraftError:
        raise FewgraftError(
            f"{folder} has no model '{stage}' to learn on",
            f"Train it first: `fewgraft train {recipe.name} --only {stage} --out {folder}`.",
        ) from None
    with writing(folder), replacing_folder(folder / stage) as work:
        shutil.copytree(shipped, work, dirs_exist_ok=True)


def _only_one(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Two processes that write the checkpoints of one run would spoil both."""
    busy = FewgraftError(
        f"{folder} is being trained already", "Wait for it, or give another --out."
    )
    return hold_lock(folder / ".training", busy)


def _train_stages(
    recipe: Recipe,
    store: ImageStore,
    folder: Path,
    stages: Sequence[str],
    accelerator: Accelerator,
    kept: KeptActivations,
) -> None:
    for stage in stages:
        target = folder / stage
        if not (target / "model.json").exists():
            phase = _phase(stage, recipe, store, folder, accelerator.device, kept)
            run = run_name(recipe, store, stage)
            progress = train_phase(phase, folder, run, recipe.checkpoint_every, accelerator)
            if accelerator.is_main_process:
                save_model(_with_card(phase, stage, progress, recipe, store), target)
        accelerator.wait_for_everyone()


def _check_size(recipe: Recipe, store: ImageStore) -> None:
    if recipe.size is not None and recipe.size != store.manifest.size:
        raise FewgraftError(
            f"the recipe wants pictures of {recipe.size} pixels, {store.manifest.name} has "
            f"{store.manifest.size}",
            f"Add the data again with --size {recipe.size}.",
        )


def _phase(
    stage: str,
    recipe: Recipe,
    store: ImageStore,
    folder: Path,
    device: torch.device,
    kept: KeptActivations,
) -> Phase:
    if stage == "pre-trained" and recipe.distillation:
        teacher, student = (load_model(folder / TEACHER).to(device) for _ in range(2))
        return Distil(student, teacher, store, recipe, recipe.distillation)
    if stage in (TEACHER, "pre-trained"):
        mean, std = channel_statistics(store)
        model = new_model(
            recipe.backbone,
            store.base_classes,
            store.manifest.size,
            store.manifest.channels,
            mean,
            std,
            recipe.seed,
            mirrored=recipe.mirrored,
        )
        return Pretrain(model.to(device), store, recipe)
    start = load_model(folder / "pre-trained").to(device)
    return Metatrain(start, store, recipe, 1 if stage == "algorithm-1" else 2, kept)


def channel_statistics(store: ImageStore) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel over at most 2000 pictures of base/train."""
    some = store.indices(Part.BASE_TRAIN)
    some = some[:: max(1, len(some) // 2000)]
    pixels = store.pictures[some].reshape(-1, store.manifest.channels) / 255
    return np.mean(pixels, axis=0).tolist(), np.std(pixels, axis=0).tolist()


def _with_card(
    phase: Phase, stage: str, progress: Progress, recipe: Recipe, store: ImageStore
) -> CosineModel:
    best = next(row for row in progress.history if row["step"] == progress.best_step)
    phase.model.card = phase.model.card.model_copy(
        update={
            "stage": stage,
            "data": data_name(store),
            "recipe": recipe.model_dump(mode="json"),
            "metrics": {f"val_{name}": value for name, value in best.items()},
        }
    )
    return phase.model
