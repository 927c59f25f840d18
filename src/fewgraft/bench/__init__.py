"""Evaluation: from episodes and features to tables one can trust."""
