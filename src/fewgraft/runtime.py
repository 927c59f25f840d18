"""From pixels to a backbone's features: by PyTorch, or by onnxruntime where that is faster.

A network is exported once, when PyTorch would take longer than that, and kept by its weights:

    networks/KEY/network.onnx    uint8 pixels [n, size, size, channels] → features [n, d]
    networks/KEY/verdict.json    the hash of that file, of which KEY and who made it, or why PyTorch
                                 stays

What is exported is compared with PyTorch before it is kept. A file is used only if the verdict
names it, this network and these versions. Each run has one thread: several batches at a time cost
less than several threads for one batch, which wait for each other, and leave no core to nobody.
"""

import copy
import hashlib
import importlib.metadata
import json
import platform
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from fewgraft.data.catalogue import data_root
from fewgraft.data.pictures import Pixels
from fewgraft.devices import CPU
from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.export import EXTRA, onnx_graph
from fewgraft.extras import extra, first_line
from fewgraft.files import read_folder, replacing_folder
from fewgraft.model import CosineModel, weights_hash
from fewgraft.parsing import read_json, read_whole, validated

PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript")
EXPORT_SECONDS = 8.0  # about what an export takes; less work than that is done by PyTorch
FASTER = 1.2  # times: what is gained by less is not worth another library
# Largest distance of a feature from PyTorch's, relative to its length. PyTorch itself differs by
# 1e-6 between batches of 8 and 32, onnxruntime from it by 2e-6; at 1e-4 a cosine moves by 1e-8.
TOLERANCE = 1e-4
REPETITIONS = 2
MOST_STREAMS = 16  # batches at a time: each has activations of its own
BATCH = 32  # pictures at a time, of small ones
PIXELS = 8 * 224 * 224  # of a batch: PyTorch takes twice the time per picture for four times that


def networks_root() -> Path:
    """Where exported networks are kept: beside the features of photos."""
    return data_root().parent / "networks"


def backbone_key(model: CosineModel) -> str:
    """A name for all that turns a picture's bytes into features; the classes are no part of it."""
    card = model.card
    seen = [card.backbone, card.size, card.crop, card.channels, card.mean, card.std, card.mirrored]
    return weights_hash(model.backbone, json.dumps(seen), length=20)


def place_of(model: CosineModel) -> torch.device:
    """Where the backbone is; the model's other tensors may be elsewhere."""
    return next(model.backbone.parameters(), model.weight).device


def to_stderr(line: str) -> None:
    """One line for whoever watches."""
    print(line, file=sys.stderr, flush=True)


