"""The notebooks in examples/ run from top to bottom and show what they store."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
NAMES = {
    "a-method-of-your-own",
    "add-classes-to-a-classifier",
    "evaluate-and-compare",
    "train-on-your-own-folder",
}
QUICK = "add-classes-to-a-classifier"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("run_notebooks")


def outputs(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            yield from cell.outputs


def shape_of(notebook: Any) -> list[str]:
    """What is printed and drawn, without digits: other processors round otherwise."""
    texts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs(notebook)]
    return re.sub(r"-?[\d.]+", "0", "".join(texts)).split()


def test_they_are_there() -> None:
    assert {path.stem for path in NOTEBOOKS} == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_small_and_clean(path: Path) -> None:
    assert path.stat().st_size < 100_000
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    title, _, opening = notebook.cells[0].source.partition("\n")
    assert title.startswith("# ")
    assert opening.strip().startswith("For ")
    assert len(re.findall(r"[.](?:\s|$)", opening)) == 2, "for whom, and what you will see"
    assert list(outputs(notebook))
    for output in outputs(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
    text = path.read_text()
    for unwanted in ("/tmp/", "/home/", "/root/", "/work/", "Warning"):
        assert unwanted not in text


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.stem, marks=[] if p.stem == QUICK else [pytest.mark.slow])
        for p in NOTEBOOKS
    ],
)
def test_they_run_and_show_what_they_store(path: Path, runner: ModuleType) -> None:
    stored = nbformat.read(path, as_version=4)
    notebook = runner.executed(path)
    said = "".join(o.text for o in outputs(notebook) if o.get("name") == "stderr")
    warnings = [line for line in said.splitlines() if "Warning" in line and "Tqdm" not in line]
    assert warnings == []  # tqdm, which is not ours, misses its widgets
    assert shape_of(runner.tidy(notebook)) == shape_of(stored)
