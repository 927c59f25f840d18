"""Tuning in one pass: in order, kept, resumed, and written into a copy of the recipe."""

import math
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fewgraft.bench.results import Results
from fewgraft.bench.runner import Bench, Job
from fewgraft.bench.tune import Tuned, tune
from fewgraft.bench.tuned_recipe import with_entries
from fewgraft.cli import app
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec
from fewgraft.methods.beside_base import BesideBase
from fewgraft.metrics import Scores
from fewgraft.training.recipe import Chosen, load_recipe
from fewgraft.zoo import models_folder

FEW = 4
WORDS = ["bench", "tune", "icons", "--methods", "+pr+bias,+pr", "--shots", "1"]
WORDS += ["--episodes", str(FEW)]


def found(names: list[str], tried: Results | None = None) -> list[Tuned]:
    recipe, folder = load_recipe("icons"), models_folder("icons")
    return list(tune(recipe, folder, names, [1], FEW, Bench(), tried=tried))


@pytest.mark.usefixtures("_shared_home")
def test_a_bias_is_tuned_on_top_of_the_refinement_that_was_found() -> None:
    plain, biased = found(["+pr+bias", "+pr"])
    assert (plain.chosen.method, biased.chosen.method) == ("+pr", "+pr+bias")
    assert set(biased.chosen.hyper) == {"unlabelled_bias", "bias"}, "the rest is +pr's"
    for candidate in biased.candidates:
        assert {k: candidate.hyper[k] for k in plain.best.hyper} == plain.best.hyper
    recipe = load_recipe("icons").with_chosen(plain.chosen).with_chosen(biased.chosen)
    assert recipe.hyper("+pr+bias", 1) == biased.best.hyper
    [alone] = found(["+pr+bias"])
    kept = load_recipe("icons").hyper("+pr+bias", 1)
    assert alone.best.hyper["temperature"] == kept["temperature"], "as the recipe has it"


@pytest.mark.usefixtures("_shared_home")
def test_values_that_were_tried_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One value is lost on the way, as after an interruption: it alone is computed again."""
    values = (0.1, 1.0, 10.0)
    monkeypatch.setattr(BesideBase, "search", {"scale": values})
    tried = Results(tmp_path / "tried")
    [first] = found(["+soft-k-means"], tried)
    rows = tried.rows()
    assert len(rows) == len(first.candidates) == len(values)
    for row, candidate in zip(rows, first.candidates, strict=True):
        assert row.hyper["scale"] == candidate.hyper["scale"]
        assert row.interval("acc").mean == pytest.approx(candidate.accuracy)
        assert (row.split, row.setting, row.episodes) == ("val", "s2i", FEW)
    lines = (tried.folder / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tried.folder / "results.jsonl").write_bytes(b"".join(lines[:-1]))
    computed: list[Job] = []
    chunk = Bench.chunk

    def noted(bench: Bench, job: Job, some: range) -> Scores:
        computed.append(job)
        return chunk(bench, job, some)

    monkeypatch.setattr(Bench, "chunk", noted)
    monkeypatch.setattr(Bench, "chunk_of_each", None)
    [second] = found(["+soft-k-means"], tried)
    assert [job.hyper["scale"] for job in computed] == [rows[-1].hyper["scale"]]
    assert second.chosen == first.chosen
    assert len(tried.rows()) == len(rows)


@pytest.mark.usefixtures("_shared_home")
def test_the_copy_of_the_recipe_is_used_like_the_recipe(tmp_path: Path) -> None:
    copy = tmp_path / "mine.toml"
    result = CliRunner().invoke(app, [*WORDS, "--out", str(copy)])
    assert result.exit_code == 0, result.output
    recipe, before = load_recipe(str(copy)), load_recipe("icons")
    assert recipe.hash == before.hash
    assert recipe.hyper("+pr", 5) == before.hyper("+pr", 5)
    printed = tomllib.loads(result.stdout[: result.stdout.index("wrote ")])["evaluation"]
    assert [entry["method"] for entry in printed] == ["+pr", "+pr+bias"]
    assert recipe.hyper("+pr", 1) == printed[0]["hyper"]
    assert recipe.hyper("+pr+bias", 1) == printed[0]["hyper"] | printed[1]["hyper"]
    tried = Results(tmp_path / "mine.tried").rows()
    searches = [method_spec(name).method.search for name in ("+pr", "+pr+bias")]
    counts = [math.prod(map(len, search.values())) for search in searches]
    assert sum(counts) <= len(tried) <= sum(counts) + len(counts), "and the registered values"
    again = CliRunner().invoke(app, [*WORDS, "--out", str(copy)])
    assert again.stdout == result.stdout
    assert len(Results(tmp_path / "mine.tried").rows()) == len(tried)


@pytest.mark.usefixtures("_shared_home")
def test_a_best_value_at_the_border_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    method = type(method_spec("teen").method)
    monkeypatch.setattr(method, "search", {"alpha": (0.1, 0.2, 0.3), "temperature": (1.0, 16.0)})
    result = CliRunner().invoke(
        app, ["bench", "tune", "icons", "--methods", "teen", "--shots", "1", "--episodes", "20"]
    )
    assert result.exit_code == 0, result.output
    [entry] = tomllib.loads(result.stdout)["evaluation"]
    told = f"# alpha = {entry['hyper']['alpha']} is at the border of what was tried"
    assert (told in result.output) == (entry["hyper"]["alpha"] != 0.2)
    assert "# temperature" not in result.output, "two values have no middle"


@pytest.mark.usefixtures("_shared_home")
def test_what_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline = tmp_path / "inline.toml"
    text = (Path(__file__).parents[1] / "src/fewgraft/recipes/icons.toml").read_text()
    head = text[: text.index("[pretraining]")]
    rest = text[text.index("[pretraining]") : text.index("[[evaluation]]")]
    inline.write_text(head + 'evaluation = [{ method = "+pr", shots = 1, hyper = {} }]\n' + rest)
    words = ["bench", "tune", str(inline), "--methods", "+pr", "--shots", "1", "--episodes", "2"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert result.exit_code != 0
    assert "is a folder" in str(result.exception)
    copy = tmp_path / "copy.toml"
    monkeypatch.setattr(Bench, "chunk", None)
    result = CliRunner().invoke(app, [*words, "--out", str(copy)])
    assert result.exit_code != 0
    assert isinstance(result.exception, FewgraftError)
    assert not copy.exists()


TEXT = """# A recipe.
name = "x"

