"""Where tensors are computed: named by whoever asks, and checked before any work is done."""

import torch

from fewgraft.errors import FewgraftError

CPU = torch.device("cpu")
AUTO = "auto"


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
