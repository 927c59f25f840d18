"""Write docs/api.md from the docstrings of the public names.

python tools/write_api.py
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import fewgraft
from fewgraft import evaluation, methods, metrics
from fewgraft.methods import base

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
WIDTH = 100
SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Example")
# By what someone wants to do.
CHAPTERS = {
    "Evaluate methods": ("evaluate", "Evaluation", "FeatureSet", "EpisodeSettings"),
    "Write a method": ("Method", "Task", "Refinement", "methods"),
    "Data and models": ("open_data", "load_model"),
    "Classify photos": ("FewgraftClassifier", "load"),
    "Errors": ("FewgraftError",),
}
# What the public names return and take.
FURTHER = (
    evaluation.Difference,
    metrics.Scores,
    metrics.Interval,
    metrics.Paired,
    base.NovelWeights,
    base.Queries,
    base.MethodSpec,
)
OPENING = """\
# Python API

<!-- Written by tools/write_api.py from the docstrings: change those and run it again. -->

`import fewgraft` offers the names of this page; each is imported when it is first used. Shapes
stand in brackets: E episodes, S support, U unlabelled and Q query pictures, N novel and N_b base
classes, d features. Examples go on from `import fewgraft`.
"""


def page() -> str:
    """The whole page."""
    parts = [OPENING]
    for chapter, names in CHAPTERS.items():
        parts.append(f"## {chapter}\n")
        for name in names:
            parts += entry(getattr(fewgraft, name), f"fewgraft.{name}")
    parts.append("## Further types\n")
    for kind in FURTHER:
        parts += entry(kind, f"{kind.__module__}.{kind.__name__}")
    return "\n".join(parts)


def entry(thing: object, name: str, level: str = "###") -> Iterator[str]:
    """A heading, how it is called, and what its docstring says; then its own methods."""
    yield f"{level} `{name}`\n"
    if not isinstance(thing, ModuleType):
        yield f"```\n{signature(thing)}\n```\n"
    yield from rendered(inspect.getdoc(thing) or "")
    if isinstance(thing, ModuleType):
        for function in (methods.methods, methods.method_spec):
            yield from entry(inspect.unwrap(function), f"{name}.{function.__name__}", "####")
    elif inspect.isclass(thing):
        for own, found in vars(thing).items():
            member = found.__func__ if isinstance(found, classmethod) else found
            if inspect.isfunction(member) and member.__doc__ and _is_explained(own, member):
                yield from entry(member, f"{name}.{own}", "####")


def _is_explained(name: str, member: object) -> bool:
    """A method with sections; the others are one line each in the code."""
    headings = [f"\n{section}:\n" for section in SECTIONS]
    return name[0] != "_" and any(h in (inspect.getdoc(member) or "") for h in headings)


def signature(thing: object) -> str:
    """As it stands in the code, one argument per line where it is long."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body  # type: ignore[arg-type]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    returns = ""
    if isinstance(node, ast.ClassDef):
        arguments = _class_arguments(node)
    else:
        arguments = _arguments(node)
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    text = f"{node.name}({', '.join(arguments)}){returns}"
    if len(text) > WIDTH:
        text = "\n".join([f"{node.name}(", *(f"    {a}," for a in arguments), f"){returns}"])
    return re.sub(r'(: |-> )"([^"]+)"', r"\1\2", text.replace("'", '"'))  # names ahead of time


def _class_arguments(node: ast.ClassDef) -> list[str]:
    """Of its constructor; a dataclass has its fields."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return _arguments(part)
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    return [_field(part) for part in fields if "ClassVar" not in ast.unparse(part.annotation)]


def _field(part: ast.AnnAssign) -> str:
    text = f"{ast.unparse(part.target)}: {ast.unparse(part.annotation)}"
    default = ast.unparse(part.value) if part.value else ""
    return f"{text} = {default}" if default and not default.startswith("field(") else text


def _arguments(node: ast.FunctionDef) -> list[str]:
    """With their annotations and defaults, without self."""
    given = node.args
    plain = given.args
    before = [""] * (len(plain) - len(given.defaults))
    defaults = [*before, *(f" = {ast.unparse(d)}" for d in given.defaults)]
    found = [ast.unparse(a) + d for a, d in zip(plain, defaults, strict=True)]
    found = [text for text in found if text not in ("self", "cls")]
    if given.vararg:
        found.append(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        found.append("*")
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(ast.unparse(argument) + (f" = {ast.unparse(default)}" if default else ""))
    return [*found, f"**{ast.unparse(given.kwarg)}"] if given.kwarg else found


def rendered(docstring: str) -> Iterator[str]:
    """Prose as it is, sections as lists, the example as a block."""
    heading = re.compile(rf"^({'|'.join(SECTIONS)}):\n", re.MULTILINE)
    prose, *rest = heading.split(docstring)
    for paragraph in prose.strip().split("\n\n"):
        yield _filled(paragraph) + "\n"
    for section, body in zip(rest[::2], rest[1::2], strict=True):
        text = textwrap.dedent(body).strip()
        if section == "Example":
            yield f"```pycon\n{text}\n```\n"
        elif section == "Returns":
            yield _filled(f"**Returns:** {text}") + "\n"
        else:
            yield f"**{section}:**\n"
            yield "\n".join(_item(item) for item in re.split(r"\n(?! )", text)) + "\n"


def _item(text: str) -> str:
    name, _, about = text.partition(": ")
    return _filled(f"- `{name}`: {about}", "  ")


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()), WIDTH, subsequent_indent=indent, break_on_hyphens=False
    )


if __name__ == "__main__":
    PAGE.write_text(page())
