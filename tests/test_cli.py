"""The command as a person meets it: a real process, its output, its exit code."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image

import fewgraft
from fewgraft.cli import app, doctor

PROJECT = Path(__file__).resolve().parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `fewgraft` with these arguments in an empty folder."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fewgraft", *arguments],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "120", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


COMMANDS = [
    [],
    ["demo"],
    ["doctor"],
    ["episode"],
    ["train"],
    ["data"],
    ["data", "add"],
    ["data", "list"],
    ["data", "verify"],
    ["data", "show"],
    ["zoo"],
    ["zoo", "list"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(run: Run, command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.returncode == 0, result.stderr
    assert "Usage" in result.stdout
    if command not in ([], ["data"]):
        assert "Example" in result.stdout


def every_command(group: Any = None, name: str = "fewgraft") -> Iterator[tuple[str, Any]]:
    """All commands with their full names, from the tree that the program is made of."""
    group = group or typer.main.get_command(app)
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


ALL_COMMANDS = dict(every_command())


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_help_is_made_of_sentences_and_examples(name: str) -> None:
    command = ALL_COMMANDS[name]
    first, *_ = command.help.splitlines()
    assert re.fullmatch(r"[A-Z].*\.", first)
    assert re.search(rf"Examples?:\s[^$]*{name}\b", command.help)
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert re.fullmatch(r"[A-Z]\w+ .*\.", parameter.help or ""), parameter.name
            assert len(parameter.help.split()) >= 3, parameter.name


def test_help_needs_no_torch() -> None:
    script = (
        "import sys; sys.argv = ['fewgraft', '--help']\n"
        "from fewgraft.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'the command would start slowly'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_version(run: Run) -> None:
    assert re.fullmatch(r"fewgraft \d+\.\d+\.\d+\n", run("--version").stdout)


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fewgraft.__version__"}
    assert f"\nversion: {fewgraft.__version__}\n" in (PROJECT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == fewgraft.__version__


def test_doctor_tells_what_is_there_and_what_is_missing(run: Run) -> None:
    result = run("doctor")
    assert result.returncode == 0, result.stderr
    for word in ("python", "torch", "threads", "GiB free", "icons"):
        assert word in result.stdout
    assert "missing; fewgraft data add cifar-fs --from PATH" in result.stdout
    shown = result.stdout.partition("Extras")[2].partition("Data")[0].splitlines()
    assert [line.split()[0] for line in shown if line.strip()] == doctor.extras()


def test_doctor_shows_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a secret")
    monkeypatch.setattr(doctor, "_installed", lambda package: True)
    monkeypatch.setattr(doctor, "_version", lambda package: "9.9")
    found = doctor._ray()
    assert found["library"].startswith("9.9")
    assert found["token"] == "from the environment"
    assert "a secret" not in str(found)
    monkeypatch.setattr(doctor, "_installed", lambda package: False)
    assert "fewgraft[ray]" in doctor._ray()["library"]


def test_doctor_knows_every_extra_and_what_it_brings() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert set(doctor.PURPOSES) == set(project["project"]["optional-dependencies"])
    assert doctor.packages("hf") == ["transformers"]
    assert {"pytest", "transformers", "fastapi"} <= set(doctor.packages("dev"))


def test_an_extra_that_is_missing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda package: package != "uvicorn")
    doctor.doctor()
    shown = capsys.readouterr().out
    assert "missing uvicorn; pip install 'fewgraft[serve]'" in shown
    assert "backbones of Hugging Face: there" in shown


def test_the_zoo_says_where_its_models_are(run: Run) -> None:
    result = run("zoo", "list")
    assert result.returncode == 0, result.stderr
    assert re.search(
        r"icons +pre-trained, algorithm-1, algorithm-2: .*in the package", result.stdout
    )
    assert "fewgraft train mini-imagenet" in result.stdout


def test_the_whole_way_of_a_folder(run: Run, make_tree: Callable[..., Path]) -> None:
    root = make_tree(classes=12, pictures=12, name="photos [old] & new")
    (root / "class 00" / "broken [1].jpg").write_bytes(b"")
    added = run("data", "add", "my photos", "--from", str(root), "--size", "32")
    assert added.returncode == 0, added.stderr
    assert "added my photos: 144 pictures of 12 classes at 32×32" in added.stdout
    assert "class 00/broken [1].jpg: empty file" in added.stderr
    assert "my photos" in run("data", "list").stdout
    assert "as it should be" in run("data", "verify", "my photos").stdout
    shown = run("data", "show", "my photos", "--out", "sheet one.png")
    assert shown.returncode == 0, shown.stderr
    assert "wrote sheet one.png" in shown.stdout
    strict = run("data", "add", "my photos", "--from", str(root), "--strict")
    assert strict.returncode == 2
    assert "1 of 145 pictures" in strict.stderr


def test_show_draws_a_sheet_that_opens(run: Run, tmp_path: Path) -> None:
    result = run("data", "show", "icons", "--part", "novel/test", "--classes", "5")
    assert result.returncode == 0, result.stderr
    with Image.open(tmp_path / "icons.png") as sheet:
        assert sheet.height > 5 * 48
    assert "novel/test" in result.stdout


def test_an_episode_to_look_at(run: Run, tmp_path: Path) -> None:
    result = run("episode", "--shots", "5", "--number", "3", "--out", "episode.png")
    assert result.returncode == 0, result.stderr
    assert "5-way 5-shot" in result.stdout
    assert re.search(r"hash [0-9a-f]{16}", result.stdout)
    with Image.open(tmp_path / "episode.png") as drawing:
        assert drawing.width > 500
    again = run("episode", "--shots", "5", "--number", "3")
    assert result.stdout.startswith(again.stdout)


BAD = [
    (["data", "add", "x", "--from", "gone"], "gone does not exist"),
    (["data", "add", "x"], "--from"),
    (["data", "add", "icons", "--from", "."], "embedded"),
    (["data", "add", "x", "--from", "."], "class folders"),
    (["data", "add", "../x", "--from", "."], "cannot be a name"),
    (["data", "add", "x", "--kind", "foldr", "--from", "."], "Did you mean 'folder'"),
    (["data", "add", "cifar-fs", "--from", "."], "does not look like cifar-fs"),
    (["data", "add", "x", "--from", ".", "--size", "2"], "8 to 1024"),
    (["data", "show", "iconz"], "Did you mean 'icons'"),
    (["data", "show", "icons", "--part", "novel/tset"], "Did you mean 'novel/test'"),
    (["data", "verify", "nothing"], "no data set 'nothing'"),
    (["episode", "--setting", "s3i"], "Did you mean"),
    (["episode", "--shots", "70"], "pictures in novel/test"),
    (["episode", "--shots", "0"], "shots"),
    (["demo", "--episodes", "0"], "episodes"),
    (["train", "icon"], "Did you mean 'icons'"),
    (["train", "icons", "--set", "pretraining.stepz=3"], "Did you mean 'steps'"),
    (["train", "icons", "--set", "nothing"], "name=value"),
    (["train", "icons", "--stage", "algorithm-3"], "algorithm-2"),
    (["train", "cifar-fs"], "data add cifar-fs"),
    (["unheard-of"], "unheard-of"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_what_is_wrong_is_said_without_a_traceback(
    run: Run, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.returncode == 2, result.stdout
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_in_the_way_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments in (["data", "show", "icons"], ["demo"]):
        result = run(*arguments, "--out", "file/inside.png")
        assert result.returncode == 2, result.stdout
        assert "cannot write" in result.stderr
        assert "Traceback" not in result.stderr


def test_the_demo_shows_pictures_an_episode_and_a_table(run: Run, tmp_path: Path) -> None:
    result = run("demo", "--episodes", "4")
    assert result.returncode == 0, result.stderr
    words = ("base/train", "novel/test", "s2i (test)", "With adaptation", "Acc", "Done in")
    for word in words:
        assert word in result.stdout
    assert "prefers-color-scheme" in (tmp_path / "fewgraft-demo" / "report.html").read_text()
    for name in ("icons.png", "episode.png"):
        with Image.open(tmp_path / "fewgraft-demo" / name) as picture:
            picture.load()


def test_a_terminal_without_our_letters_does_not_end_a_run(run: Run) -> None:
    result = run("episode", PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr


def test_the_wheel_holds_everything_and_works_from_any_folder(run: Run, tmp_path: Path) -> None:
    wheels, source = tmp_path / "wheels", tmp_path / "source"
    source.mkdir()  # a copy: building leaves files behind that a later wheel would pick up
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(PROJECT / name, source)
    shutil.copytree(PROJECT / "src" / "fewgraft", source / "src" / "fewgraft")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = wheels.glob("fewgraft-*.whl")
    assert wheel.name.startswith(f"fewgraft-{fewgraft.__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert any(name.endswith("embedded/icons.npy.xz") for name in names)
    assert any(name.endswith("embedded/icons-attribution.csv") for name in names)
    assert any(name.endswith("zoo_models/icons/algorithm-2/model.safetensors") for name in names)
    assert any(name.endswith("recipes/icons.toml") for name in names)
    assert any(name.endswith("/LICENSE") for name in names)
    script = "import fewgraft, sys; print(fewgraft.__file__); from fewgraft.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-S", "-c", _without_editable(script), "data", "verify", "icons"],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert str(tmp_path / "installed") in result.stdout
    assert "as it should be" in result.stdout


def test_messages_name_no_folder_of_the_source_tree() -> None:
    """Someone with the installed package has no docs/, tools/ or benchmarks/ to look into."""
    package = PROJECT / "src" / "fewgraft"
    named = [
        f"{path.relative_to(package)}: {text}"
        for path in sorted(package.rglob("*.py"))
        for text in _messages(path)
        if re.search(r"\b(docs|tools|benchmarks|examples|campaign|tests|src)/", text)
    ]
    assert named == []


def _messages(path: Path) -> Iterator[str]:
    """The texts of a module that are not docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        for child in ast.iter_child_nodes(node):
            if not isinstance(node, ast.Expr) and isinstance(child, ast.Constant):
                yield str(child.value)


def _without_editable(script: str) -> str:
    """Let the dependencies be found, but not this checkout."""
    paths = [p for p in sys.path if p.endswith("site-packages")]
    return f"import sys; sys.path += {paths!r}; {script}"


def test_an_interrupt_while_it_is_loaded_shows_no_traceback(tmp_path: Path) -> None:
    library = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "typer.py").write_text(library)  # the first thing that the command loads
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "fewgraft", "--help"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")
