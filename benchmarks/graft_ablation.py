"""Graft without one of its parts; c is 3 without densities, where validation episodes put it.

fewgraft bench run icons --methods graft,benchmarks/graft_ablation.py --settings s2i --views 3
"""

from fewgraft.methods.base import MethodSpec
from fewgraft.methods.graft import Graft


def _without(part: str, method: Graft) -> MethodSpec:
    name = f"graft-without-{part.replace(' ', '-')}"
    return MethodSpec(name, f"Graft without {part}", method, "algorithm-2", rank=8)


METHODS = (
    _without("exemplar densities", Graft(density=0.0, margin=3.0)),
    _without("a space of their own", Graft(own_space=False)),
    _without("mid-level features", Graft(mid=0.0)),
)
