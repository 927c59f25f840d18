"""A network that is made again from foreign settings must not be larger than its weights are."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

SLACK = 1_000_000  # parameters: layers that are made and then taken off


@contextmanager
def no_larger_than(parameters: int) -> Iterator[None]:
    """Making a network in here ends where it has more than about twice so many parameters.

    Those on the device "meta", which take no memory, are counted apart: a network may be made there
    first, to see how large it would be.
    """
    made: Counter[str] = Counter()

    def count(_: nn.Module, __: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            made[parameter.device.type] += parameter.numel()
        if made and max(made.values()) > 2 * parameters + SLACK:
            raise ValueError("its settings make a network that is larger than its weights")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
