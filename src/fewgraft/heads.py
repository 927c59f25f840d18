"""The classes that a classifier from elsewhere knows: one weight vector per class, with its name.

Read from safetensors, an ONNX file or a torch state dict. Only directions count in a cosine
classifier: biases are dropped, and a linear head answers a little differently without them.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewgraft.errors import FewgraftError, reading
from fewgraft.extras import extra
from fewgraft.parsing import read_text
from fewgraft.weight_files import (
    STATE_DICTS,
    Tensors,
    file_and_name,
    is_whole,
    read_tensors,
)

SUFFIXES = (".safetensors", ".onnx", *STATE_DICTS)


def read_head(
    path: str | Path, names: Path, width: int | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Class weights [K, d] in float32 and the K class names.

    `path` is FILE, or FILE#tensor.name where more than one tensor has K rows (and `width` columns,
    if that is given); `names` is a text file with one name per line, or a JSON list. Biases are
    dropped.
    """
    file, tensor = file_and_name(path)
    classes = read_names(names)
    shape = f"[{len(classes)}, {width or 'd'}]"
    tensors = _tensors(file, last=not tensor)
    if tensor:
        if tensor not in tensors:
            raise FewgraftError(f"{file} has no tensor '{tensor}'", _listed(tensors))
        tensors = {tensor: tensors[tensor]}
    with reading(file, "file of class weights"):
        found = {
            name: matrix
            for name, value in tensors.items()
            if (matrix := _class_weights(value, len(classes), width)) is not None
        }
    if len(found) != 1:
        how_many = "more than one tensor" if found else "no tensor"
        hint = f"Name one: {file}#NAME. {_listed(found)}" if found else _listed(tensors)
        raise FewgraftError(f"{file} has {how_many} of class weights {shape}", hint)
    ((name, weights),) = found.items()
    with reading(file, "file of class weights"):
        _refuse_undirected(weights, f"{file}#{name}", classes)
    return weights, classes


def read_names(path: Path) -> tuple[str, ...]:
    """Class names from a text file with one per line, or from a JSON list."""
    with reading(path, "list of class names", "One per line, or a JSON list."):
        text = read_text(path)
        names = json.loads(text) if path.suffix == ".json" else text.strip("\r\n").splitlines()
        if not isinstance(names, list) or not all(isinstance(n, str) and n.strip() for n in names):
            raise ValueError("it holds something else than names")
    counts = Counter(name.strip() for name in names)
    if not counts:
        raise FewgraftError(f"{path} names no class")
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise FewgraftError(f"{path} names {', '.join(twice[:5])} more than once")
    return tuple(counts)


def _tensors(file: Path, last: bool) -> Tensors:
    """All that could be class weights, by name; of a graph, `last` asks for its last layer only."""
    if not file.is_file():
        raise FewgraftError(f"{file} is not a file")
    if file.suffix not in SUFFIXES:
        raise FewgraftError(f"{file} is of no known kind", f"Known: {', '.join(SUFFIXES)}")
    if file.suffix != ".onnx":
        return read_tensors(file)
    with reading(file, "file of onnx"):
        return _of_graph(extra("onnx", "onnx"), file, last)


def _of_graph(onnx: Any, file: Path, last: bool) -> Tensors:
    """The constants of a graph; those that features are multiplied by as [K, d].

    A graph multiplies by weights [d, K], or by [K, d] that it transposes (Gemm with transB).
    """
    graph = onnx.load(str(file)).graph
    tensors = {value.name: _as_tensor(onnx, value) for value in graph.initializer}
    layers = []
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = _as_tensor(onnx, node.attribute[0].t)
        if node.op_type in ("Gemm", "MatMul") and node.input[1] in tensors:
            layers.append(node.input[1])
            if not any(a.name == "transB" and a.i for a in node.attribute):
                tensors[layers[-1]] = tensors[layers[-1]].T
    if last and not layers:
        raise FewgraftError(
            f"{file} has no Gemm or MatMul with weights of its own",
            f"Name a tensor: {file}#NAME. {_listed(tensors)}",
        )
    return {layers[-1]: tensors[layers[-1]]} if last else tensors


def _as_tensor(onnx: Any, value: Any) -> Tensor:
    return torch.from_numpy(onnx.numpy_helper.to_array(value).copy())


def _class_weights(value: Tensor, classes: int, width: int | None) -> Tensor | None:
    """The tensor as float32 [K, d] if it can be class weights; [K, d, 1, 1] is a convolution's."""
    if not is_whole(value):
        return None
    if value.ndim == 4 and value.shape[2:] == (1, 1):
        value = value.flatten(1)
    fits = value.ndim == 2 and len(value) == classes and width in (None, value.shape[1])
    return value.float().contiguous() if fits and value.is_floating_point() else None


def _refuse_undirected(weights: Tensor, where: str, classes: tuple[str, ...]) -> None:
    length = torch.linalg.vector_norm(weights, dim=1)
    bad = (~torch.isfinite(length) | (length == 0)).nonzero().flatten().tolist()
    if bad:
        raise FewgraftError(f"{where}: the weights of '{classes[bad[0]]}' are zero or not finite")


def _listed(tensors: Tensors) -> str:
    """Names and shapes, the matrices only, for an error."""
    shown = [f"{name} {list(value.shape)}" for name, value in tensors.items() if value.ndim >= 2]
    more = f", and {len(shown) - 12} more" if len(shown) > 12 else ""
    return f"It has: {', '.join(shown[:12])}{more}." if shown else "It has no matrices."
