"""The loop that every phase of training runs in: steps, validation, checkpoints, resuming."""

import math
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from fewgraft.errors import FewgraftError
from fewgraft.progress import track
from fewgraft.training.checkpoint import (
    ANEW,
    Progress,
    check_best,
    load_checkpoint,
    save_checkpoint,
)
from fewgraft.training.log import RunLog
from fewgraft.training.phase import Phase, Shard, StepLoss
from fewgraft.training.recipe import Optimisation

LOG_EVERY = 20
WATCHED = 100  # steps over which a loss must not be worse than guessing


class Interrupted(Exception):  # noqa: N818
    """Asked to stop; the state is saved."""


def learning_rate(config: Optimisation, step: int, steps: int) -> float:
    """The rate of a step: linear warm-up, then a cosine to 0, falls or constant. Counts steps."""
    warm = config.warm_up * steps
    if step < warm:
        return config.lr * (step + 1) / (warm + 1)
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "falls":
        return config.lr * ([1.0] + [f for share, f in config.falls if step >= share * steps])[-1]
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def make_optimiser(phase: Phase) -> torch.optim.Optimizer:
    """On what moves; normalisation layers and γ are pulled towards zero only with "all"."""
    config = phase.optimisation
    decayed = [p for _, p in phase.moving() if p.ndim > 1 or config.decays == "all"]
    others = [p for _, p in phase.moving() if p.ndim <= 1 and config.decays != "all"]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}]
    groups.append({"params": others, "weight_decay": 0.0})
    fused = phase.model.weight.device.type in ("cpu", "cuda")  # one pass over the weights
    if config.kind == "adam":
        adam = torch.optim.AdamW if config.decoupled else torch.optim.Adam
        return adam(groups, lr=config.lr, fused=fused)
    return torch.optim.SGD(
        groups,
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov and config.momentum > 0,
        fused=fused,
    )


def train_phase(
    phase: Phase, folder: Path, run: str, checkpoint_every: int, accelerator: Accelerator
) -> Progress:
    """Run a phase to its end, from its checkpoint where there is one.

    The model ends with the weights of the step that validated best.
    """
    moving = {id(parameter) for _, parameter in phase.moving()}
    for parameter in phase.learner.parameters():
        parameter.requires_grad_(id(parameter) in moving)
    optimiser = make_optimiser(phase)
    path = folder / f"{phase.name}.checkpoint"
    progress, best = Progress(run), dict[str, Tensor]()
    if path.exists():
        progress, best = load_checkpoint(path, run, phase.learner, optimiser)
        check_best(path, progress, best, phase.result())
        if progress.step > phase.steps or (progress.step == phase.steps and not best):
            raise FewgraftError(f"{path} is beyond the last step, {phase.steps}", ANEW)
    shard = Shard(accelerator.process_index, accelerator.num_processes)
    wrapped, prepared = accelerator.prepare(StepLoss(phase, shard), optimiser)
    log = RunLog(folder, phase.name, progress.step) if accelerator.is_main_process else None
    steps = _Steps(phase, wrapped, prepared, accelerator)
    phase.set_mode()
    with _stop_after_step() as stop:
        todo = range(progress.step, phase.steps)
        for step in track(todo, phase.name, len(todo), steps.status):
            loss, accuracy = steps.take(step)
            progress.step = step + 1
            last = progress.step == phase.steps
            if log and (progress.step % LOG_EVERY == 0 or last):
                log.write(progress.step, loss=loss, accuracy=accuracy, lr=steps.rate)
            if progress.step % phase.validate_every == 0 or last:
                best = _validate(phase, progress, best, log)
            if accelerator.is_main_process and (
                progress.step % checkpoint_every == 0 or last or stop
            ):
                save_checkpoint(path, progress, phase.learner, optimiser, best)
            if stop:
                raise Interrupted(f"{phase.name} stopped after step {progress.step}")
    phase.restore(best)
    return progress


class _Steps:
    """Takes steps and keeps an eye on the loss."""

    def __init__(
        self, phase: Phase, wrapped: nn.Module, optimiser: torch.optim.Optimizer, acc: Accelerator
    ) -> None:
        self._phase = phase
        self._wrapped = wrapped
        self._optimiser = optimiser
        self._accelerator = acc
        self._losses = deque[float](maxlen=WATCHED)
        self._accuracies = deque[float](maxlen=WATCHED)
        self.rate = 0.0

    def take(self, step: int) -> tuple[float, float]:
        """One step of gradient descent; its loss and accuracy."""
        config = self._phase.optimisation
        self.rate = learning_rate(config, step, self._phase.steps)
        for group in self._optimiser.param_groups:
            group["lr"] = self.rate
        with self._accelerator.autocast():
            loss, accuracy = self._wrapped(step)
        self._watch(step, loss.item(), accuracy)
        self._accelerator.backward(loss)
        if config.clip:
            self._accelerator.clip_grad_norm_([p for _, p in self._phase.moving()], config.clip)
        self._optimiser.step()
        self._optimiser.zero_grad()
        return loss.item(), accuracy

    def _watch(self, step: int, loss: float, accuracy: float) -> None:
        """Stop a run that learns nothing any more, before it overwrites what is good."""
        self._losses.append(loss)
        self._accuracies.append(accuracy)
        guessing = math.log(len(self._phase.model.card.classes))
        mean = sum(self._losses) / len(self._losses)
        diverged = len(self._losses) == WATCHED and mean > 1.5 * guessing
        if not math.isfinite(loss) or diverged:
            what = "is not finite" if not math.isfinite(loss) else "is far worse than guessing"
            raise FewgraftError(
                f"{self._phase.name}: the loss at step {step + 1} {what} ({loss:.3g})",
                "Lower optimisation.lr, lengthen optimisation.warm_up or set optimisation.clip. "
                "The last checkpoint is kept.",
            )

    def status(self) -> str:
        """For the progress line."""
        if not self._losses:
            return ""
        loss, accuracy = (sum(d) / len(d) for d in (self._losses, self._accuracies))
        return f"loss {loss:.3f} acc {100 * accuracy:.1f} %"


def _validate(
    phase: Phase, progress: Progress, best: dict[str, Tensor], log: RunLog | None
) -> dict[str, Tensor]:
    """Validate; the best weights so far, copied if these are they."""
    figures = phase.validate()
    phase.set_mode()
    progress.history.append({"step": progress.step, **figures})
    if log:
        log.write(progress.step, **{f"val_{name}": value for name, value in figures.items()})
    if progress.best_score is not None and figures["score"] <= progress.best_score:
        return best
    progress.best_score, progress.best_step = figures["score"], progress.step
    return {name: tensor.detach().clone() for name, tensor in phase.result().items()}


@contextmanager
def _stop_after_step() -> Iterator[list[int]]:
    """The list that a polite signal fills: the step in hand is finished, then all is saved."""
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        asked.append(number)

    try:
        old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs it there stops it there
        old = {}
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
