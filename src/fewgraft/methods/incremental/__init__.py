"""Rivals of incremental few-shot learning, which see no unlabelled pictures."""
