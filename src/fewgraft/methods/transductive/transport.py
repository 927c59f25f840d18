"""Optimal transport with an entropy term: pictures go to classes, and each class gets its share.

Cuturi, "Sinkhorn distances", NIPS 2013. Rows of a positive matrix are scaled to sum to 1 and
columns to their shares, in turn, until the rows hardly move. In double precision, from logarithms
whose largest entry in every row and column is 0 or more, so that nothing is divided by 0. Each
episode stops by itself: its numbers do not depend on which episodes are computed beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewgraft.methods.base import Queries
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.prototypes import join_logits

TOLERANCE, MOST_ROUNDS = 1e-6, 1000
NEWTON_STEPS, LARGEST_CHANGE, RIDGE = 10, 3.0, 1e-9
NOTHING = -1e4  # the logarithm of a row that takes no part
LEAST = 1e-300  # of a sum that is divided by, and of a number whose logarithm is taken


def transport_plan(
    logs: Tensor, shares: Tensor, tolerance: float = TOLERANCE, taking: Tensor | None = None
) -> Tensor:
    """The plan [E, n, N] nearest to exp(logs) [E, n, N]: rows sum to 1, columns to shares [E, N].

    `taking` [E, n] says which rows take part; the others become 0. A share of 0 leaves a class
    empty.
    """
    kernel = _kernel(logs.double(), taking)
    kernel = kernel / kernel.sum((1, 2), keepdim=True).clamp(min=LEAST)
    return scaled(
        nearly(kernel, shares.double()) if tolerance <= TOLERANCE else kernel, shares, tolerance
    )


def nearly(kernel: Tensor, shares: Tensor) -> Tensor:
    """A matrix [E, n, N] with the same plan as the kernel, which it nearly is already.

    Scaling in turn may take a thousand rounds. The plan is P_ic = v_c K_ic / Σ_c v_c K_ic, where
    log v makes the convex Σ_i log Σ_c v_c K_ic − Σ_c shares_c log v_c least: Newton's method finds
    these few numbers in a few steps. Where it does not, what is left is done by scaling.
    """
    logs = kernel.transpose(1, 2).clamp(min=LEAST).log()  # [E, N, n]
    taking = (kernel.sum(2) > 0).to(kernel.dtype)[:, None]
    wanted = (shares > 0).to(kernel.dtype)
    factors = torch.zeros_like(shares)  # log v [E, N]
    for _ in range(NEWTON_STEPS):
        plan = (logs + factors[..., None]).softmax(1) * taking
        sums = plan.sum(2)
        curved = sums.diag_embed() - plan @ plan.transpose(1, 2)
        curved.diagonal(0, 1, 2).add_(RIDGE * sums.amax(1, keepdim=True) + 1 - wanted)
        change = torch.linalg.solve(curved, (shares - sums) * wanted)
        factors = factors + change.clamp(-LARGEST_CHANGE, LARGEST_CHANGE)
    return kernel * factors[:, None].exp()


def scaled(matrix: Tensor, shares: Tensor, tolerance: float, fixed: Tensor | None = None) -> Tensor:
    """A matrix [E, n, N] whose rows are scaled to sum to 1, its columns to shares [E, N], in turn.

    It ends once no row sum moves by more than `tolerance` from one round to the next. After each
    round the first rows become `fixed` [E, m, N], if that is given. Pictures come last in what is
    computed: long rows are what a processor likes.
    """
    fixed = matrix[:, :0] if fixed is None else fixed
    found = matrix.transpose(1, 2).contiguous()  # [E, N, n]
    going = torch.arange(len(found), device=found.device)  # which episodes these are
    now, before = found.clone(), found.new_zeros(len(found), 1, found.shape[2])
    shares, fixed = shares.double()[..., None], fixed.transpose(1, 2)
    for _ in range(MOST_ROUNDS):
        sums = now.sum(1, keepdim=True)
        moving = (sums - before).abs().amax((1, 2)) > tolerance
        if not moving.all():
            found[going] = now
            parts = (going, now, sums, shares, fixed)
            going, now, sums, shares, fixed = (part[moving] for part in parts)
        if len(going) == 0:
            break
        now.div_(sums.clamp(min=LEAST))
        now.mul_(shares / now.sum(2, keepdim=True).clamp(min=LEAST))
        now[:, :, : fixed.shape[2]] = fixed
        before = sums
    found[going] = now
    return found.transpose(1, 2)


def _kernel(logs: Tensor, taking: Tensor | None) -> Tensor:
    """exp(logs) up to factors of rows and columns, on which the plan does not depend."""
    logs = logs - logs.amax(2, keepdim=True)
    if taking is None:
        return (logs - logs.amax(1, keepdim=True)).exp()
    largest = logs.where(taking[..., None], NOTHING).amax(1, keepdim=True)
    return (logs - largest).exp() * taking[..., None]


def equal_shares(logs: Tensor, taking: Tensor | None = None) -> Tensor:
    """The same share of the n pictures, or of those taking part [E, n], for each class → [E, N]."""
    episodes, pictures, classes = logs.shape
    if taking is not None:
        return (taking.sum(1, keepdim=True).double() / classes).expand(-1, classes)
    return logs.new_full((episodes, classes), pictures / classes, dtype=torch.float64)


@dataclass(frozen=True)
class Centres:
    """Classes as centres in a space of their own.

    Attributes:
        place: Takes features [E, Q, d] into that space.
        centres: μ [E, N, d′].
        sharpness: λ of the logits −λ‖x − μ‖².
        together: Queries are shared out among the classes in equal parts.
        tolerance: Of that plan.
    """

    place: Callable[[Tensor], Tensor]
    centres: Tensor
    sharpness: float
    together: bool
    tolerance: float = TOLERANCE

    def logits(self, queries: Queries) -> Tensor:
        """Of each query alone, or the logarithm of a plan for all of them."""
        placed = self.place(queries.features)
        found = -self.sharpness * squared_distances(placed, self.centres)
        if self.together:
            found = transport_plan(found, equal_shares(found), self.tolerance)
            found = found.clamp(min=LEAST).log()
        return join_logits(queries.base_logits, found.to(queries.features.dtype))
