"""Write docs/methods.md from the registry and the docstrings of the methods' files.

python tools/write_methods.py
"""

import importlib
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from fewgraft.bench.runner import makes_sense
from fewgraft.episodes import SETTINGS
from fewgraft.methods import methods
from fewgraft.methods.base import MethodSpec
from fewgraft.methods.beside_base import BesideBase

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "methods.md"
# Authors, "Title", VENUE YEAR, as every file of a paper cites it.
CITED = re.compile(r'([A-Z][^".]*(?:et al\.)?), "([^"]+)",\s+([A-Z][A-Za-z ]*?)\s+((?:19|20)\d\d)')
OPENING = """\
# Methods

<!-- Written by tools/write_methods.py from the registry: change that and run it again. -->

One file per paper; `fewgraft bench methods` lists the names. A file of your own is a method, too:
[a method of your own](../examples/a-method-of-your-own.ipynb).

*Learns* is what moves: before any task (pieces, `fewgraft train RECIPE --only NAME`), or in every
task. *Assumes* is what a method takes for granted of the unlabelled set, or sees beyond the others.
*Cost* is what an episode takes with the registered hyper-parameters, on features unless it says
otherwise; every row of `fewgraft bench run` has its seconds.
A method of novel classes alone that uses U also has a row in the joint settings, `+NAME`, titled
"Meta-Inc-Baseline + …": [beside_base.py](../src/fewgraft/methods/beside_base.py) says how.
"""
COLUMNS = ("method", "paper", "year", "settings", "learns", "assumes", "cost", "file")
# How often something is done in an episode, by the name of the hyper-parameter that says so.
COUNTED = {
    "refinement_steps": "refinement steps: {}",
    "steps": "steps: {}",
    "rounds": "rounds: {}",
    "starts": "starts of k-means: {}",
    "per_round": "rounds until U is used up, pictures of a class in each: {}",
    "moved": "rounds until U is used up, pictures of a class in each: {}",
}
COSTS = {"attractor": "logistic regression"}  # where no hyper-parameter says it
CHAPTERS = {
    "Base and novel classes, no unlabelled set": (True, False),
    "Base and novel classes, with an unlabelled set": (True, True),
    "Novel classes alone, with an unlabelled set": (False, True),
    "Novel classes alone, no unlabelled set": (False, False),
}


def page() -> str:
    """The whole page."""
    return "\n".join([OPENING, *_chapters()])


def _chapters() -> Iterator[str]:
    for title, kind in CHAPTERS.items():
        chosen = [spec for spec in methods().values() if _kind(spec) == kind]
        lines = [_line(spec) for spec in chosen if not isinstance(spec.method, BesideBase)]
        if lines:
            head = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
            yield "\n".join([f"## {title}\n", head, *lines, ""])


def _kind(spec: MethodSpec) -> tuple[bool, bool]:
    return spec.joint, spec.method.uses_unlabelled


def _line(spec: MethodSpec) -> str:
    module = importlib.import_module(type(spec.method).__module__)
    path = Path(str(module.__file__)).relative_to(ROOT)
    settings = ", ".join(name for name in SETTINGS if makes_sense(spec, name))
    cells = [
        f"{spec.title}<br>`{spec.name}`",
        *_paper(spec, " ".join((module.__doc__ or "").split())),
        settings,
        _learns(spec),
        _assumes(spec),
        _cost(spec),
        f"[{path.name}](../{path.as_posix()})",
    ]
    return f"| {' | '.join(cells)} |"


def _paper(spec: MethodSpec, docstring: str) -> tuple[str, str]:
    """What is cited, and its year."""
    if "(ours)" in spec.title:
        return "this project", "–"
    if spec.stage == "algorithm-2":  # which is the paper's, whatever runs on its features
        return "the S²I-FSL paper, BMVC", "2021"
    cited = CITED.search(docstring)
    assert cited, f"{spec.name} cites no paper"
    authors, title, venue, year = cited.groups()
    return f'{authors}, "{title}", {venue}', year


def _learns(spec: MethodSpec) -> str:
    if spec.method.pieces:
        return "pieces, once"
    if spec.method.uses_pictures:
        return "a classifier on views, per task"
    return "the last block, per task" if spec.method.moves_network else "nothing beforehand"


def _assumes(spec: MethodSpec) -> str:
    balanced = ["as many unlabelled pictures of each class"] if spec.balanced else []
    return "; ".join([*balanced, *([spec.remark] if spec.remark else [])]) or "–"


def _cost(spec: MethodSpec) -> str:
    given = {f.name: getattr(spec.method, f.name) for f in fields(spec.method)}  # type: ignore[arg-type]
    counts = [text.format(given[name]) for name, text in COUNTED.items() if name in given]
    return ", ".join(counts) or COSTS.get(spec.name, "closed form")


if __name__ == "__main__":
    PAGE.write_text(page())
