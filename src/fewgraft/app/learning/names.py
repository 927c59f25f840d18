"""Names of classes: those that are nearly the same, and the one that is taken."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence

UNKNOWN = "unknown"  # the answer where no class fits


def folded(name: str) -> str:
    """The name as a hurried reader sees it: case, odd spaces and ways to write an accent gone."""
    caseless = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(unicodedata.normalize("NFKC", caseless).split())


def names_alike(known: Sequence[str], taught: Sequence[str]) -> Iterator[str]:
    """A warning for each group of names that differ in little, where one of them is new."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys([*known, *taught]):
        alike[folded(name)].append(name)
    new = set(taught) - set(known)
    for names in alike.values():
        if len(names) > 1 and new & set(names):
            listed = " and ".join(f"'{name}'" for name in names)
            yield f"{listed} are different classes; if they are one, give them the same name"


def called_unknown(taught: Sequence[str]) -> Iterator[str]:
    """A warning for a class whose name cannot be told from the answer that no class fits."""
    for name in taught:
        if folded(name) == UNKNOWN:
            yield (
                f"a class is called '{name}', which is also the answer where no class fits; give "
                "it another name"
            )
