"""Features of any network under a name: rows as `evaluate` gives them, errors without traces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import fewgraft
from fewgraft.bench.results import Results
from fewgraft.cli import app
from fewgraft.errors import FewgraftError
from fewgraft.home import imports_root
from fewgraft.imported import choose_gamma, import_features, open_import, parts_of, read_features
from fewgraft.methods.prototype_refinement import PrototypeRefinement

BASE, NOVEL, EACH, WIDTH = 24, 12, 72, 16


def foreign(scale: float = 300.0) -> dict[str, NDArray[Any]]:
    """Clouds around a centre per class, long and short; novel classes in lists."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(BASE + NOVEL, WIDTH))
    labels = np.repeat(np.arange(BASE + NOVEL), EACH)
    features = centres[labels] + 0.8 * rng.normal(size=(len(labels), WIDTH))
    names = np.array([f"class {n:02}" for n in range(BASE + NOVEL)])
    return {
        "features": scale * features,
        "labels": names[labels],
        "novel_val": names[BASE : BASE + 6],
        "novel_test": names[BASE + 6 :],
    }


def saved(path: Path, **changes: Any) -> Path:
    arrays = {**foreign(), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def command(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", *words])


def test_imported_features_have_the_rows_that_python_gives(tmp_path: Path) -> None:
    path = saved(tmp_path / "f.npz")
    result = command("import", "mine", "--features", str(path), "--backbone", "ViT")
    assert result.exit_code == 0, result.output
    assert result.output.count("(chosen)") == 1
    found, backbone = open_import(imports_root() / "mine")
    assert (backbone, found.n_base, len(found.classes)) == ("ViT", BASE, BASE + NOVEL)
    assert found.classes[0] == "class 00"
    out = tmp_path / "results"
    words = ["--methods", "+pr,soft-k-means,+soft-k-means", "--shots", "1", "--episodes", "5"]
    result = command("run", "mine", *words, "--settings", "s2i,semi-fsl", "--out", str(out))
    assert result.exit_code == 0, result.output
    rows = {(row.method, row.setting): row for row in Results(out).rows()}
    assert set(rows) == {
        ("+pr", "s2i"),
        ("+pr", "semi-fsl"),
        ("+soft-k-means", "s2i"),
        ("soft-k-means", "semi-fsl"),
    }
    expected = fewgraft.evaluate(PrototypeRefinement(), found, setting="s2i", shots=1, episodes=5)
    scores = Results(out).scores(rows["+pr", "s2i"])
    np.testing.assert_allclose(scores.acc, expected.scores.acc)
    assert {row.backbone for row in rows.values()} == {"ViT"}
    assert command("rerun", rows["+pr", "s2i"].id, "--in", str(out)).exit_code == 0
    assert command("table", str(out)).exit_code == 0
    report = command("report", str(out))
    assert report.exit_code == 0, report.output
    tuned = command(
        "tune", "mine", "--methods", "soft-k-means", "--shots", "1", "--episodes", "3",
        "--out", str(tmp_path / "tuned.toml"),
    )  # fmt: skip
    assert tuned.exit_code == 0, tuned.output
    assert "soft-k-means" in (tmp_path / "tuned.toml").read_text()


def test_a_method_that_needs_pictures_is_refused() -> None:
    arrays = foreign()
    lists = {"val": arrays["novel_val"], "test": arrays["novel_test"]}
    parts = parts_of(arrays["labels"], lists)
    import_features(fewgraft.FeatureSet(arrays["features"], arrays["labels"], parts), "mine")
    result = command("run", "mine", "--methods", "proposed", "--settings", "s2i", "--episodes", "2")
    assert isinstance(result.exception, FewgraftError)
    assert "moves the network" in str(result.exception)


def test_lists_of_classes_divide_the_pictures() -> None:
    arrays = foreign()
    labels = arrays["labels"]
    parts = parts_of(labels, {"val": arrays["novel_val"], "test": arrays["novel_test"]})
    assert set(parts[np.isin(labels, arrays["novel_val"])]) == {"novel/val"}
    first = parts[labels == "class 00"]
    counts = [int((first == f"base/{split}").sum()) for split in ("train", "val", "test")]
    assert counts == [43, 15, 14]
    assert (
        parts == parts_of(labels, {"val": arrays["novel_val"], "test": arrays["novel_test"]})
    ).all()


def test_gamma_is_the_best_on_validation_episodes(tmp_path: Path) -> None:
    features = read_features(saved(tmp_path / "f.npz"))
    found = choose_gamma(features, [1])
    assert found[features.gamma] == max(found.values())
    assert len(set(found.values())) > 1, "it makes a difference"
    features.gamma = 40.0
    by_hand = fewgraft.evaluate(
        PrototypeRefinement(), features, setting="s2i", episodes=100, split="val", seed=3
    )
    assert found[40.0] == pytest.approx(by_hand.scores.acc.mean().item())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"labels": None}, "no array 'labels'"),
        ({"novel_val": None, "novel_test": None}, "which classes are novel"),
        ({"novel_test": np.array(["class 99"])}, "which no label is"),
        ({"features": np.full((BASE + NOVEL) * EACH, 1.0)}, "not \\[n, d\\]"),
        ({"labels": np.array([{}], object)}, "not a readable .npz file"),
        ({"weights": np.ones((3, WIDTH))}, "weights are"),
        ({"novel_val": None}, "--gamma"),
    ],
)
def test_mistakes_are_told_and_nothing_is_kept(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = saved(tmp_path / "f.npz", **changes)
    result = command("import", "mine", "--features", str(path))
    assert isinstance(result.exception, FewgraftError)
    with pytest.raises(FewgraftError, match=problem):
        raise result.exception
    assert not imports_root().exists() or not list(imports_root().iterdir())


@pytest.mark.parametrize("name", ["icons", "../up", ""])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "f.npz")
    result = command("import", name, "--features", str(path), "--gamma", "10")
    assert isinstance(result.exception, FewgraftError)
    (tmp_path / "no.npz").write_bytes(b"nothing")
    result = command("import", "mine", "--features", str(tmp_path / "no.npz"))
    assert isinstance(result.exception, FewgraftError)
    result = command("import", "mine", "--features", str(tmp_path / "absent.npz"))
    assert isinstance(result.exception, FewgraftError)
