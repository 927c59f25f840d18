"""Attacks on the project: what is promised in docs/reliability.md, tried many times and counted.

One file per kind of attack; each defines `ATTACKS`. Nothing else has to be edited.
"""
