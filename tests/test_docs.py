"""What the documents show works."""

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from fewgraft.cli import app
from fewgraft.data.sources import SourceKind
from fewgraft.data.store import ImageStore, open_store
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec, methods
from fewgraft.methods.beside_base import BesideBase

ROOT = Path(__file__).resolve().parents[1]
PAGES = {page.name: page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
BENCHMARK, RESULTS, README = (
    PAGES[name].read_text() for name in ("benchmark.md", "results.md", "README.md")
)
LONGEST_LINE = 100  # rows of tables cannot be broken
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
LAUNCH = re.compile(r"^(?:\w+=(?:\$\([^)]*\)|\S+) )+|^accelerate launch .* -m (?=fewgraft)")
PERCENT = re.compile(r"-?\d+\.\d\d ± \d\.\d\d")


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of a page; commands have no language."""
    return [block for named, block in BLOCK.findall(text) if named == language]


# --- Python ---


def photos_for_the_guide(icons: ImageStore, folder: Path) -> dict[str, Any]:
    """What its examples take for granted: photos, and a network of one's own."""
    (folder / "inbox").mkdir()
    paths: dict[str, list[Path]] = {}
    for label in range(5):
        own = (icons.labels == label).nonzero()[0][:8]
        paths[str(label)] = [folder / f"{label} {n}.png" for n in range(8)]
        for path, picture in zip(paths[str(label)], icons.pictures[own], strict=True):
            Image.fromarray(picture.squeeze()).save(path)
    Image.open(paths["4"][7]).save(folder / "inbox" / "a photo.jpg")
    old, new = ["0", "1", "2"], ["3", "4"]
    return {
        "old_photos": [path for name in old for path in paths[name][:4]],
        "old_names": [name for name in old for _ in range(4)],
        "new_photos": [path for name in new for path in paths[name][:2]],
        "new_names": [name for name in new for _ in range(2)],
        "pile": [path for own in paths.values() for path in own[5:7]],
        "val_photos": [paths[name][4] for name in old],
        "val_names": old,
        "module": nn.Sequential(nn.Conv2d(3, 512, 32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    }


def given(page: str, icons: ImageStore, folder: Path) -> dict[str, Any]:
    """Names that the examples of a page do not define."""
    if page == "guide.md":
        torch.manual_seed(0)
        return photos_for_the_guide(icons, folder)
    if page == "CONTRIBUTING.md":
        return {"SourceKind": SourceKind, "_open": lambda path, options: None}
    return {}


WITH_PYTHON = [name for name, page in PAGES.items() if blocks(page.read_text(), "python")]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_runs(
    name: str, icons: ImageStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"__name__": "example", **given(name, icons, tmp_path)}
    with chdir(tmp_path):
        for block in blocks(PAGES[name].read_text(), "python"):
            exec(compile(block, name, "exec"), names)
            promised = PERCENT.findall(block)
            printed = capsys.readouterr().out
            assert [number for number in promised if number not in printed] == []
    if name == "README.md":
        assert len(promised) == 3  # the example says what it prints


def test_the_example_of_a_method_is_a_method(tmp_path: Path) -> None:
    (code,) = blocks(BENCHMARK, "python")
    path = tmp_path / "pulled.py"
    path.write_text(code)
    words = ["bench", "run", "icons", "--methods", f"{path},+pr", "--settings", "s2i"]
    words += ["--shots", "1", "--episodes", "6", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "2 rows computed" in result.output
    assert method_spec(str(path)).method.changed(strength=0.0)


def test_a_file_that_is_no_method_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(FewgraftError, match="defines no method"):
        method_spec(str(tmp_path / "empty.py"))
    with pytest.raises(FewgraftError, match="there is no file"):
        method_spec(str(tmp_path / "none.py"))


def test_the_examples_of_a_backbone_and_a_source_work(tmp_path: Path) -> None:
    """As a user has them: files in the environment, and the commands beside them."""
    _, net, source = blocks(PAGES["extending.md"].read_text(), "python")
    (tmp_path / "net.py").write_text(net)
    (tmp_path / "source.py").write_text(source)
    for number, name in enumerate("abcdefg" * 12):
        folder = tmp_path / "photos" / f"{name}-{number:03}"
        folder.mkdir(parents=True)
        Image.new("RGB", (40, 30), (number, 40 * (number % 7), 90)).save(folder / "one.jpg")
    plugged = {"FEWGRAFT_PLUGINS": f"net.py{os.pathsep}source.py", "FEWGRAFT_HOME": str(tmp_path)}
    for words in (
        ["-m", "fewgraft", "data", "add", "birds", "--kind", "numbered", "--from", "photos"],
        ["-c", "from fewgraft.backbones import *; print(create_backbone('three-blocks'))"],
    ):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=os.environ | plugged,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert len(open_store(tmp_path / "data" / "birds").labels) == 84


# --- commands ---


def command_lines(page: Path) -> Iterator[str]:
    """Commands in blocks and in running text; "..." stands for what the reader knows."""
    text = page.read_text()
    for block in blocks(text, ""):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            yield from re.sub(r"\s+#.*", "", line).split(" && ")
    for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
        yield re.sub(r"\s+", " ", span)


def words_of(line: str) -> list[str]:
    """A command without the variables before it, what launches it, and where its output goes."""
    return shlex.split(LAUNCH.sub("", line.strip()).partition(" > ")[0])


def parse(words: list[str]) -> None:
    """Raise what the command would raise before it begins; a group alone is fine."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        if not words:
            return
        command = command.commands[words.pop(0)]
    if words:
        command.make_context("fewgraft", words)


def check_pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"\[([^]]+)\]", " ".join(words))
    assert {extra for names in named for extra in names.split(",")} <= set(extras)


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words[0] in targets


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        assert (ROOT / words[1] / "__main__.py").exists()
    else:
        assert (ROOT / words[0]).exists()


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "fewgraft": parse,
    "pip": check_pip,
    "make": check_make,
    "python": check_python,
}
COMMANDS = [
    (name, line)
    for name, page in PAGES.items()
    for line in dict.fromkeys(command_lines(page))
    if re.match(rf"({'|'.join(CHECKS)}) \S", LAUNCH.sub("", line.strip())) and "..." not in line
]


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 100
    assert {words_of(line)[0] for _, line in COMMANDS} == set(CHECKS)
    with pytest.raises(Exception, match="No such option: --cvs"):
        parse(["predict", "v2", "inbox", "--cvs", "out.csv"])


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_commands_parse(name: str, line: str) -> None:
    first, *words = words_of(line)
    CHECKS[first](words)


# --- the rest ---


def test_the_page_of_recipes_is_as_the_models_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    write_recipes = importlib.import_module("write_recipes")
    page = write_recipes.PAGE.read_text()
    assert page == write_recipes.page(), "run tools/write_recipes.py"
    for words in ("`temperature` | `1.0` | number, > 0 |", "| `sgd`, `adam` |", "< 2⁶³"):
        assert words in page


def test_every_method_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    write_methods = importlib.import_module("write_methods")
    page = write_methods.PAGE.read_text()
    assert page == write_methods.page(), "run tools/write_methods.py"
    for name, spec in methods().items():
        assert isinstance(spec.method, BesideBase) or f"`{name}`" in page


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_lines_are_short_enough_to_read(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    long = [n for n, line in lines if len(line) > LONGEST_LINE and line.lstrip()[0] != "|"]
    assert long == []


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    linked += re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert [target for target in linked if not (page.parent / target).exists()] == []


def test_the_front_page_has_the_figures_of_the_results() -> None:
    sections = dict(re.findall(r"^## (.+?)$(.*?)(?=^## )", RESULTS, re.MULTILINE | re.DOTALL))
    rows = re.findall(
        r"^\| (\w[^|*]+) \| [^|]+ \| (\S+) / (\S+) \| (\S+) / (\S+) \|$", README, re.MULTILINE
    )
    assert len(rows) >= 7
    for title, *figures in rows:
        for data, one, five in (("CIFAR-FS", *figures[:2]), ("Icons", *figures[2:])):
            lines = re.findall(rf"^\| {re.escape(title)} \| (.*)$", sections[data], re.MULTILINE)
            found = [re.findall(r"(\d+\.\d\d) ±", line) for line in lines]
            assert [one, five] in found, f"{title} on {data}"


IDEA = runpy.run_path(str(ROOT / "tools" / "draw_idea.py"))


def test_the_figure_of_the_idea_is_what_its_script_draws() -> None:
    for theme in IDEA["THEMES"]:
        stored = (ROOT / "docs" / "img" / f"idea-{theme.name}.svg").read_text()
        drawn = IDEA["figure"](IDEA["make_scene"](), theme)
        number = re.compile(r"-?\d+\.\d")
        assert number.sub("", drawn) == number.sub("", stored)
        there, here = ([float(n) for n in number.findall(text)] for text in (stored, drawn))
        assert here == pytest.approx(there, abs=0.2)  # pixels


def test_the_figure_shows_that_refinement_helps() -> None:
    scene = IDEA["make_scene"]()
    novel = torch.arange(len(scene.unlabelled)) // IDEA["PER_CLASS"] - len(scene.base)
    counts = scene.counted.max(1).values > 0.5
    assert (counts == (novel >= 0)).float().mean() > 0.9
    assert (scene.counted[novel >= 0].argmax(1) == novel[novel >= 0]).float().mean() > 0.9
