"""The page of results is made from the commands that it names."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = """# Results

```
fewgraft bench run icons --methods a,b \\
    --settings s2i
fewgraft bench table results/icons --layout all --format markdown
```

### One, %

| Method | Acc |
| :-- | --: |
| A | 1.00 |

Words: `fewgraft bench ratio icons` (one shot), `fewgraft bench run icons --methods c` computes
them, as `fewgraft bench compare a b` and `fewgraft bench tune icons --methods ...` do not. Again:
`fewgraft bench ratio icons`.

### Two, %

| Method | Acc |
| :-- | --: |
| A | 2.00 |
"""


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    sys.modules.pop("write_results", None)


def test_commands_of_the_page_rows_first() -> None:
    import write_results

    assert [" ".join(words) for words in write_results.commands(PAGE)] == [
        "fewgraft bench run icons --methods a,b --settings s2i",
        "fewgraft bench run icons --methods c",
        "fewgraft bench table results/icons --layout all --format markdown",
        "fewgraft bench ratio icons",
    ]
    real = write_results.commands(write_results.PAGE.read_text())
    assert sum(words[2] == "run" for words in real) > 10
    assert ["fewgraft", "bench", "tsne", "cifar-fs"] in real


def test_a_table_is_replaced_below_its_heading_alone() -> None:
    import write_results

    printed = "### One, %\n\n| Method | Acc |\n| :-- | --: |\n| A | 3.00 |\n| B | 4.00 |\n"
    found = write_results.with_tables(PAGE, printed + "\n### Three, %\n\n| M |\n| - |\n")
    assert "| A | 3.00 |\n| B | 4.00 |\n\nWords" in found
    assert "| A | 1.00 |" not in found
    assert "| A | 2.00 |" in found
    assert "Three" not in found
    assert write_results.with_tables(found, printed) == found
