"""Fewgraft: join new classes to a trained image classifier without harming what it knows.

The problem is semi-supervised incremental few-shot learning (S²I-FSL): Zhao et al., "A Strong
Baseline for Semi-Supervised Incremental Few-Shot Learning", BMVC 2021.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["FewgraftClassifier", "load"]


def __getattr__(name: str) -> Any:
    """The estimator is there when asked for: the command must start without heavy libraries."""
    if name in __all__:
        from fewgraft.app import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module 'fewgraft' has no attribute '{name}'")
