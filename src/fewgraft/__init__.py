"""Fewgraft: join new classes to a trained image classifier without harming what it knows.

The problem is semi-supervised incremental few-shot learning (S²I-FSL): Zhao et al., "A Strong
Baseline for Semi-Supervised Incremental Few-Shot Learning", BMVC 2021.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewgraft import methods
    from fewgraft.app.estimator import FewgraftClassifier, load
    from fewgraft.data.catalogue import open_data
    from fewgraft.episodes import EpisodeSettings
    from fewgraft.errors import FewgraftError
    from fewgraft.evaluation import Evaluation, evaluate
    from fewgraft.feature_set import FeatureSet
    from fewgraft.methods.base import Method, Task
    from fewgraft.model import load_model
    from fewgraft.prototypes import Refinement

__version__ = "0.1.0"
__all__ = [
    "EpisodeSettings",
    "Evaluation",
    "FeatureSet",
    "FewgraftClassifier",
    "FewgraftError",
    "Method",
    "Refinement",
    "Task",
    "__version__",
    "evaluate",
    "load",
    "load_model",
    "methods",
    "open_data",
]

_HOMES = {
    "EpisodeSettings": "episodes",
    "Evaluation": "evaluation",
    "FeatureSet": "feature_set",
    "FewgraftClassifier": "app.estimator",
    "FewgraftError": "errors",
    "Method": "methods.base",
    "Refinement": "prototypes",
    "Task": "methods.base",
    "evaluate": "evaluation",
    "load": "app.estimator",
    "load_model": "model",
    "open_data": "data.catalogue",
}

if not TYPE_CHECKING:  # a type checker knows the names above, and that there are no others

    def __getattr__(name: str) -> object:
        """A public name, imported when it is asked for: the command must start without torch."""
        if name == "methods":
            return import_module("fewgraft.methods")
        if name in _HOMES:
            return getattr(import_module(f"fewgraft.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'fewgraft' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
