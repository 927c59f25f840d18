"""Damage to files: their bytes, the numbers that can be read in them, and what they say."""

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

HUGE = 10**12
NUMBERS: tuple[int, ...] = (
    *(0, -1, 1, 2, 5, 7, 255, 256, 4096, 65536, 10**6, 2**31, 2**31 - 1, 2**32, 2**53),
    *(2**63, 2**64, -(2**63), HUGE, 10**30, 10**400),
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(0.0, -0.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
    *(None, True, False, "", "a", "nan", "\0", "../../../etc/passwd", "\ud800", "ä" * 300),
    *([], [[]], [None], ["a", "a"], [1, "a", None], [[1], [2, 3]], list(range(1000))),
    *({}, {"a": 1}, {"": {"": {}}}, {"config": 1, "width": 2}),
)
TOKENS = (
    *(
        b"\0",
        b"\xff" * 8,
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"\xc3\x28",
        b"\n",
        b"\r",
        b'"',
        b",",
        b"#",
    ),
    *(
        b"nan",
        b"-1",
        b"1e999",
        b"9" * 5000,
        b"null",
        b"[",
        b"{",
        b"[" * 3000,
        b"(" * 3000,
        b"=" * 9,
    ),
    *(b"../../../../etc/passwd", b"a" * 200_000, b"|O", b"<f8", b"int32", b"PK\x03\x04", b"PAR1"),
    *((number % 2**64).to_bytes(8, "little") for number in NUMBERS),
    *((number % 2**32).to_bytes(4, "little") for number in NUMBERS),
)


def damaged(content: bytes, name: str, random: Random) -> bytes:
    """The content of a file, with one to three kinds of damage."""
    kind = _STRUCTURED.get(name.rpartition(".")[2])
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        change = random.choice(_ANYWHERE if kind is None else (*_ANYWHERE[:4], kind, kind, kind))
        try:
            content = change(content, random)
        except Exception:  # it is no such file any more
            content = random.choice(_ANYWHERE)(content, random)
    return content


# --- bytes ---


def _flip(content: bytes, random: Random) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(random.choice((1, 1, 4, 64))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _cut_or_repeat(content: bytes, random: Random) -> bytes:
    start, end = sorted(random.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + content[start:end] * random.choice((0, 0, 2, 3)) + content[end:]


def _change_number(content: bytes, random: Random) -> bytes:
    """A number in plain digits, as headers have them, often near the beginning."""
    found = list(re.finditer(rb"\d+", content[:100_000]))
    if not found:
        return _insert(content, random)
    one = random.choice(found[:40] if random.random() < 0.5 else found)
    number = str(random.choice(NUMBERS)).encode()
    if random.random() < 0.5:  # as long as before, so that what follows stays where it is
        number = bytes(random.choice(b"0123456789") for _ in one.group())
    return content[: one.start()] + number + content[one.end() :]


def _insert(content: bytes, random: Random) -> bytes:
    place, token = random.randrange(len(content) + 1), random.choice(TOKENS)
    return content[:place] + token + content[place:]


def _overwrite(content: bytes, random: Random) -> bytes:
    place, token = random.randrange(len(content) + 1), random.choice(TOKENS)[:64]
    return content[:place] + token + content[place + len(token) :]


def _other(_: bytes, random: Random) -> bytes:
    return random.choice((b"", b"\0" * 100, b"[]", b"{}", b"null", random.choice(TOKENS)))


_ANYWHERE: tuple[Callable[[bytes, Random], bytes], ...] = (
    _flip,
    _truncate,
    _change_number,
    _insert,
    _overwrite,
    _cut_or_repeat,
    _other,
)


# --- what a file says ---


def changed_value(content: Any, random: Random) -> Any:
    """A nested value with one of its parts replaced, removed, renamed or added."""
    if random.random() < 0.15 or not isinstance(content, (dict, list)) or not content:
        return random.choice(VALUES)
    if isinstance(content, list):
        place, items = random.randrange(len(content)), list(content)
        what = random.randrange(6)
        if what == 0:
            del items[place]
        elif what == 1:
            items *= 2
        else:
            items[place] = changed_value(items[place], random)
        return items
    key, table = random.choice(list(content)), dict(content)
    what = random.randrange(8)
    if what == 0:
        del table[key]
    elif what == 1:
        table[f"{key}x"] = table.pop(key)
    elif what == 2:
        table[random.choice(("x", "", "steps", "format", key))] = random.choice(VALUES)
    else:
        table[key] = changed_value(table[key], random)
    return table


def _json(content: bytes, random: Random) -> bytes:
    text = json.dumps(changed_value(json.loads(content), random))
    return text.encode("utf-8", "surrogatepass")


def _json_lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines()
    place = random.randrange(len(lines))
    lines[place] = _json(lines[place], random)
    return b"\n".join(lines) + b"\n"


def _toml(content: bytes, random: Random) -> bytes:
    lines = content.decode().splitlines()
    places = [i for i, line in enumerate(lines) if "=" in line]
    place = random.choice(places)
    name, _, value = lines[place].partition("=")
    what = random.randrange(5)
    if what == 0:
        lines[place] = f"{name.strip()}x = {value}"
    elif what == 1:
        lines[place] = f"[{name.strip()}]"
    elif what == 2:
        lines[place] = re.sub(r"[\d.]+", str(random.choice(NUMBERS)), lines[place], count=1)
    else:
        lines[place] = f"{name} = {_toml_value(random.choice(VALUES))}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml_value(value: Any) -> str:
    if isinstance(value, float) or value is None:
        return str(value).replace("None", "[[[]]]")
    if isinstance(value, dict):
        return "{ a = 1, b = { c = [] } }"
    return json.dumps(value).replace("null", "0")


def _csv(content: bytes, random: Random) -> bytes:
    lines = [line.split(",") for line in content.decode().splitlines()]
    line = random.choice(lines)
    what = random.randrange(4)
    if what == 0:
        line.append(random.choice(("", "x", "base")))
    elif what == 1:
        line.pop()
    else:
        line[random.randrange(len(line))] = str(random.choice(VALUES))
    return "\n".join(",".join(line) for line in lines).encode("utf-8", "surrogatepass")


def _pickle(content: bytes, random: Random) -> bytes:
    """What an honest pickle of the wrong things looks like; the content is one of ours."""
    return pickle.dumps(_changed_arrays(pickle.loads(content), random), protocol=2)


def _changed_arrays(content: Any, random: Random) -> Any:
    if isinstance(content, np.ndarray):
        return changed_array(content, random)
    if isinstance(content, dict) and content and random.random() < 0.8:
        key = random.choice(list(content))
        return {**content, key: _changed_arrays(content[key], random)}
    if isinstance(content, list) and content and random.random() < 0.5:
        place = random.randrange(len(content))
        return [*content[:place], _changed_arrays(content[place], random), *content[place + 1 :]]
    return changed_value(content, random)


def changed_array(array: "np.ndarray[Any, Any]", random: Random) -> Any:
    """Another type, shape, length or number."""
    kind = random.choice((np.float64, np.int64, np.uint8, np.str_, np.bool_, object))
    return random.choice(
        (
            lambda: array.astype(kind),
            lambda: array[:0],
            lambda: array[..., :0],
            lambda: array[..., None],
            lambda: array.reshape(-1),
            lambda: np.concatenate([array, array]),
            lambda: array[1:],
            lambda: array.astype(float) * float("nan"),
            lambda: np.broadcast_to(array[..., None], (*array.shape, 5)).copy(),
            array.tolist,
            lambda: random.choice(VALUES),
        )
    )()


def _npy(content: bytes, random: Random) -> bytes:
    array = np.load(io.BytesIO(content))
    if random.random() < 0.5:  # the header lies
        header = io.BytesIO()
        shape = tuple(random.choice((0, 1, 3, 2**40, -1)) for _ in range(random.randrange(5)))
        descr = random.choice(("|u1", "<i4", "<f4", "|O", "<f8", "|V0", "<U99999999", "zz", 7))
        about = {"descr": descr, "fortran_order": random.choice((False, True, 3)), "shape": shape}
        np.lib.format.write_array_header_2_0(header, about)
        return header.getvalue() + bytes(array.tobytes())
    packed = io.BytesIO()
    np.save(packed, np.asarray(changed_array(array, random)))
    return packed.getvalue()


def _npz(content: bytes, random: Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    what = random.randrange(5)
    if what == 0:
        members["other.npy"] = members.pop(name)
    elif what == 1:  # a few bytes that unpack to many
        about = {"descr": "|u1", "fortran_order": False, "shape": (6, 1, 10**7, 3)}
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, about)
        members[name] = header.getvalue() + bytes(18 * 10**7)
    else:
        members[name] = _npy(members[name], random)
    packed = io.BytesIO()
    how = random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(packed, "w", how if what != 1 else zipfile.ZIP_DEFLATED) as archive:
        for member, inside in members.items():
            archive.writestr(member, inside)
    return packed.getvalue()


def _safetensors(content: bytes, random: Random) -> bytes:
    import torch
    from safetensors.torch import load, save

    tensors = load(content)
    length = int.from_bytes(content[:8], "little")
    about = json.loads(content[8 : 8 + length]).get("__metadata__")
    if about and random.random() < 0.5:
        about = {
            key: json.dumps(changed_value(json.loads(value), random))
            for key, value in about.items()
        }
    else:
        name = random.choice(list(tensors))
        tensor = tensors[name]
        tensors[name] = random.choice(
            (
                tensor[None].clone,
                tensor.flatten()[:1].clone,
                lambda: (
                    torch.full_like(tensor, random.choice((float("nan"), float("inf"), 3e38)))
                    if tensor.is_floating_point()
                    else tensor
                ),
                lambda: tensor.to(random.choice((torch.int8, torch.bool, torch.bfloat16))),
                lambda: tensor.to(torch.float8_e4m3fn) if tensor.is_floating_point() else tensor,
                lambda: torch.zeros(0),
            )
        )()
        if random.random() < 0.2:
            tensors[f"{name}x"] = tensors.pop(name)
    return save(tensors, about)


def _parquet(content: bytes, random: Random) -> bytes:
    import pyarrow
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(content))
    name = random.choice(table.column_names)
    rows = len(table)
    values: Any = random.choice(
        (
            [None] * rows,
            ["a"] * rows,
            [0.5] * rows,
            [2**62] * rows,
            [-1] * rows,
            [[1]] * rows,
            [{"path": "a"}] * rows,
            [{"bytes": b"a", "path": 3}] * rows,
            [{"bytes": "text", "path": "a"}] * rows,
            [{"bytes": None, "path": None}] * rows,
            [b"bytes"] * rows,
        )
    )
    what = random.randrange(4)
    if what == 0:
        table = table.drop_columns([name])
    elif what == 1:
        table = table.slice(0, random.choice((0, 1)))
    else:
        table = table.set_column(table.column_names.index(name), name, pyarrow.array(values))
    packed = io.BytesIO()
    pq.write_table(table, packed)
    return packed.getvalue()


def _torch(content: bytes, random: Random) -> bytes:
    import torch

    state = torch.load(io.BytesIO(content), weights_only=True)
    name = random.choice(list(state))
    state[name] = random.choice(
        (
            lambda: torch.ones(1).expand(3, 10**9),
            lambda: torch.ones(3, 4, device="meta"),
            lambda: torch.ones(3, 4).to_sparse(),
            lambda: torch.ones(3, 4, dtype=torch.complex64),
            lambda: torch.full((3, 4), float("nan")),
            lambda: random.choice(VALUES),
            lambda: {"inside": dict(state)},
        )
    )()
    packed = io.BytesIO()
    torch.save(state, packed, _use_new_zipfile_serialization=random.random() < 0.5)
    return packed.getvalue()


_STRUCTURED: dict[str, Callable[[bytes, Random], bytes]] = {
    "json": _json,
    "jsonl": _json_lines,
    "toml": _toml,
    "csv": _csv,
    "pickle": _pickle,
    "pkl": _pickle,
    "train": _pickle,
    "test": _pickle,
    "npy": _npy,
    "npz": _npz,
    "safetensors": _safetensors,
    "checkpoint": _safetensors,
    "parquet": _parquet,
    "pt": _torch,
}
