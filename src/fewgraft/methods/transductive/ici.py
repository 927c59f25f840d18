"""ICI: pseudo-labels are believed one by one, those first that a regression can explain.

Wang, Xu, Liu, Zhang, Fu, "Instance credibility inference for few-shot learning", CVPR 2020. A
logistic regression learnt from the support labels U. Then every picture gets an offset γ_i of its
own in a linear regression from five principal components Z (orthonormal, of S and U) to the labels:

    min over Γ of (1/2n) ‖X̂ (Y − Γ)‖² + α Σ_i ‖γ_i‖,   X̂ = I − Z Zᵀ

over 100 values of α. A picture whose offset is 0 at a smaller α is more credible. The five most
credible of each pseudo-class join the training set, logistic regression learns again, and so on
until all of U has joined; the last one answers. Five of each class in each round is all that is
assumed about balance of classes, and it is not a strong assumption: a frequent class takes
more rounds.

Written with the slopes β that X̂ projects out, min ½‖Y − Zβ − Γ‖² + nα Σ_i ‖γ_i‖, it is Huber's
regression: for given β an offset is 0 exactly where the residual r_i = Y_i − Z_i β is no longer
than nα, and weighted least squares with weights min(1, nα/‖r_i‖) finds β, a few numbers per
episode. Pictures that become credible at the same α are taken in the order of U, as the authors do;
`ties = "length"` takes those with the shortest residual first, so that the order of U does not
matter. The authors' second version (LLE in place of PCA) is not here.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Solution, Task
from fewgraft.methods.transductive.regression import linear, regressions
from fewgraft.prototypes import directions, members_of, prototypes

ALPHAS, SMALLEST = 100, 1e-3  # how many, and the last as a share of the first
TOLERANCE, MOST_STEPS = 1e-5, 100
LONGEST = 0.9  # ratio of two steps: ten times the last one at most
RANK = 1e-5  # a singular value below this share of the largest is 0
ROUNDING, TINY = 1e-9, 1e-12


@dataclass(frozen=True)
class InstanceCredibility(Method):
    """How many join at a time, and how free the classifier is."""

    uses_unlabelled = True
    takes_gaps = True
    search: ClassVar[Search] = {"strength": (1.0, 10.0, 100.0), "per_round": (5, 10)}
    search_by = "coordinates"

    strength: float = 10.0  # C of the logistic regression
    per_round: int = 5  # pictures of each class
    components: int = 5
    ties: Literal["order", "length"] = "order"

    def fit(self, task: Task) -> Solution:
        """Without U, or with one class, there is nothing to infer: the prototypes answer."""
        if not task.unlabelled.shape[1] or task.ways == 1:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        pictures = directions(torch.cat([task.support, task.unlabelled], 1).double())
        n_support = task.support.shape[1]
        chosen = torch.zeros(pictures.shape[:2], dtype=torch.bool, device=pictures.device)
        chosen[:, :n_support] = True
        there = torch.ones_like(chosen)
        if task.present is not None:
            there[:, n_support:] = task.present
        gaps = None if task.present is None else there
        components = principal(pictures, self.components, gaps)
        labels = torch.zeros_like(chosen, dtype=torch.int64)
        labels[:, :n_support] = task.labels
        weights = regressions(pictures, labels, task.ways, self.strength, chosen)
        while (left := there & ~chosen).any():
            e = left.any(1).nonzero()[:, 0]  # episodes that go on
            guessed = linear(pictures[e], weights[e]).argmax(-1)
            labels[e, n_support:] = guessed[:, n_support:]
            one_hot = members_of(labels[e], task.ways, pictures.dtype) * there[e][..., None]
            order = self.order(components[e], one_hot)
            chosen[e] |= first_of_each(order, labels[e], ~left[e], task.ways, self.per_round)
            given = pictures[e], labels[e], task.ways, self.strength, chosen[e]
            weights[e] = regressions(*given)
        return LearntClassifier(weights)

    def order(self, components: Tensor, labels: Tensor) -> Tensor:
        """Pictures from the most to the least credible [E, n]; components Z, labels Y."""
        since, length = credibility(components, labels)
        order = torch.arange(since.shape[1], device=since.device).expand_as(since)
        if self.ties == "length":
            order = length.argsort(dim=1)
        return order.gather(1, since.gather(1, order).argsort(dim=1, stable=True))


def principal(pictures: Tensor, count: int, there: Tensor | None = None) -> Tensor:
    """Orthonormal scores Z [E, n, count] of the first components of pictures [E, n, d].

    Components that the pictures do not have are 0, and so are rows that are not `there` [E, n].
    """
    n = pictures.shape[1] if there is None else there.sum(1)[:, None, None]
    centred = pictures - pictures.sum(1, keepdim=True) / n  # a row that is not there is 0
    if there is not None:
        centred = centred * there[..., None]
    values, vectors = torch.linalg.eigh(centred @ centred.transpose(1, 2))
    values, vectors = values[..., -count:], vectors[..., -count:]
    real = (values > RANK**2 * values[..., -1:].clamp(min=RANK))[:, None]
    scores: Tensor = vectors * real
    return scores if there is None else scores * there[..., None]


def credibility(components: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """At which α, counted from the smallest, an offset is 0 first [E, n], and ‖r‖/nα there [E, n].

    The shorter the residual r, the less an offset is needed. Components Z [E, n, k], labels Y
    [E, n, N] one-hot. Pictures come last in what is computed: long rows are what a processor likes.
    """
    z, y = (x.transpose(1, 2).contiguous() for x in (components, labels))
    slopes = y @ components  # least squares: Z is orthonormal
    largest = lengths_of(y - slopes @ z).amax(-1)  # nα where all offsets are 0
    shares = [SMALLEST ** (place / (ALPHAS - 1)) for place in range(ALPHAS)]
    since = torch.full(labels.shape[:2], ALPHAS, device=labels.device)
    relative = labels.new_zeros(labels.shape[:2])
    before = slopes
    for place, share in enumerate(shares):
        ahead = 2 * slopes - before  # as slopes moved from the α before
        before, (slopes, lengths) = slopes, huber(z, y, largest * share, ahead)
        lengths = lengths / (largest * share)[:, None].clamp(min=1e-300)
        zero = lengths <= 1 + ROUNDING
        since = torch.where(zero, ALPHAS - 1 - place, since)
        relative = torch.where(zero, lengths, relative)
    return since, relative


def huber(z: Tensor, y: Tensor, threshold: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """βᵀ [E, N, k] at thresholds nα [E], starting with `slopes`, and lengths of residuals [E, n].

    Weighted least squares of y [E, N, n] by z [E, k, n], again and again; an episode that has
    converged stays as it is. Steps become shorter by the same ratio again and again: every second
    one goes on to where all that would follow it lead, by the ratio of the last two.
    """
    ridge = TINY * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    slopes, lengths = slopes.clone(), lengths_of(torch.baddbmm(y, slopes, z, alpha=-1))
    e = torch.arange(len(y), device=y.device)  # episodes that move
    now, far, most = slopes, lengths, threshold[:, None]
    last = torch.zeros_like(slopes)
    for number in range(MOST_STEPS):
        weighted = z * (most / far.clamp(min=TINY)).clamp_(max=1.0)[:, None]
        moments = torch.baddbmm(ridge, weighted, z.transpose(1, 2))
        found = torch.linalg.solve(moments, weighted @ y.transpose(1, 2)).transpose(1, 2)
        step = found - now
        change = step.abs().amax((1, 2))
        if number % 2:
            ratio = (last * step).sum((1, 2)) / last.square().sum((1, 2)).clamp(min=TINY**2)
            ratio = ratio.clamp(0, LONGEST)[:, None, None]
            found = found + ratio / (1 - ratio) * step
        now, last, far = found, step, lengths_of(torch.baddbmm(y, found, z, alpha=-1))
        slopes[e], lengths[e] = now, far
        moving = (change >= TOLERANCE).nonzero()[:, 0]
        if not len(moving):
            break
        if len(moving) < len(e):
            e, z, y, most, now, far, last = (x[moving] for x in (e, z, y, most, now, far, last))
    return slopes, lengths


def lengths_of(residuals: Tensor) -> Tensor:
    """‖r_i‖ of residuals [E, N, n] → [E, n]; quicker than a norm along rows that are far apart."""
    return residuals.square().sum(1).sqrt_()


def first_of_each(order: Tensor, labels: Tensor, taken: Tensor, ways: int, count: int) -> Tensor:
    """The first `count` pictures of each class in `order` [E, n] that are not taken [E, n] yet."""
    fresh = members_of(labels, ways, torch.int64) * ~taken[..., None]  # [E, n, N]
    ordered = fresh.gather(1, order[..., None].expand_as(fresh))
    first = ((ordered.cumsum(1) <= count) & (ordered > 0)).any(-1)
    return torch.zeros_like(taken).scatter(1, order, first)


@dataclass(frozen=True)
class LearntClassifier:
    """The last logistic regression."""

    weights: Tensor  # [E, N, d+1]

    def logits(self, queries: Queries) -> Tensor:
        """Log-probabilities."""
        found = linear(directions(queries.features.double()), self.weights)
        return found.log_softmax(-1).to(queries.features.dtype)


METHODS = (
    MethodSpec("ici", "LR + ICI", InstanceCredibility(), "algorithm-1", rank=25, joint=False),
)
