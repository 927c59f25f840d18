"""Libraries that are extras of this package: imported when needed, or an error with a hint."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fewgraft.errors import FewgraftError


def extra(module: str, name: str) -> Any:
    """The library `module`, which `pip install 'fewgraft[name]'` brings.

    One that is there may still fail to load, as when it was built for another version of torch;
    such libraries raise nearly as many kinds of errors as there are of them.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] != package:
            raise _unusable(module, error) from error
        raise FewgraftError(
            f"this needs the package {package}", f"pip install 'fewgraft[{name}]'"
        ) from None
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise _unusable(module, error) from error


def _unusable(module: str, error: Exception) -> FewgraftError:
    return FewgraftError(
        f"{module} is installed but cannot be imported: {first_line(error)}",
        "Its packages, and torchvision if it needs that, must match the installed torch.",
    )


def first_line(error: Exception) -> str:
    """What a foreign error says, short enough for a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings in here: such libraries tell of what they will change one day, or do without."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
