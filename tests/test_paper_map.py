"""docs/paper.md names what exists."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer

from fewgraft.cli import app
from fewgraft.methods import methods
from fewgraft.methods.beside_base import BesideBase

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "paper.md").read_text()
SYMBOLS = sorted(set(re.findall(r"`(fewgraft(?:\.\w+)+)`", PAGE)))
COMMANDS = sorted(set(re.findall(r"`fewgraft ([^`]+)`", PAGE)))


def found(name: str) -> object:
    """What a dotted name stands for."""
    steps = name.split(".")
    for length in range(len(steps), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(steps[:length]))
        except ModuleNotFoundError:
            continue
        for step in steps[length:]:
            thing = getattr(thing, step)
        return thing
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", SYMBOLS)
def test_every_name_exists(name: str) -> None:
    assert found(name) is not None


def test_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        found("fewgraft.prototypes.refined_twice")


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_parses(words: str) -> None:
    command, rest = typer.main.get_command(app), shlex.split(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    command.make_context("fewgraft", rest)


def test_the_page_is_complete() -> None:
    wanted = [f"Eq. {n}" for n in range(1, 9)] + [f"Fig. {n}" for n in range(1, 5)]
    wanted += ["Tables 1 and 2", "Table 3", "Table 4", "Table 5", "Algorithm 1", "Algorithm 2"]
    assert [name for name in wanted if name not in PAGE] == []
    of_the_paper = [
        name
        for name, spec in methods().items()
        if not name.endswith("+bias") and not isinstance(spec.method, BesideBase)
    ]
    assert [name for name in of_the_paper if f"`{name}`" not in PAGE] == []


def test_equations_stand_where_they_are() -> None:
    source = Path(__file__).resolve().parents[1] / "src" / "fewgraft"
    places = {
        "prototypes.py": ("Eq. 1", "Eq. 2", "Eq. 3", "Eq. 4"),
        "methods/losses.py": ("Eq. 5", "Eq. 6", "Eq. 7"),
        "methods/adaptation.py": ("Eq. 5", "Eq. 6"),
        "metrics.py": ("Eq. 8",),
        "training/metatrain.py": ("Lines 2–4", "Line 5", "Line 6", "Line 7", "line 8"),
        "bench/tables.py": ("Tables 1 and 2", "Table 3", "Table 4", "Table 5"),
        "bench/tsne.py": ("Fig. 3",),
        "bench/ratio.py": ("Fig. 4",),
    }
    for name, numbers in places.items():
        text = (source / name).read_text()
        assert [number for number in numbers if number not in text] == [], name
