"""An ONNX file from anyone is tried out in a process of its own, with little memory and time.

onnxruntime is written in C++: a file that was made to harm it can end the process or take all the
memory. Here it is only this one. `python onnx_trial.py FILE SIZE` runs the network on one blank
picture; a SIZE of 0 stands for a graph that knows its own.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY = 3 << 30  # bytes beside what the file itself needs
TIMES_FILE = 8  # weights are parsed, copied and laid out anew
SECONDS = 120


def try_out(path: Path, size: int) -> None:
    """Raise what is wrong with the file, if this process survives it."""
    _limit(path.stat().st_size)
    import numpy as np
    import onnx
    import onnxruntime  # type: ignore[import-untyped]

    content = path.read_bytes()
    _refuse_other_files(onnx.load_model_from_string(content).graph)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    first, *others = session.get_inputs()
    if others or first.type != "tensor(float)" or len(first.shape) != 4:
        return  # refused for that elsewhere, with a hint
    shape = [side if isinstance(side, int) else size for side in first.shape]
    shape[0] = 1
    if 0 < np.prod(shape, dtype=float) < MEMORY / 64:
        session.run(None, {first.name: np.zeros(shape, np.float32)})


def _limit(size: int) -> None:
    """Where the system can: less memory than would harm, and an end."""
    with contextlib.suppress(ImportError):  # Windows
        import resource

        for what, most in (
            (resource.RLIMIT_AS, MEMORY + TIMES_FILE * size),
            (resource.RLIMIT_CPU, SECONDS),
            (resource.RLIMIT_CORE, 0),
        ):
            _, hard = resource.getrlimit(what)
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (soft, hard))


def _refuse_other_files(graph: Any) -> None:
    """A tensor may name a file that its numbers are in: any file of this machine."""
    for tensor in tensors_of(graph):
        if tensor.external_data or tensor.data_location:
            raise ValueError("it keeps weights in another file")


def tensors_of(graph: Any) -> Iterator[Any]:
    """All tensors of a graph and of the graphs inside it."""
    waiting = [graph]
    while waiting:
        one = waiting.pop()
        yield from one.initializer
        for sparse in one.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for attribute in (attribute for node in one.node for attribute in node.attribute):
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            waiting += [inner for inner in (attribute.g, *attribute.graphs) if inner.ByteSize()]


if __name__ == "__main__":
    try:
        try_out(Path(sys.argv[1]), int(sys.argv[2]))
    except MemoryError:
        sys.exit("it needs far more memory than its size tells")
    except Exception as error:
        lines = str(error).strip().splitlines()
        sys.exit(lines[0][:300] if lines else type(error).__name__)
