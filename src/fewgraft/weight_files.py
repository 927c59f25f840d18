"""Tensors in files of others, read without running anything: safetensors and torch state dicts.

A state dict is a pickle. torch reads it with `weights_only`, which calls nothing that the file
names; what its reader does not withstand is refused before.
"""

import argparse
import contextlib
import itertools
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fewgraft.errors import FewgraftError, reading

STATE_DICTS = (".pt", ".pth", ".bin", ".ckpt", ".tar")

LONGEST_NAME = 10_000  # characters of what a state dict names
OLD_PROGRAMS = 5  # magic number, version, system, state dict, keys of its tensors
# What else checkpoints hold: the options of a training script, which have no code of their own.
HARMLESS = (argparse.Namespace,)
RESAVE = (
    "If you trust it, save its weights alone with the code that made it: "
    "torch.save(network.state_dict(), FILE)."
)
_REFUSED = re.compile(r"GLOBAL (\S{1,200}) was not an allowed global")

Tensors = Mapping[str, Tensor]


def read_tensors(file: Path) -> Tensors:
    """All tensors of a file by name; names of dicts within dicts are joined by dots."""
    if not file.is_file():
        raise FewgraftError(f"{file} is not a file")
    if file.suffix == ".safetensors":
        with reading(file, "file of safetensors"):
            return load_file(file)
    if file.suffix not in STATE_DICTS:
        known = ", ".join((".safetensors", *STATE_DICTS))
        raise FewgraftError(f"{file} is of no known kind", f"Known: {known}")
    with reading(file, "file of PyTorch weights", RESAVE):
        _refuse_packed(file)
        _refuse_long_names(file)
        return dict(_flat(_loaded(file)))


def file_and_name(path: str | Path) -> tuple[Path, str]:
    """The parts of FILE#NAME; the name is empty where there is none."""
    if Path(path).exists():  # a file may have a # in its name
        return Path(path), ""
    file, _, name = str(path).partition("#")
    return Path(file), name


def _loaded(file: Path) -> Any:
    """What a state dict's file holds; what is no weights is refused by its name."""
    try:
        with torch.serialization.safe_globals(list(HARMLESS)):
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # its first line names options of torch.load
        if named := _REFUSED.search(str(error)):
            raise ValueError(f"it asks for {named[1]} while it is loaded: refused") from None
        raise ValueError("it holds something else than weights") from None


def is_whole(value: Tensor) -> bool:
    """Whether a tensor has numbers of its own; one that shows few numbers many times would be far
    larger than its file.
    """
    return value.layout == torch.strided and value.untyped_storage().nbytes() >= value.nbytes


def _refuse_packed(file: Path) -> None:
    """torch packs nothing: an archive that unpacks to more than it is was made to fill memory."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > file.stat().st_size:
            raise ValueError("it would unpack to more than its size")


def _refuse_long_names(file: Path) -> None:
    """torch searches the message that names what it refuses, in time that is quadratic in it."""
    for program in _pickles(file):
        with contextlib.suppress(ValueError, IndexError):  # torch says what is wrong with it
            for _, argument, _ in itertools.chain.from_iterable(_programs(program)):
                if isinstance(argument, str | bytes) and len(argument) > LONGEST_NAME:
                    raise FewgraftError(f"{file} holds a name of {len(argument):,} characters")


def _pickles(file: Path) -> Iterator[IO[bytes]]:
    """The programs of a file: members of an archive or, as torch wrote before, its beginning."""
    if not zipfile.is_zipfile(file):
        with file.open("rb") as old:
            yield old
        return
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            if member.endswith(".pkl"):
                with archive.open(member) as own:
                    yield own


def _programs(content: IO[bytes]) -> Iterator[Iterator[Any]]:
    """One after the other; an old file has a few, and the numbers of its tensors behind them."""
    for _ in range(OLD_PROGRAMS):
        yield pickletools.genops(content)


def _flat(content: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state dict, which is often one entry of a larger one; each dict once."""
    waiting, seen = [("", content)], set[int]()
    while waiting:
        prefix, one = waiting.pop(0)
        if isinstance(one, Tensor):
            yield prefix, one
        elif isinstance(one, dict) and id(one) not in seen:
            seen.add(id(one))
            waiting += [(f"{prefix}.{key}" if prefix else str(key), v) for key, v in one.items()]
