"""Write docs/recipes.md from the models that read a recipe.

python tools/write_recipes.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fewgraft.augment import Augmentation
from fewgraft.training import recipe

PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipes.md"
OPENING = """\
# Recipes

<!-- Written by tools/write_recipes.py from src/fewgraft/training/recipe.py: change that and run it
again. -->

A recipe is a TOML file that says all that a training run does and with which hyper-parameters its
models are evaluated. `fewgraft train --init photos --data birds > birds.toml` writes one to start
from; those in the package (`icons`, `cifar-fs`, `cifar-100-sessions`, `mini-imagenet`,
`tiered-imagenet`) are in
[src/fewgraft/recipes](../src/fewgraft/recipes). `--set pretraining.steps=100` changes a setting for
one run. A setting that does not exist, or a value out of its range, is an error that names it.
"""
SECTIONS: dict[str, type[BaseModel]] = {
    "The recipe itself": recipe.Recipe,
    "[pretraining]": recipe.Pretraining,
    "[distillation]": recipe.Distillation,
    "[metatraining]": recipe.Metatraining,
    "[learning.METHOD]": recipe.Learning,
    "[validation]": recipe.Validation,
    "[[evaluation]]": recipe.Chosen,
    "[[sessions]]": recipe.ChosenOverSessions,
    "optimisation, of each kind of training": recipe.Optimisation,
    "augmentation, of pre-training and meta-training": Augmentation,
    "rotation, of pre-training": recipe.Rotation,
}


def page() -> str:
    """The whole page."""
    return "\n".join([OPENING, *(_section(title, model) for title, model in SECTIONS.items())])


def _section(title: str, model: type[BaseModel]) -> str:
    said = " ".join((model.__doc__ or "").split("\n\n")[0].split())
    lines = [
        f"## {title}",
        "",
        *_wrapped(said),
        "",
        "| setting | default | values | meaning |",
        "|---|---|---|---|",
        *(_line(name, field) for name, field in model.model_fields.items()),
        "",
    ]
    return "\n".join(lines)


def _wrapped(text: str, width: int = 100) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = ""
        line = f"{line} {word}".strip()
    yield line


def _line(name: str, field: FieldInfo) -> str:
    assert field.description, f"{name} has no meaning"
    said = " ".join(field.description.split()).replace("|", "\\|")
    return f"| `{name}` | {_default(field)} | {_values(field)} | {said} |"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "must be given"
    if field.default is None:
        return "none"
    if isinstance(field.default, BaseModel) or field.default in ((), {}):
        return ""
    text = str(list(field.default) if isinstance(field.default, tuple) else field.default)
    return f"`{text.lower() if isinstance(field.default, bool) else text}`"


def _values(field: FieldInfo) -> str:
    """What a setting may be."""
    kinds = [kind for kind in _kinds(field.annotation) if kind is not type(None)]
    if get_origin(kinds[0]) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kinds[0]))
    bounds = [bound for part in field.metadata for bound in _bounds(part)]
    return " and ".join([*map(_kind_name, kinds[:1]), *bounds]).replace(" and ", ", ", 1)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    union = get_origin(annotation) is not None and type(None) in get_args(annotation)
    return get_args(annotation) if union else (annotation,)


def _kind_name(kind: Any) -> str:
    names = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text"}
    if kind in names:
        return names[kind]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "table"
    return "table" if get_origin(kind) is dict else "list"


def _bounds(part: Any) -> Iterator[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    for name, sign in signs.items():
        if isinstance(part, annotated_types.BaseMetadata) and hasattr(part, name):
            yield f"{sign} {_number(getattr(part, name))}"


def _number(value: float) -> str:
    return "2⁶³" if value == 2**63 else f"{value:,}"


if __name__ == "__main__":
    PAGE.write_text(page())
