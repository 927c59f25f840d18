"""Small files that are read whole: text, JSON and TOML that a person or this project wrote.

To be used inside `errors.reading`, which says of which file the problem is.
"""

import csv
import io
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

LARGEST = 64 << 20  # bytes: whatever is larger is no text of ours

Kind = TypeVar("Kind")


def read_whole(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of an ordinary file; a device or a pipe might never end."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it is larger than {largest >> 20} MB")
    return content


def read_text(path: Path) -> str:
    """UTF-8, with or without a mark at its beginning."""
    return read_whole(path).decode("utf-8-sig")


def read_json(path: Path) -> Any:
    """Whatever the JSON says."""
    return json.loads(read_whole(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Whatever the TOML says."""
    return tomllib.loads(read_whole(path).decode())


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The header of a table and its rows; one with other columns than the header is an error."""
    lines = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    header = next(lines, [])
    if len(set(header)) < len(header):
        raise ValueError("two columns have the same name")
    rows = []
    for cells in filter(None, lines):  # a line without any cell is no row
        if len(cells) != len(header):
            raise ValueError(f"line {lines.line_num} has {len(cells)} columns, not {len(header)}")
        rows.append(dict(zip(header, cells, strict=True)))
    return header, rows


def validated(kind: type[Kind], content: Any) -> Kind:
    """`content` as a model or dataclass; the first problem is a `ValueError` with its field."""
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """Which field, and what is wrong with it."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
