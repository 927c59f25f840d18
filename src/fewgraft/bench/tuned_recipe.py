"""Entries of `bench tune` put into the text of a recipe, which keeps its comments."""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fewgraft.errors import FewgraftError
from fewgraft.training.recipe import Chosen

_HEADER = re.compile(r"""\s*\[\[?[\w."'+ -]+\]\]?\s*(#.*)?$""")
_ENTRY = re.compile(r"\s*\[\[\s*evaluation\s*\]\]")
_OF_ENTRY = re.compile(r"\s*\[\s*evaluation\s*\.")
Key = tuple[str, int | None]  # method and shots of an entry


def tried_folder(recipe: Path) -> Path:
    """Where results of all candidates are kept, beside a tuned recipe."""
    return recipe.with_suffix(".tried")


@dataclass(frozen=True)
class _Section:
    """A header with its lines, and what stands before it: blank lines and comments."""

    lead: str
    body: str

    @property
    def key(self) -> Key | None:
        """Of an entry; None for any other section."""
        if not _ENTRY.match(self.body):
            return None
        entry = tomllib.loads(self.body)["evaluation"][0]
        return entry.get("method"), entry.get("shots")

    @property
    def has_comment(self) -> bool:
        return "#" in self.lead


def entry_of(chosen: Chosen) -> str:
    """An entry of a recipe as text."""
    method, hyper = json.dumps(chosen.method), _value(chosen.hyper)
    return f"[[evaluation]]\nmethod = {method}\nshots = {chosen.shots}\nhyper = {hyper}"


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    if not value:
        return "{}"
    return f"{{ {', '.join(f'{name} = {_value(inner)}' for name, inner in value.items())} }}"


def with_entries(text: str, chosen: Sequence[Chosen], heading: str) -> str:
    """A recipe's text with these entries for `[[evaluation]]`, which replace those that it has.

    The new ones stand at the end, below a comment, the heading. A comment of the recipe stays as
    long as one of the entries below it does.
    """
    new = [entry.model_dump() for entry in chosen]
    replaced = {(entry.method, entry.shots) for entry in chosen}
    try:
        sections, end = _sections(text)
        kept = [s.lead + s.body for s in _left(sections, replaced)]
        added = "\n\n".join(map(entry_of, chosen))
        found = f"{''.join([*kept, end]).rstrip()}\n\n# {heading}\n{added}\n"
        whole = tomllib.loads(found) == _expected(tomllib.loads(text), new, replaced)
    except tomllib.TOMLDecodeError:
        whole = False
    if not whole:
        raise FewgraftError(
            "the entries of this recipe cannot be replaced",
            "Give each of them as [[evaluation]] with lines for method, shots and hyper.",
        )
    return found


def _expected(
    content: dict[str, Any], new: Sequence[dict[str, Any]], replaced: set[Key]
) -> dict[str, Any]:
    """What the text has to say in the end."""
    old = content.get("evaluation", [])
    stay = [entry for entry in old if (entry.get("method"), entry.get("shots")) not in replaced]
    return content | {"evaluation": [*stay, *new]}


def _left(sections: Sequence[_Section], replaced: set[Key]) -> list[_Section]:
    """The sections without those entries; a comment moves on to the next entry that it is for."""
    left, carried = [], ""
    for section in sections:
        if section.key in replaced:
            carried = section.lead if section.has_comment else carried
        else:
            moves = carried and section.key and not section.has_comment
            left.append(replace(section, lead=carried) if moves else section)
            carried = ""
    return left


def _sections(text: str) -> tuple[list[_Section], str]:
    """A text in sections, and what stands below the last of them."""
    bodies = [""]
    for line in text.splitlines(keepends=True):
        of_entry = _OF_ENTRY.match(line) and _ENTRY.match(bodies[-1])
        if _HEADER.match(line) and not of_entry:
            bodies.append("")
        bodies[-1] += line
    sections, lead = [], ""
    for body in bodies:
        own, next_lead = _without_end(body)
        sections.append(_Section(lead, own))
        lead = next_lead
    return sections, lead


def _without_end(body: str) -> tuple[str, str]:
    """A section, and the blank lines and comments at its end, which belong to the next one."""
    lines = body.splitlines(keepends=True)
    n = len(lines)
    while n and (not lines[n - 1].strip() or lines[n - 1].lstrip().startswith("#")):
        n -= 1
    return "".join(lines[:n]), "".join(lines[n:])