class Verdict(BaseModel):
    """What came out when onnxruntime was tried."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    made_by: str
    key: str  # of the network: its weights and what its pictures look like
    sha256: str = ""  # of network.onnx
    why_not: str = ""  # why PyTorch stays; empty: onnxruntime is used


class RawFeatures(nn.Module):
    """uint8 pixels [n, size, size, channels] → the backbone's features [n, d]."""

    def __init__(self, model: CosineModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalised, embedded, not centred."""
        return self.model.raw(self.model.prepare(pixels))


class Runtime:
    """The backbone of one model, ready to compute; many threads may call it at once.

    It computes on `device`, or where the backbone is; pixels and features are on the CPU.
    """

    def __init__(
        self,
        model: CosineModel,
        device: torch.device | None = None,
        *,
        root: Path | None = None,
        tell: Callable[[str], None] = to_stderr,
    ) -> None:
        self.key = backbone_key(model)
        self.device = device or place_of(model)
        if any(tensor.device != self.device for tensor in model.state_dict().values()):
            model = copy.deepcopy(model).to(self.device)  # the caller's own stays where it is
        model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._network = RawFeatures(model).eval()
        self._card = model.card
        self._root = root or networks_root()
        self._tell = tell
        self._lock = threading.Lock()
        self._session: Any = None
        self._seconds = 0.0  # that PyTorch takes per picture
        self.batch = max(1, min(BATCH, PIXELS // model.card.size**2))
        # A name and weights tell what a network computes; a module of the user's own has no name,
        # and a network in an ONNX file is run by onnxruntime as it is.
        named = model.card.backbone != "custom" and not model.card.backbone.startswith("onnx:")
        self._undecided = self._untried = named and self.device == CPU

    @property
    def streams(self) -> int:
        """Batches to compute at a time; PyTorch uses all cores for one."""
        return min(MOST_STREAMS, torch.get_num_threads()) if self._session else 1

    def __call__(self, pixels: Pixels) -> NDArray[np.float32]:
        """Features [n, d] of pictures, uint8 [n, size, size, channels]."""
        return _run(self._session, pixels) if self._session else self._by_torch(pixels)

    def consider(self, pixels: Pixels, ahead: int) -> None:
        """Choose how to compute `ahead` pictures, of which these are the first ones."""
        with self._lock:
            if self._untried:
                self._untried = False
                self._take_kept()
            if self._undecided and self._seconds * ahead >= EXPORT_SECONDS:
                self._undecided = False
                self._keep(*self._tried(pixels))

    def expect(self, ahead: int) -> None:
        """`consider` before there are pictures: on noise."""
        card = self._card
        shape = (self.batch, card.size, card.size, card.channels)
        noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        self.consider(noise, 0)
        if self._undecided:
            self(noise)
            self.consider(noise, ahead)

    @torch.inference_mode()
    def _by_torch(self, pixels: Pixels) -> NDArray[np.float32]:
        began = time.perf_counter()
        found = self._network(torch.from_numpy(pixels)).float().cpu()
        seconds = (time.perf_counter() - began) / max(1, len(pixels))
        self._seconds = min(self._seconds, seconds) if self._seconds else seconds
        features: NDArray[np.float32] = found.numpy()
        return features

    def _take_kept(self) -> None:
        """Use what an earlier process made and compared, where it is whole and ours."""
        try:
            verdict, content = read_folder(self._root / self.key, _read)
            if (verdict.made_by, verdict.key) != (_maker(), self.key):
                return
            if not verdict.why_not:
                if not content:
                    return
                self._session = _open(content)
            self._undecided = False
        except FewgraftError:
            return  # absent, damaged or of no use: it is made again when there is work for it

    def _tried(self, pixels: Pixels) -> tuple[Verdict, bytes]:
        """Export, compare and measure; the session is open if onnxruntime is the better way."""
        name = self._card.backbone
        self._tell(f"preparing {name} for onnxruntime, once: this takes a few seconds")
        try:
            content = onnx_graph(self._network, self._card, ["features"]).SerializeToString()
            session = _open(content)
            difference = self._difference(session, pixels)
            gain = self._gain(session, pixels)
        except Exception as error:  # a message of 2 GiB or more, or whatever is not installed
            why = error.problem if isinstance(error, FewgraftError) else first_line(error)
        else:
            why = ""
            if not difference <= TOLERANCE:
                why = f"the results differ by {difference:.0e}"
            elif gain < FASTER:
                why = f"onnxruntime takes {1 / gain:.1f} times as long"
        if why:
            self._tell(f"PyTorch computes {name}: {why}")
            return Verdict(made_by=_maker(), key=self.key, why_not=why), b""
        self._session = session
        sha256 = hashlib.sha256(content).hexdigest()
        return Verdict(made_by=_maker(), key=self.key, sha256=sha256), content

    def _difference(self, session: Any, pixels: Pixels) -> float:
        """The largest distance from PyTorch's features, relative to their length."""
        ours, expected = _run(session, pixels), self._by_torch(pixels)
        if ours.shape != expected.shape:
            return float("inf")
        lengths = np.linalg.norm(expected, axis=1)
        largest = np.linalg.norm(ours - expected, axis=1) / np.maximum(lengths, 1e-12)
        return float(largest.max())

    def _gain(self, session: Any, pixels: Pixels) -> float:
        """How many times faster a picture is computed, with all cores in use both times."""
        streams = min(MOST_STREAMS, torch.get_num_threads())
        with ThreadPoolExecutor(streams) as pool:

            def in_streams() -> None:
                list(pool.map(lambda _: _run(session, pixels), range(streams)))

            pairs = [
                (_seconds(lambda: self._by_torch(pixels)), _seconds(in_streams) / streams)
                for _ in range(REPETITIONS)
            ]
        theirs, ours = (min(times) for times in zip(*pairs, strict=True))
        return float(theirs / ours)

    def _keep(self, verdict: Verdict, content: bytes) -> None:
        """For the next process; a full or read-only disk costs time then."""
        folder = self._root / self.key
        try:
            with writing(folder), replacing_folder(folder) as work:
                (work / "network.onnx").write_bytes(content)
                (work / "verdict.json").write_text(verdict.model_dump_json())
        except FewgraftError:
            return


def _maker() -> str:
    """Other versions export and round in other ways; what is missing may be there one day."""
    return ", ".join([*map(_version, PACKAGES), platform.machine()])


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def _read(folder: Path) -> tuple[Verdict, bytes]:
    """The verdict and, where it names one, its file; empty if that is another one."""
    with reading(folder):
        verdict = validated(Verdict, read_json(folder / "verdict.json"))
        content = b"" if verdict.why_not else read_whole(folder / "network.onnx", 2**31)
        same = hashlib.sha256(content).hexdigest() == verdict.sha256
        return verdict, content if same else b""


def _open(content: bytes) -> Any:
    """A session with one thread, on the CPU; batch-norm is folded and the layout chosen here."""
    runtime = extra("onnxruntime", EXTRA)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only, and those are raised
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen kinds of its own
        raise FewgraftError(f"onnxruntime cannot open it: {first_line(error)}") from error


def _run(session: Any, pixels: Pixels) -> NDArray[np.float32]:
    try:
        [features] = session.run(["features"], {"pixels": np.ascontiguousarray(pixels)})
    except Exception as error:  # onnxruntime has a dozen kinds of its own
        raise FewgraftError(f"onnxruntime failed: {first_line(error)}") from error
    found: NDArray[np.float32] = features
    return found


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
