"""Methods, backbones and sources that come from files and packages of the user's own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fewgraft.bench.comparison import compare, comparison_table
from fewgraft.bench.results import Results
from fewgraft.bench.rows import run
from fewgraft.bench.runner import Bench, job_of, jobs, rerun
from fewgraft.bench.table_formats import FORMATS
from fewgraft.bench.tables import build
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_names, method_spec
from fewgraft.plugins import module_of
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import models_folder

FEW = 4
TWO = """
from fewgraft.methods.base import MethodSpec
from fewgraft.methods.prototype_refinement import PrototypeRefinement

METHODS = (
    MethodSpec("one-step", "One step", PrototypeRefinement(steps=1), "algorithm-1", rank=20),
    MethodSpec("two-steps", "Two steps & more", PrototypeRefinement(steps=2), "algorithm-1", 21),
)
"""
PLUGIN = """
from torch import nn

from fewgraft.backbones import BackboneSpec
from fewgraft.data.build import Source
from fewgraft.data.sources import SourceKind
from fewgraft.methods.base import MethodSpec
from fewgraft.methods.nearest_prototype import NearestPrototype


def make(channels):
    return nn.Sequential(nn.Conv2d(channels, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


METHODS = (MethodSpec("plugged", "Plugged in", NearestPrototype(), "algorithm-1", rank=20),)
BACKBONES = (BackboneSpec("plugged-net", make, 6, 16, "three lines"),)
KIND = SourceKind("plugged-data", "made up", "anything.", lambda path, options: None)
"""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "my methods.py"
    path.write_text(TWO)
    return path


# --- a file by its path ---


def test_a_file_may_define_several_methods(two: Path) -> None:
    assert method_names("+pr") == ["+pr"]
    names = method_names(str(two))
    assert names == [f"{two}:one-step", f"{two}:two-steps"]
    assert method_names(names[0]) == [names[0]]
    assert [method_spec(name).title for name in names] == ["One step", "Two steps & more"]
    with pytest.raises(FewgraftError, match="several methods") as told:
        method_spec(str(two))
    assert f"{two}:two-steps" in told.value.hint
    with pytest.raises(FewgraftError, match="no method 'two-step'") as told:
        method_spec(f"{two}:two-step")
    assert "two-steps" in told.value.hint


def test_a_method_of_a_file_keeps_its_name_and_title(two: Path, tmp_path: Path) -> None:
    results, bench = Results(tmp_path / "results"), Bench()
    names = ["+pr", *method_names(str(two))]
    wanted = jobs(load_recipe("icons"), models_folder("icons"), names, ["s2i"], [1], FEW)
    rows = [row for row, _ in run(wanted, results, bench)]
    assert [row.method for row in rows] == ["+pr", "one-step", "two-steps"]
    for name in FORMATS:
        text = FORMATS[name](build(results, "main"))
        assert "One step" in text
        assert str(two) not in text
    found = comparison_table(compare(results, "two-steps:s2i:1", "one-step:s2i:1"))
    assert "Two steps & more" in found.note
    assert job_of(rows[1]).method == f"{two}:one-step"
    assert rerun(rows[1], bench)[1] == []

    two.write_text(TWO.replace("steps=1", "steps=3") + "# edited")
    again = [row for row, _ in run(wanted, results, Bench())]
    assert again[0].id == rows[0].id
    assert again[1].id != rows[1].id, "other code, other row"
    assert any("the method's file" in line for line in rerun(rows[2], Bench())[1])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("METHODS = ()", "defines no method"),
        ("METHODS = (1,)", "defines no method"),
        ("1 / 0", "not a Python file that can be run: division by zero"),
        (TWO.replace("one-step", "+pr"), "'\\+pr' is the name of another method"),
        (TWO.replace("two-steps", "one-step"), "two methods are called 'one-step'"),
    ],
)
def test_files_that_define_nothing_of_use(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(FewgraftError, match=problem):
        method_spec(f"{path}:one-step")


def test_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "same.py" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(f"PLACE = {path.parent.name!r}")
    assert [module_of(path).PLACE for path in paths] == ["a", "b"]


# --- plug-ins ---


def registered(tmp_path: Path, **env: str) -> str:
    """What a new process knows of the plug-in."""
    code = """
        from fewgraft.backbones import create_backbone
        from fewgraft.data.sources import source_kinds
        from fewgraft.methods import methods
        print(methods()["plugged"].title, len(list(create_backbone("plugged-net").parameters())))
        print(source_kinds()["plugged-data"].summary)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_files_named_by_the_environment_are_plugged_in(tmp_path: Path) -> None:
    path = tmp_path / "plug in.py"
    path.write_text(PLUGIN)
    assert registered(tmp_path, FEWGRAFT_PLUGINS=str(path)) == "Plugged in 2\nmade up\n"
    assert "there is no file none.py" in registered(tmp_path, FEWGRAFT_PLUGINS="none.py")


def test_installed_packages_are_plugged_in_by_entry_points(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "fewgraft_more-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "fewgraft_more.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fewgraft-more\nVersion: 1.0\n")
    groups = ("methods", "backbones", "sources")
    entries = "\n".join(f"[fewgraft.{group}]\nmore = fewgraft_more\n" for group in groups)
    (info / "entry_points.txt").write_text(entries)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert registered(tmp_path, PYTHONPATH=path) == "Plugged in 2\nmade up\n"

    (site / "fewgraft_more.py").write_text("1 / 0")
    told = registered(tmp_path, PYTHONPATH=path)
    assert "the plug-in 'more' of fewgraft-more is not a module: division by zero" in told
    (info / "entry_points.txt").write_text(entries.replace("= fewgraft_more", "= os:sep"))
    assert "'more' of fewgraft-more is no module" in registered(tmp_path, PYTHONPATH=path)


def test_no_file_that_is_read_names_code(tmp_path: Path) -> None:
    """A model's card could come from anybody: a path in it is no backbone."""
    from fewgraft.backbones import backbone_spec

    path = tmp_path / "evil.py"
    path.write_text("raise SystemExit('it ran')")
    for name in (str(path), f"{path}:net"):
        with pytest.raises(FewgraftError, match="no backbone"):
            backbone_spec(name)
