"""Checkpoints: all that a run needs to go on as if it had never stopped, in one safetensors file.

Everything random in training is a function of (seed, step), so that no random state has to be kept.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import write_atomically
from fewgraft.parsing import validated

ANEW = "Remove it to start anew."
# What optimisers remember of a parameter, and what a checkpoint calls it.
REMEMBERED = {
    "momentum_buffer": "momentum",
    "exp_avg": "mean",
    "exp_avg_sq": "square",
    "step": "step",
}


@dataclass
class Progress:
    """Where a phase of training is."""

    run: str  # what is being trained: another recipe or phase must not go on from here
    step: int = 0  # steps done
    best_step: int = 0
    best_score: float | None = None
    history: list[dict[str, float]] = field(default_factory=list)  # validations so far


def save_checkpoint(
    path: Path,
    progress: Progress,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    best: dict[str, Tensor],
) -> None:
    """Write the state after `progress.step` steps; a kill leaves the old file or the new one."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"best/{name}": tensor for name, tensor in best.items()}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{REMEMBERED[key]}/{name}"] = value
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    with writing(path, "Make room; --resume goes on from the last checkpoint."):
        write_atomically(path, save(tensors, {"progress": json.dumps(asdict(progress))}))


def load_checkpoint(
    path: Path, run: str, model: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor]]:
    """Put model and optimiser into the saved state; the progress and the best weights so far."""
    with reading(path, "readable checkpoint", ANEW):
        with safe_open(path, "pt") as file:
            progress = _progress(json.loads(file.metadata()["progress"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if progress.run != run:
            raise FewgraftError(
                f"{path} belongs to another run ({progress.run}, not {run}): the recipe was "
                "changed",
                "Give another --out, or remove the old run.",
            )
        model.load_state_dict(_under("model/", tensors))
        for key, prefix in REMEMBERED.items():
            for name, value in _under(f"{prefix}/", tensors).items():
                parameter = model.get_parameter(name)
                count = key == "step"
                optimiser.state[parameter][key] = value if count else _like(value, parameter)
        return progress, _under("best/", tensors)


def _progress(content: dict[str, Any]) -> Progress:
    validated(Progress, content)
    progress = Progress(**content)  # numbers as they were written: whole ones stay whole
    known = [row["step"] for row in progress.history]
    if not 0 <= progress.best_step <= progress.step or (
        progress.best_step and progress.best_step not in known
    ):
        raise ValueError("its steps contradict each other")
    return progress


def check_best(
    path: Path, progress: Progress, best: dict[str, Tensor], result: dict[str, Tensor]
) -> None:
    """The best weights of a checkpoint are like the phase's, once there was a validation."""
    wanted = result if progress.best_step else {}
    with reading(path, "readable checkpoint", ANEW):
        if {k: v.shape for k, v in best.items()} != {k: v.shape for k, v in wanted.items()}:
            raise ValueError("its best weights are not this model's")


def checkpoint_run(path: Path) -> str:
    """What a checkpoint says is being trained."""
    with (
        reading(path, "readable checkpoint", ANEW),
        safe_open(path, "pt") as f,
    ):
        return str(json.loads(f.metadata()["progress"])["run"])


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """The same numbers in the memory layout of the parameter."""
    return torch.empty_like(parameter).copy_(tensor)
