"""`fewgraft doctor`: what this machine has, and what to install for what it lacks."""

import importlib.metadata
import os
import platform
import shutil
import sys
from pathlib import Path

import typer
from packaging.requirements import Requirement

from fewgraft import __version__
from fewgraft.errors import FewgraftError

CORE = (
    "torch",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "accelerate",
    "safetensors",
    "numpy",
    "pillow",
    "pyarrow",
    "pydantic",
    "typer",
)
SHOWN = 3  # packages of an extra
# What each extra of the package is for; which extras there are, the installed package itself says.
PURPOSES = {
    "dev": "working on Fewgraft",
    "photos": "all that the guide uses: the page and HEIC photos as well",
    "efficientnet": "larger networks with ImageNet weights",
    "timm": "backbones of timm",
    "hf": "backbones of Hugging Face",
    "onnx": "ONNX backbones and export, part of every install",
    "serve": "serving a classifier to browsers",
    "ray": "benchmarks on many machines",
    "tensorboard": "watching a training run",
    "icons": "building the Icons anew",
}


def doctor() -> None:
    """Show versions, threads, memory, extras and data, and what to install for what is missing.

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
    _section("Ray")
    for name, text in _ray().items():
        _line(name, text)
    _section("Extras")
    for name in extras():
        missing = [package for package in packages(name) if not _installed(package)]
        command = f"missing {_listed(missing)}; pip install 'fewgraft[{name}]'"
        _line(name, f"{PURPOSES.get(name, 'an extra')}: {command if missing else 'there'}")
    _section("Data")
    for name, text in _data():
        _line(name, text)


def extras() -> list[str]:
    """Names of the extras that the installed package declares."""
    try:
        return importlib.metadata.metadata("fewgraft").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return []


def packages(extra: str) -> list[str]:
    """What an extra installs, also by way of other extras."""
    found: list[str] = []
    for text in importlib.metadata.requires("fewgraft") or []:
        requirement = Requirement(text)
        if not requirement.marker or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "fewgraft":
            found += [name for other in sorted(requirement.extras) for name in packages(other)]
        else:
            found.append(requirement.name)
    return found


def _listed(names: list[str]) -> str:
    """The first names, and how many there are beyond."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


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


def _ray() -> dict[str, str]:
    """The library and what a cluster needs; nothing is started."""
    if not _installed("ray"):
        return {"library": "missing; pip install 'fewgraft[ray]'"}
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return {
        "library": f"{_version('ray')}; all machines need the same, and the same Fewgraft",
        "cluster": "one on this machine, unless --address HOST:PORT joins another",
        "token": "from the environment" if named else "none in the environment; Ray's is in ~/.ray",
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