[a]
b = [
    [1, 2],
]

# Chosen on 600.
[[evaluation]]
method = "+pr"
shots = 1
hyper = { steps = 1 }

[[evaluation]]
method = "+pr"
shots = 5
hyper = { steps = 2 }

# By hand.
[[evaluation]]
method = "proposed"
shots = 1

[evaluation.hyper]
lr = 0.1 # small

# The end.
"""


def entry(method: str, shots: int, steps: int) -> Chosen:
    return Chosen(method=method, shots=shots, hyper={"steps": steps, "inner": {}})


def test_comments_stay_with_the_entries_that_stay() -> None:
    some = with_entries(TEXT, [entry("+pr", 1, 7)], "New.")
    assert some.startswith("# A recipe.\n")
    assert '# Chosen on 600.\n[[evaluation]]\nmethod = "+pr"\nshots = 5' in some
    assert "lr = 0.1 # small\n\n# The end.\n\n# New.\n[[evaluation]]" in some
    assert [e["shots"] for e in tomllib.loads(some)["evaluation"]] == [5, 1, 1]
    both = with_entries(TEXT, [entry("+pr", 1, 7), entry("+pr", 5, 8)], "New.")
    assert "Chosen on 600" not in both
    assert "# By hand.\n" in both
    moved = with_entries(TEXT, [entry("proposed", 1, 3)], "New.")
    assert "By hand" not in moved
    assert "lr = 0.1" not in moved
    again = with_entries(both, [entry("+pr", 1, 7), entry("+pr", 5, 8)], "New.")
    assert again.count("# New.") == 1, "its comment went with the entries"


def test_entries_that_cannot_be_found_in_the_text_are_refused() -> None:
    inline = 'evaluation = [{ method = "+pr", shots = 1, hyper = {} }]\n'
    with pytest.raises(FewgraftError, match="cannot be replaced"):
        with_entries(inline, [entry("+pr", 1, 7)], "New.")
