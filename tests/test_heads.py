"""Class weights of foreign heads: found, turned the right way round, or refused with a reason."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fewgraft.errors import FewgraftError
from fewgraft.extras import extra
from fewgraft.heads import read_head, read_names

pytestmark = pytest.mark.numerical

NAMES = ("ant", "bee", "cat and dog")
WEIGHTS = torch.arange(12.0).view(3, 4) + 1


@pytest.fixture
def names(tmp_path: Path) -> Path:
    path = tmp_path / "names.txt"
    path.write_text("\n".join(NAMES) + "\n")
    return path


def stored(path: Path, **tensors: Tensor) -> Path:
    tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin"])
def test_the_one_matrix_with_a_row_for_each_class(tmp_path: Path, names: Path, suffix: str) -> None:
    file = stored(
        tmp_path / f"my head{suffix}",
        conv__weight=torch.ones(3, 4, 3, 3),
        fc__weight=WEIGHTS.half(),
        fc__bias=torch.ones(3),
        steps=torch.ones(3, 4, dtype=torch.int64),
    )
    weights, classes = read_head(file, names)
    assert classes == NAMES
    assert weights.dtype == torch.float32
    assert torch.equal(weights, WEIGHTS)


def test_a_head_that_is_a_convolution(tmp_path: Path, names: Path) -> None:
    file = stored(tmp_path / "head.safetensors", w=WEIGHTS[:, :, None, None].clone())
    assert torch.equal(read_head(file, names)[0], WEIGHTS)


def test_a_state_dict_inside_a_checkpoint(tmp_path: Path, names: Path) -> None:
    torch.save({"epoch": 3, "state_dict": {"fc.weight": WEIGHTS}}, file := tmp_path / "a.ckpt")
    assert torch.equal(read_head(file, names)[0], WEIGHTS)


def test_several_candidates_are_listed_and_one_can_be_named(tmp_path: Path, names: Path) -> None:
    file = stored(tmp_path / "head#1.safetensors", a=WEIGHTS, b=-WEIGHTS, c=torch.ones(3, 5))
    with pytest.raises(FewgraftError, match="more than one tensor") as caught:
        read_head(file, names)
    for candidate in ("a [3, 4]", "b [3, 4]", "c [3, 5]"):
        assert candidate in caught.value.hint
    assert read_head(file, names, width=5)[0].shape == (3, 5)
    other = stored(tmp_path / "head.safetensors", a=WEIGHTS, b__w=-WEIGHTS)
    assert torch.equal(read_head(f"{other}#b.w", names)[0], -WEIGHTS)
    with pytest.raises(FewgraftError, match="no tensor 'd'"):
        read_head(f"{other}#d", names)


def onnx_file(path: Path, kind: str) -> Path:
    """A head behind another layer, in one of the ways that exporters write it."""
    onnx = extra("onnx", "onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT

    def constant(name: str, value: Tensor) -> Any:
        return onnx.numpy_helper.from_array(value.contiguous().numpy(), name)

    below = helper.make_node("MatMul", ["x", "below"], ["f"])
    initialisers = [constant("below", torch.ones(3, 4)), constant("b", torch.ones(3))]
    if kind == "transposed gemm":
        nodes = [below, helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1)]
        initialisers.append(constant("w", WEIGHTS))
    elif kind == "gemm":
        nodes = [below, helper.make_node("Gemm", ["f", "w", "b"], ["y"])]
        initialisers.append(constant("w", WEIGHTS.T))
    else:
        made = helper.make_node("Constant", [], ["w"], value=constant("w", WEIGHTS.T))
        nodes = [below, made, helper.make_node("MatMul", ["f", "w"], ["y"])]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, floats, [None, 3])] for name in ("x", "y")
    )
    graph = helper.make_graph(nodes, "head", inputs, outputs, initialisers)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


@pytest.mark.parametrize("kind", ["transposed gemm", "gemm", "matmul of a constant node"])
def test_the_last_product_of_an_onnx_graph(tmp_path: Path, names: Path, kind: str) -> None:
    weights, _ = read_head(onnx_file(tmp_path / "head.onnx", kind), names)
    assert torch.equal(weights, WEIGHTS)


def test_another_initialiser_of_an_onnx_graph_by_name(tmp_path: Path, names: Path) -> None:
    file = onnx_file(tmp_path / "head.onnx", "gemm")
    names.write_text("a\nb\nc\nd")
    assert torch.equal(read_head(f"{file}#below", names)[0], torch.ones(4, 3))
    with pytest.raises(FewgraftError, match="no tensor 'above'"):
        read_head(f"{file}#above", names)


def test_onnx_without_the_package(
    tmp_path: Path, names: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = onnx_file(tmp_path / "head.onnx", "gemm")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(FewgraftError, match="needs the package onnx") as caught:
        read_head(file, names)
    assert "fewgraft[onnx]" in caught.value.hint


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx", ".pt", ".bin"])
@pytest.mark.parametrize("content", [b"", b"no weights at all", bytes(64)])
def test_damaged_files(tmp_path: Path, names: Path, suffix: str, content: bytes) -> None:
    (file := tmp_path / f"head{suffix}").write_bytes(content)
    with pytest.raises(FewgraftError, match="head"):
        read_head(file, names)


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("a pickle ran",)


def test_a_pickle_never_runs(
    tmp_path: Path, names: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"w": WEIGHTS, "x": Evil()}, file := tmp_path / "head.pt")
    with pytest.raises(FewgraftError, match="not a file of PyTorch weights"):
        read_head(file, names)
    assert capsys.readouterr().out == ""


def test_what_else_can_be_wrong(tmp_path: Path, names: Path) -> None:
    with pytest.raises(FewgraftError, match="is not a file"):
        read_head(tmp_path / "absent.pt", names)
    (tmp_path / "head.txt").write_text("1 2 3")
    with pytest.raises(FewgraftError, match="no known kind"):
        read_head(tmp_path / "head.txt", names)
    file = stored(tmp_path / "head.safetensors", w=WEIGHTS[:2].clone())
    with pytest.raises(FewgraftError, match=r"no tensor of class weights \[3, d\]") as caught:
        read_head(file, names)
    assert "w [2, 4]" in caught.value.hint
    with pytest.raises(FewgraftError, match=r"no tensor of class weights \[3, 9\]"):
        read_head(stored(file, w=WEIGHTS), names, width=9)
    for bad in (0.0, float("nan"), float("inf")):
        weights = WEIGHTS.clone()
        weights[1] = bad
        with pytest.raises(FewgraftError, match="'bee' are zero or not finite"):
            read_head(stored(file, w=weights), names)


def test_names_as_text_and_as_json(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffÄpfel \r\nbee\r\n".encode())
    assert read_names(tmp_path / "a.txt") == ("Äpfel", "bee")
    (tmp_path / "a.json").write_text(json.dumps(NAMES))
    assert read_names(tmp_path / "a.json") == NAMES


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.json", b"{}"),
        ("a.json", b"[1, 2]"),
        ("a.json", b'["a", "a"]'),
        ("a.json", b'["a"'),
        ("a.json", b"[]"),
        ("a.json", b"[" * 100_000),
        ("a.txt", b""),
        ("a.txt", b"a\n\nb\n"),
        ("a.txt", b"a\nb\na\n"),
        ("a.txt", b"\xff\xfe\x00"),
    ],
)
def test_lists_that_are_no_names(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(FewgraftError, match=file):
        read_names(tmp_path / file)


def test_absent_names(tmp_path: Path) -> None:
    with pytest.raises(FewgraftError, match="does not exist"):
        read_names(tmp_path / "absent.txt")
