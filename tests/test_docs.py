"""What the documents show works."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fewgraft.cli import app
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec, methods

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
BENCHMARK = (ROOT / "docs" / "benchmark.md").read_text()
LONGEST_LINE = 100  # rows of tables cannot be broken


def test_the_example_of_a_method_is_a_method(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", BENCHMARK, re.DOTALL)
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
    with pytest.raises(FewgraftError, match="defines 0 methods"):
        method_spec(str(tmp_path / "empty.py"))
    with pytest.raises(FewgraftError, match="there is no file"):
        method_spec(str(tmp_path / "none.py"))


def test_every_method_is_documented() -> None:
    for name in methods():
        assert f"`{name}`" in BENCHMARK, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short_enough_to_read(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    long = [n for n, line in lines if len(line) > LONGEST_LINE and line.lstrip()[0] != "|"]
    assert long == []


def test_links_between_documents_lead_somewhere() -> None:
    for document in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
