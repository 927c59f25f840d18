"""Make the tables and figures of docs/results.md anew: run every command that the page names.

Rows that are in results/ already are not computed again, so that it goes on after an interruption;
a folder from before is moved aside to begin anew. Tables of `bench table` replace those of the page
that have the same heading, and figures go to docs/img. The words around them are written by hand.

    python tools/write_results.py          # all of it: hours
    python tools/write_results.py --list   # the commands, in order
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
FIGURES = ("ratio", "tsne", "scatter")
_COMMAND = re.compile(r"fewgraft bench (?:run|ratio|tsne|scatter|table) [^`]*?(?=`|\n(?! {4}))")


def commands(page: str) -> list[list[str]]:
    """Words of every command of the page that makes rows, tables or figures, each once."""
    joined = page.replace("\\\n", " ")
    found = (shlex.split(" ".join(text.split())) for text in _COMMAND.findall(joined))
    whole = [words for words in found if not any("..." in word for word in words)]
    unique = {tuple(words): words for words in whole}
    return sorted(unique.values(), key=lambda words: words[2] != "run")


def with_tables(page: str, printed: str) -> str:
    """The page with each printed table in place of the one that has the same heading."""
    for heading, table in _tables(printed).items():
        old = _tables(page).get(heading)
        if old is not None:
            page = page.replace(f"{heading}\n\n{old}", f"{heading}\n\n{table}")
    return page


def _tables(text: str) -> dict[str, str]:
    """Tables by the heading that stands above them."""
    return dict(re.findall(r"^(#{2,4} [^\n]+)\n\n((?:\|[^\n]*\n)+)", text, re.MULTILINE))


def _run(words: list[str]) -> str:
    print("$", shlex.join(words), file=sys.stderr, flush=True)
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Run, and write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the commands only")
    only_list = parser.parse_args().list
    todo = commands(PAGE.read_text())
    if only_list:
        print("\n".join(shlex.join(words) for words in todo))
        return
    for words in todo:
        printed = _run(words)
        if words[2] == "table":
            PAGE.write_text(with_tables(PAGE.read_text(), printed))
    for folder in sorted(path for path in (ROOT / "results").iterdir() if path.is_dir()):
        for name in FIGURES:
            target = ROOT / "docs" / "img" / f"{folder.name}-{name}.png"
            if target.exists() and (folder / f"{name}.png").exists():
                shutil.copyfile(folder / f"{name}.png", target)


if __name__ == "__main__":
    main()
