"""Where tensors are computed, named by whoever asks and checked first; and by how many threads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from fewgraft.errors import FewgraftError

CPU = torch.device("cpu")
AUTO = "auto"
WORTH_THREADS = 10**9  # products; threads for less mostly wait for each other


def choose_device(name: str | torch.device) -> torch.device:
    """A device of this machine by name; "auto" is a GPU where there is one, else the CPU."""
    there = _present()
    if name == AUTO:
        return torch.device(there[0])
    try:
        place = torch.device(name)
    except RuntimeError:
        raise _absent(name, there) from None
    if place.type not in there or (place.index or 0) >= _count(place.type):
        raise _absent(name, there)
    return place


def _present() -> list[str]:
    """Kinds of devices that are here, the fastest first."""
    kinds = ["cuda"] if torch.cuda.is_available() else []
    kinds += ["mps"] if torch.backends.mps.is_available() else []
    return [*kinds, "cpu"]


def _count(kind: str) -> int:
    return torch.cuda.device_count() if kind == "cuda" else 1


def _absent(name: str | torch.device, there: list[str]) -> FewgraftError:
    return FewgraftError(
        f"there is no device '{name}' here", f"There are: {', '.join([AUTO, *there])}."
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """No more than one thread inside, for many small sums.

    A thread that waits for the next small sum spins, and on a busy machine all wait for the one
    that was not given a core: that has cost ten times the processor time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit_threads(count: int) -> None:
    """Of this process, for good: PyTorch's, and those of the libraries below NumPy and SciPy.

    The latter count the cores of the machine by themselves, in every process.
    """
    import scipy.linalg  # noqa: F401  # loads what is to be limited
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(count)
    threadpool_limits(count)


def threads_for(products: int) -> AbstractContextManager[None]:
    """As many threads as there are where the largest sum has many products, otherwise one."""
    return nullcontext() if products >= WORTH_THREADS else one_thread()
