"""Rivals that answer with the help of unlabelled pictures, one file per paper."""
