"""A network in an ONNX file, as in `onnx:network.onnx` or `onnx:network.onnx?size=224&crop=0.875`.

What the graph does not tell stands behind the question mark: `size` where its input has any,
`mean` and `std` (one number, or one a channel with commas between) and `crop`.
"""

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import torch
from pydantic import Field
from torch import Tensor, nn

from fewgraft.backbones import BackboneSettings, BackboneSpec, KnownSettings, onnx_trial
from fewgraft.data.store import LARGEST_SIZE, Channels
from fewgraft.errors import FewgraftError, nearest, reading
from fewgraft.extras import extra, first_line
from fewgraft.files import temporary_folder
from fewgraft.parsing import read_whole, validated

EXTRA = "onnx"
# Of colour pictures, and of the same in grey.
IMAGENET_MEAN = {3: (0.485, 0.456, 0.406), 1: (0.449,)}
IMAGENET_STD = {3: (0.229, 0.224, 0.225), 1: (0.226,)}
LARGEST = 2**31  # bytes of a file: more cannot be one message
OPTIONS = ("size", "crop", "mean", "std")


class GraphSettings(KnownSettings):
    """What is known of a graph beside."""

    input: str
    output: str
    single: bool
    bytes: int = Field(ge=1, le=LARGEST)
    channels: Channels


class OnnxNetwork(nn.Module):
    """Pictures [n, channels, size, size] → features [n, d], computed by onnxruntime.

    The file's bytes are a buffer, so that a saved model carries them. It has no parameters and
    gives no gradients: such a network cannot move.
    """

    def __init__(self, file: Tensor, graph: BackboneSettings) -> None:
        super().__init__()
        self.file: Tensor
        self.register_buffer("file", file)
        self.graph = dict(graph)
        self._session: Any = None
        self.register_load_state_dict_post_hook(_forget_session)  # type: ignore[no-untyped-call]

    def forward(self, pictures: Tensor) -> Tensor:
        """Features [n, d]; maps [n, d, h, w] are averaged."""
        if pictures.requires_grad:
            raise FewgraftError("a network in an ONNX file gives no gradients", "It cannot move.")
        if self._session is None:
            self._session = open_session(self.file, pictures.shape[-1])
        # A graph with a batch of 1 written into it takes its pictures one by one.
        batch = 1 if self.graph["single"] else max(1, len(pictures))
        parts = [
            self._run(pictures[start : start + batch]) for start in range(0, len(pictures), batch)
        ]
        return torch.cat(parts).to(pictures.device)

    def _run(self, pictures: Tensor) -> Tensor:
        inputs = {self.graph["input"]: pictures.detach().float().contiguous().cpu().numpy()}
        try:
            output = torch.from_numpy(self._session.run([self.graph["output"]], inputs)[0])
            output = output.mean((2, 3)) if output.ndim == 4 else output
        except Exception as error:  # onnxruntime has a dozen kinds of its own
            raise FewgraftError(f"onnxruntime failed: {first_line(error)}") from error
        if output.ndim != 2 or len(output) != len(pictures):
            raise FewgraftError(f"the network gives {list(output.shape)}, not features [n, d]")
        return output

    def __getstate__(self) -> dict[str, Any]:
        """Without the session, which cannot be copied and is opened anew."""
        return {**self.__dict__, "_session": None}


def _forget_session(network: Any, _: object) -> None:
    """Other bytes, another session."""
    network._session = None


def open_session(file: Tensor, size: int = 0) -> Any:
    """An onnxruntime session on the CPU with as many threads as torch has.

    `size` is that of the pictures, for a graph that does not tell.
    """
    runtime = extra("onnxruntime", EXTRA)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only, and those are raised
    content = file.cpu().numpy().tobytes()
    try_in_a_child(content, size)
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen kinds of its own
        raise _cannot_open(first_line(error)) from error


