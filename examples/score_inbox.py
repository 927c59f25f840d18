"""How many photos of the inbox were named rightly: of old classes, of new ones.

python examples/score_inbox.py out.csv inbox.csv photos/new
"""

import csv
import sys
from pathlib import Path


def main() -> None:
    answers, truth, new = (Path(argument) for argument in sys.argv[1:4])
    labels = {row["photo"]: row["label"] for row in csv.DictReader(truth.open())}
    taught = {folder.name for folder in new.iterdir()}
    rows = list(csv.DictReader(answers.open()))
    for kind, wanted in (("old", False), ("new", True)):
        own = [row for row in rows if (labels[row["photo"]] in taught) == wanted]
        right = sum(row["best"] == labels[row["photo"]] for row in own)
        unknown = sum(row["label"] == "unknown" for row in own)
        print(f"{kind} classes: {right} of {len(own)} right, {unknown} answered 'unknown'")


if __name__ == "__main__":
    main()
