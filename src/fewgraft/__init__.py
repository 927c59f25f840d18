"""Fewgraft: join new classes to a trained image classifier without harming what it knows.

The problem is semi-supervised incremental few-shot learning (S²I-FSL): Zhao et al., "A Strong
Baseline for Semi-Supervised Incremental Few-Shot Learning", BMVC 2021.
"""

__version__ = "0.1.0"
