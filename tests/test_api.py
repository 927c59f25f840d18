"""The public names: there from the wheel, typed, lazy, explained, with examples that run."""

import doctest
import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fewgraft

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(fewgraft.__file__).parents[1]
NAMES = {
    "EpisodeSettings",
    "Evaluation",
    "FeatureSet",
    "FewgraftClassifier",
    "FewgraftError",
    "Method",
    "Refinement",
    "Task",
    "__version__",
    "evaluate",
    "load",
    "load_model",
    "methods",
    "open_data",
}
LAZY = """
import sys
import fewgraft

names = dir(fewgraft)
print(*(name for name in sys.modules if name.split(".")[0] in ("torch", "numpy", "sklearn")))
for name in names:
    getattr(fewgraft, name)
print(*names)
"""


def fresh(code: str, **environment: str) -> list[str]:
    """The lines that a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_is_light_and_every_name_is_there() -> None:
    heavy, names = fresh(LAZY, PYTHONPATH=str(SOURCE))
    assert heavy == ""
    assert set(names.split()) == NAMES == set(fewgraft.__all__)


def test_names_that_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        getattr(fewgraft, "evalute")  # noqa: B009


USER = """
from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import fewgraft
from fewgraft.data.store import ImageStore
from fewgraft.methods.base import MethodSpec, NovelWeights
from fewgraft.metrics import Interval
from fewgraft.model import CosineModel
from fewgraft.prototypes import prototypes


class Mine(fewgraft.Method):
    def fit(self, task: fewgraft.Task) -> NovelWeights:
        return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)


def compared(features: NDArray[np.float32], labels: list[str], parts: list[str]) -> str:
    data = fewgraft.FeatureSet(features, labels, parts)
    settings = fewgraft.EpisodeSettings.paper("s2i", shots=5)
    one = fewgraft.evaluate(Mine(), data, settings, episodes=10)
    two = fewgraft.evaluate("+pr", data=data, shots=5, episodes=10, device="cpu")
    assert_type(one, fewgraft.Evaluation)
    assert_type(one.summary(), dict[str, Interval])
    return one.table(two) + str(one.compare(two))


assert_type(fewgraft.open_data("icons"), ImageStore)
assert_type(fewgraft.load_model("runs/icons/algorithm-2"), CosineModel)
assert_type(fewgraft.load_model(Path("runs")), CosineModel)
assert_type(fewgraft.load("icons"), fewgraft.FewgraftClassifier)
assert_type(fewgraft.FewgraftClassifier("efficientnet-lite0"), fewgraft.FewgraftClassifier)
assert_type(fewgraft.methods.method_spec("+pr"), MethodSpec)
assert_type(fewgraft.Refinement(steps=5).alpha, float)
assert_type(fewgraft.FewgraftError("a problem").hint, str)
assert_type(fewgraft.__version__, str)
"""


def test_a_users_file_is_checked_strictly(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text("import fewgraft\n\nfewgraft.evalute('+pr')\n")
    for name in NAMES:
        assert f"fewgraft.{name}" in USER
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"  # what the linter knows already
    options = ["--strict", f"--config-file={ROOT / 'pyproject.toml'}", cache, "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "user.py", "wrong.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("wrong.py:3: error: Module has no attribute")


@pytest.mark.usefixtures("_shared_home")
@pytest.mark.parametrize("name", sorted(NAMES - {"__version__"}))
def test_examples_run(name: str) -> None:
    thing = getattr(fewgraft, name)
    module = sys.modules[getattr(thing, "__module__", "fewgraft.methods")]
    own = {"fewgraft": fewgraft, "__name__": "__main__"}
    found = [t for t in doctest.DocTestFinder().find(thing, name, module, own) if t.examples]
    assert any(test.name == name for test in found), f"{name} has no example"
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0


def test_the_page_is_that_of_the_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    write_api = importlib.import_module("write_api")
    assert write_api.PAGE.read_text() == write_api.page(), "run tools/write_api.py"
    shown = {name for names in write_api.CHAPTERS.values() for name in names}
    assert shown == NAMES - {"__version__"}
    assert max(map(len, write_api.page().splitlines())) <= 100


IN_WHEEL = """
import fewgraft

print(fewgraft.__file__)
print(*(name for name in fewgraft.__all__ if getattr(fewgraft, name)))
print(fewgraft.evaluate("proposed-without-adaptation", episodes=2).table())
"""


@pytest.mark.slow
def test_the_wheel_offers_them(tmp_path: Path) -> None:
    tree, site = tmp_path / "tree", tmp_path / "site"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", *options, str(tree)]
    subprocess.run(pip, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    assert (site / "fewgraft" / "py.typed").is_file()
    file, names, *table = fresh(IN_WHEEL, PYTHONPATH=str(site))
    assert Path(file).is_relative_to(site)
    assert set(names.split()) == NAMES
    assert "Proposed, no adaptation" in table[1]