@lru_cache(maxsize=8)
def try_in_a_child(content: bytes, size: int) -> None:
    """Refuse a file that onnxruntime cannot open and run, or that ends the process which tries."""
    extra("onnx", EXTRA)
    with temporary_folder() as folder:
        path = folder / "network.onnx"
        path.write_bytes(content)
        try:
            tried = subprocess.run(
                [sys.executable, "-I", onnx_trial.__file__, str(path), str(size)],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=2 * onnx_trial.SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _cannot_open("it does not come to an end") from None
    if tried.returncode:
        said = tried.stderr.strip().splitlines()
        raise _cannot_open(said[-1] if said and tried.returncode == 1 else "it crashes on it")


def _cannot_open(why: str) -> FewgraftError:
    return FewgraftError(
        f"onnxruntime cannot open the network: {why}",
        "It must be one .onnx file with its weights inside.",
    )


def onnx_backbone(rest: str, settings: BackboneSettings) -> BackboneSpec:
    """FILE or FILE?options; a saved one is made again from its settings."""
    path, options = _parsed(rest)
    if settings:
        validated(GraphSettings, dict(settings))
        file = torch.empty(0, dtype=torch.uint8)
        make = partial(_empty, settings)
    else:
        file = _read(path)
        settings = _settings(file, options)
        make = partial(_filled, file, settings)
    return BackboneSpec(
        name=f"onnx:{rest}",
        make=make,
        width=settings["width"],
        size=settings["size"],
        summary=f"the network in {path.name}",
        trained=partial(OnnxNetwork, file, settings) if len(file) else None,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        crop=settings["crop"],
        settings=settings,
        licence="that of the file",
    )


def _parsed(rest: str) -> tuple[Path, Mapping[str, str]]:
    path, query = rest, ""
    if not Path(rest).exists():  # a file may have a question mark in its name
        path, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for option in options:
        if option not in OPTIONS:
            raise FewgraftError(f"there is no option '{option}' of onnx:", nearest(option, OPTIONS))
    return Path(path), options


def _read(path: Path) -> Tensor:
    with reading(path, "readable ONNX file"):
        content = read_whole(path, LARGEST)
    if not content:
        raise FewgraftError(f"{path} is empty")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _settings(file: Tensor, options: Mapping[str, str]) -> BackboneSettings:
    """What the graph tells, and what the options add to it."""
    size = _size(options["size"]) if "size" in options else 0
    session = open_session(file, size)
    name, single, channels, size = _input(session, options)
    graph = {"input": name, "output": _output(session), "single": single}
    with torch.inference_mode():
        width = OnnxNetwork(file, graph)(torch.zeros(1, channels, size, size)).shape[1]
    crop = _floats(options["crop"], 1)[0] if "crop" in options else 1.0
    if not 0 < crop <= 1:
        raise FewgraftError(f"crop is a share of the picture, above 0 and at most 1, not {crop}")
    given = {
        option: _floats(options[option], channels)
        for option in ("mean", "std")
        if option in options
    }
    return {
        **graph,
        "bytes": file.numel(),
        "channels": channels,
        "width": width,
        "size": size,
        "crop": crop,
        "mean": given.get("mean", list(IMAGENET_MEAN[channels])),
        "std": given.get("std", list(IMAGENET_STD[channels])),
    }


def _input(session: Any, options: Mapping[str, str]) -> tuple[str, bool, int, int]:
    """The input's name, whether it takes one picture only, its channels and its size."""
    first = session.get_inputs()[0]
    if len(session.get_inputs()) != 1 or first.type != "tensor(float)" or len(first.shape) != 4:
        raise FewgraftError("the network does not take pictures, floats [n, channels, h, w], alone")
    batch, channels, height, width = first.shape
    if channels not in IMAGENET_MEAN or (isinstance(batch, int) and batch != 1):
        raise FewgraftError(
            f"the network takes {first.shape}, not [n, channels, h, w] with 1 or 3 channels"
        )
    sizes = {side for side in (height, width) if isinstance(side, int)}
    if "size" in options:
        sizes.add(_size(options["size"]))
    if not sizes:
        raise FewgraftError(
            "the network takes pictures of any size", "Name one: onnx:FILE?size=224"
        )
    if max(sizes) > LARGEST_SIZE:
        raise FewgraftError(f"pictures of {max(sizes)} pixels are beyond {LARGEST_SIZE}")
    if len(sizes) > 1:
        raise FewgraftError(f"the network takes {first.shape}, and that is no square of one size")
    return first.name, isinstance(batch, int), channels, sizes.pop()


def _size(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) < 1:
        raise FewgraftError(f"'{text}' is no size", "onnx:FILE?size=224")
    return int(text)


def _output(session: Any) -> str:
    """The first output that can be features."""
    for output in session.get_outputs():
        if output.type == "tensor(float)" and len(output.shape) in (2, 4):
            return str(output.name)
    raise FewgraftError("the network has no output of floats [n, d] or [n, d, h, w]")


def _floats(text: str, count: int) -> list[float]:
    """One number for all, or `count` of them with commas between."""
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, count) or not all(map(math.isfinite, numbers)):
        raise FewgraftError(f"'{text}' is not one number, nor {count} with commas between")
    return numbers * (count // len(numbers))


def _filled(file: Tensor, settings: BackboneSettings, channels: int) -> nn.Module:
    """A file has no random weights: new is as it is."""
    _refuse_other(channels, settings)
    return OnnxNetwork(file, settings)


def _empty(settings: BackboneSettings, channels: int) -> nn.Module:
    """Room for the bytes of a saved one."""
    _refuse_other(channels, settings)
    return OnnxNetwork(torch.zeros(settings["bytes"], dtype=torch.uint8), settings)


def _refuse_other(channels: int, settings: BackboneSettings) -> None:
    if channels != settings["channels"]:
        raise FewgraftError(f"this network sees {settings['channels']} channels, not {channels}")


SOURCES = {"onnx": onnx_backbone}
