"""Run the notebooks in examples/ and store what they print and draw.

python tools/run_notebooks.py                                  # all of them
python tools/run_notebooks.py examples/evaluate-and-compare.ipynb
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LONGEST = 1200  # seconds of a cell


def executed(path: Path) -> NotebookNode:
    """The notebook, run from the top in the folder of the examples."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=LONGEST,
        kernel_name="python3",
        resources={"metadata": {"path": str(EXAMPLES)}},
    )
    client.execute()
    return notebook


def tidy(notebook: NotebookNode) -> NotebookNode:
    """Without times, and without progress, which goes to standard error."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            kept = [output for output in cell.outputs if output.get("name") != "stderr"]
            cell.outputs = [_plain(output) for output in kept]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _plain(output: NotebookNode) -> NotebookNode:
    """A drawing as a picture alone, not as the text that stands for it as well."""
    if "image/png" in output.get("data", {}):
        output.data = {"image/png": output.data["image/png"]}
        output.metadata = {}
    return output


def main() -> None:
    """Run those that are named, or all."""
    named = [Path(name) for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("FEWGRAFT_HOME", home)
        for path in named or sorted(EXAMPLES.glob("*.ipynb")):
            notebook = tidy(executed(path))
            nbformat.write(notebook, path)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
