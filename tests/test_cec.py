"""CEC: the authors' own numbers, sets written out, and limits in which it is something simpler."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.incremental import cec as module
from fewgraft.methods.incremental.cec import SCALE, Cec, EvolvedClassifier
from fewgraft.prototypes import cosine_logits, directions

pytestmark = pytest.mark.numerical

GOLDEN = np.load(Path(__file__).parent / "data" / "rivals" / "cec.npz")
NAMES = {
    "asks": "w_qs.weight",
    "keys": "w_ks.weight",
    "values": "w_vs.weight",
    "join": "fc.weight",
    "join_bias": "fc.bias",
    "norm": "layer_norm.weight",
    "norm_bias": "layer_norm.bias",
}
D = 16


def golden(name: str) -> Tensor:
    return torch.from_numpy(GOLDEN[name])


def pieces() -> dict[str, Tensor]:
    """The authors' parameters by our names."""
    return {own: golden(f"param_{theirs}") for own, theirs in NAMES.items()}


def sets_written_out(rows: Tensor, query: Tensor, learnt: dict[str, Tensor]) -> Tensor:
    """O [n+1, d] of one set, as the paper has it."""
    x = torch.cat([rows, query[None]])
    attention = (x @ learnt["asks"].T @ (x @ learnt["keys"].T).T / math.sqrt(D)).softmax(-1)
    seen = attention @ (x @ learnt["values"].T) @ learnt["join"].T + learnt["join_bias"]
    return layer_norm(x + seen, (D,), learnt["norm"], learnt["norm_bias"])


def test_the_authors_numbers() -> None:
    rows, queries, learnt = golden("prototypes"), golden("query"), pieces()
    attention = module._Attention.of(rows[None], learnt, lambda scores: scores)
    found = SCALE * attention.cosines(queries[None])[0]
    torch.testing.assert_close(found, golden("logits"), rtol=1e-5, atol=1e-5)
    values = queries @ learnt["values"].T @ learnt["join"].T
    adapted = attention.adapted_queries(queries[None], values[None])[0]
    torch.testing.assert_close(adapted, golden("adapted")[:, -1], rtol=1e-5, atol=1e-5)
    for query, whole in zip(queries, golden("adapted"), strict=True):
        torch.testing.assert_close(
            sets_written_out(rows, query, learnt), whole, rtol=1e-5, atol=1e-5
        )


def task(learnt: dict[str, Tensor], absent: Tensor | None = None) -> Task:
    rng = torch.Generator().manual_seed(0)
    support = directions(torch.randn(2, 6, D, generator=rng))
    return Task(
        ways=3,
        support=support,
        labels=torch.arange(3).repeat_interleave(2).expand(2, -1),
        unlabelled=support[:, :0],
        base_unlabelled=torch.empty(2, 0, 8),
        weights=torch.randn(8, D, generator=rng),
        gamma=20.0,
        numbers=torch.arange(2),
        learnt=learnt,
        absent=absent,
    )


def asked() -> Queries:
    features = directions(torch.randn(2, 7, D, generator=torch.Generator().manual_seed(1)))
    return Queries(features, torch.empty(2, 7, 8))


@pytest.mark.parametrize("absent", [None, torch.tensor([[1, 5], [0, 7]])])
def test_every_query_has_a_set_of_its_own(
    absent: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_A_TIME", 3)
    learnt = pieces()
    solution: EvolvedClassifier = Cec().fit(task(learnt, absent))
    found = solution.logits(asked())
    for e in range(2):
        present = [k for k in range(11) if absent is None or k not in absent[e].tolist()]
        rows = solution.rows[e, present]
        for q, query in enumerate(asked().features[e]):
            whole = sets_written_out(rows, math.sqrt(D) * query, learnt)
            expected = SCALE * directions(whole[:-1]) @ directions(whole[-1])
            torch.testing.assert_close(found[e, q, present], expected, rtol=1e-4, atol=1e-4)
    if absent is not None:
        assert found[0, :, [1, 5]].isneginf().all()


def test_without_attention_it_is_class_means() -> None:
    """F = 0 and f = 0 leave a LayerNorm, which centred rows do not feel."""
    learnt = pieces() | {"join": torch.zeros(D, D), "join_bias": torch.zeros(D)}
    learnt |= {"norm": torch.ones(D), "norm_bias": torch.zeros(D)}
    given, queries = task(learnt), asked()
    centred = {name: _centred(getattr(given, name)) for name in ("support", "weights")}
    given = Task(**{**given.__dict__, **centred})
    queries = Queries(directions(_centred(queries.features)), queries.base_logits)
    solution = Cec().fit(given)
    expected = cosine_logits(queries.features, solution.rows, SCALE)
    torch.testing.assert_close(solution.logits(queries), expected, rtol=1e-3, atol=1e-3)


def _centred(features: Tensor) -> Tensor:
    return features - features.mean(-1, keepdim=True)


def test_gradients_reach_every_piece() -> None:
    weights, rng = torch.randn(8, D), torch.Generator().manual_seed(0)
    learnt = {k: v.requires_grad_() for k, v in Cec().initial(weights, 20.0, 5, rng).items()}
    loss = Cec().fit(task(learnt)).logits(asked()).square().sum()
    gradients = torch.autograd.grad(loss, list(learnt.values()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
