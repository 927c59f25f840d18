"""iLPC: labels are propagated, shared out equally, and cleaned a few at a time.

Lazarou, Stathaki, Avrithis, "Iterative label cleaning for transductive and semi-supervised few-shot
learning", ICCV 2021. Features are power-transformed (power.py), centred by the mean of S ∪ U, and
made directions again. Then, with B the part of U that has no label yet:

1. Z = max(0, (I − αA)⁻¹ Y) on the graph of the k nearest neighbours, with edges cos³ in both
   directions, A = D^−½ W D^−½, and Y the labels so far.
2. P = transport of (Z / Σ Z)^T: rows sum to 1, each class gets the same share of B. A picture's
   guess is its largest entry.
3. A linear classifier learns labels and guesses in 1000 steps of descent. ℓ_i is the mean of
   picture i's loss over the steps: a wrong guess is learnt late.
4. The 3 pictures of each class with the lowest ℓ leave B with their guess as their label.

At the end a logistic regression on S ∪ U answers each query alone. `together` answers as the
paper's transductive protocol does, where B is the queries and U plays no part: a share of what is
left for a class takes the place of equal shares, and rounds go on until B is empty.

The method assumes that U holds equally many pictures of each class. The graph never changes, since
pictures only move from B to S; and descent on a linear classifier can be followed in the logits
L [n, N] alone, for they move by (X Xᵀ + 1)(p − y) from step to step, decay and momentum included.
Most of the 1000 steps need not be computed to know them (descent.py).
The classifier's bias begins at 0, where the original's is random. Edges with a negative cosine are
0: their cubes would give degrees below 0. There is no place for base classes in it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.transductive.descent import PAST, Course, course
from fewgraft.methods.transductive.power import Negatives, power_transform
from fewgraft.methods.transductive.regression import linear, regressions
from fewgraft.methods.transductive.transport import LEAST, transport_plan
from fewgraft.prototypes import class_sums, directions, join_logits, members_of, prototypes

LR, MOMENTUM, DECAY, STEPS = 0.1, 0.9, 5e-4, 1000  # of the linear classifier
NEVER, GAP = 10**9, -2  # a round that does not come, and one that no picture is in
FEWEST = 5  # a round that finds fewer is the last
LENGTHS = (16, 8, 1)  # steps at a time at most: shorter ones where one is further off than
MOST_MISSED = 1e-5  # from what was expected
AT_A_TIME = 750_000  # numbers of products: they stay near the processor from step to step


@dataclass(frozen=True)
class LabelCleaning(Method):
    """The authors tune k and α; these are theirs for a ResNet-12."""

    uses_unlabelled = True
    takes_gaps = True
    search: ClassVar[Search] = {"neighbours": (8, 15, 25), "power": (0.5, 0.7)}
    search_by = "coordinates"

    neighbours: int = 15  # k
    alpha: float = 0.8
    sharpness: float = 3.0  # T
    moved: int = 3  # per class and round
    considered: int = 30  # per class: the pictures that labels reach best
    strength: float = 10.0  # C of the logistic regression
    power: float = 0.5
    negatives: Negatives = "signed"
    together: bool = False

    def fit(self, task: Task) -> "LabelledRegression | NovelWeights | CleanedQueries":
        """An empty unlabelled set leaves the prototypes."""
        if self.together:
            return CleanedQueries(self, task)
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        there = None if task.present is None else present_of_all(task)
        features, mean = self.placed(task.support, task.unlabelled, there)
        labels = self.cleaned(features, task.labels, task.ways, there).labels
        weights = regressions(features, labels, task.ways, self.strength, there)
        return LabelledRegression(weights, mean, self)

    def powers(self, features: Tensor) -> Tensor:
        """Of features [E, n, d], in double precision."""
        return power_transform(features.double(), self.power, self.negatives)

    def placed(
        self, support: Tensor, unlabelled: Tensor, there: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Support and unlabelled pictures in the space of the method [E, n, d], and their mean.

        Those that are not `there` [E, n] are 0: nobody's neighbours, and no part of the mean.
        """
        features = self.powers(torch.cat([support, unlabelled], 1))
        if there is None:
            mean = features.mean(1, keepdim=True)
            return directions(features - mean), mean
        mean = (features * there[..., None]).sum(1, keepdim=True) / there.sum(1)[:, None, None]
        return directions(features - mean) * there[..., None], mean

    def cleaned(
        self,
        features: Tensor,
        labels: Tensor,
        ways: int,
        there: Tensor | None = None,
        *,
        remaining: bool = False,
    ) -> "Labelling":
        """Labels of all pictures [E, n, d], the first of which have labels [E, S].

        `there` [E, n] says which of them are; the others come last. `remaining`: a class gets what
        is left of its share, and rounds go on until B is empty.
        """
        if there is None:
            there = torch.ones_like(features[..., 0], dtype=torch.bool)
        counts = there.sum(1)
        order = counts.argsort(stable=True)  # episodes of like sizes together
        parts = []
        for e in torch.split(order, max(1, AT_A_TIME // features.shape[1] ** 2)):
            some = slice(int(counts[e].max()))
            state = Labelling.begin(labels[e], there[e, some].sum(1) - labels.shape[1], ways)
            parts.append(self._cleaned(features[e, some], state, remaining))
        return joined(parts, order, features.shape[1])

    def _cleaned(self, features: Tensor, state: "Labelling", remaining: bool) -> "Labelling":
        pile = (~state.known).sum(1)
        rounds = (pile // (self.moved * state.plan.shape[2])).clamp(min=1)
        factor = propagator(features, self.neighbours, self.alpha)
        near = products_of(features)
        for number in range(int(pile.max())):
            reached = torch.cholesky_solve(state.members(), factor).clamp(min=0)  # Z
            state = self._guessed(state, reached, remaining)
            if not remaining:  # last guesses are as good as labels: nobody asks who leaves B
                state = replace(state, going=state.going & (number + 1 < rounds))
            if not state.going.any():
                break
            state = self._moved(features, near, state, reached, number, remaining)
        return state

    def _guessed(self, state: "Labelling", reached: Tensor, remaining: bool) -> "Labelling":
        logs = self.sharpness * normalised(reached).clamp(min=LEAST).log()
        shares = state.remaining_shares() if remaining else state.equal_shares()
        return state.guessed(transport_plan(logs, shares, taking=~state.known))

    def _moved(
        self,
        features: Tensor,
        near: Tensor,
        state: "Labelling",
        reached: Tensor,
        number: int,
        remaining: bool,
    ) -> "Labelling":
        candidates = state.guesses()
        if not remaining:
            candidates = candidates & self._best_reached(reached, ~state.known)[..., None]
        members = state.members()
        used = (members > 0).any(-1) | candidates.any(-1)
        losses = mean_losses(features, members, state.one_hot(), used, near)
        return state.moved(lowest(losses, candidates, self.moved), number)

    def _best_reached(self, reached: Tensor, pile: Tensor) -> Tensor:
        """The pictures of B [E, n] that labels reach best, of each class that reaches them most."""
        nearest = members_of(reached.argmax(-1), reached.shape[2], reached.dtype).bool()
        return lowest(-reached.amax(-1), nearest & pile[..., None], self.considered)


# --- which picture has which label ---


@dataclass(frozen=True)
class Labelling:
    """Pictures with labels and pictures with guesses, which are B.

    Attributes:
        labels: Labels and guesses [E, n].
        plan: How each was shared out when it got its label [E, n, N].
        left: The round in which a picture left B, −1 for the support, NEVER for B [E, n]; GAP
            where an episode has no picture.
        going: Episodes that go on [E].
    """

    labels: Tensor
    plan: Tensor
    left: Tensor
    going: Tensor

    @classmethod
    def begin(cls, labels: Tensor, pile: int | Tensor, ways: int) -> Self:
        """Labels [E, S] of the support, and a pile without, or one of its own size each [E]."""
        sizes = torch.as_tensor(pile, device=labels.device).expand(len(labels))
        nothing = labels.new_zeros(len(labels), int(sizes.max()) if len(sizes) else 0)
        there = torch.arange(nothing.shape[1], device=labels.device) < sizes[:, None]
        left = torch.cat([torch.full_like(labels, -1), torch.where(there, NEVER, GAP)], 1)
        labels = torch.cat([labels, nothing], 1)
        return cls(labels, members_of(labels, ways, torch.float64), left, left.amax(1) == NEVER)

    @property
    def known(self) -> Tensor:
        """Pictures that are not in B [E, n]."""
        return self.left < NEVER

    def one_hot(self) -> Tensor:
        """Labels and guesses [E, n, N]."""
        return members_of(self.labels, self.plan.shape[2], torch.float64)

    def members(self) -> Tensor:
        """Labels alone [E, n, N]; rows of B are 0."""
        return self.one_hot() * (self.known & (self.left > GAP))[..., None]

    def guesses(self) -> Tensor:
        """Guesses alone, as true or false [E, n, N]."""
        return self.one_hot().bool() & ~self.known[..., None]

    def equal_shares(self) -> Tensor:
        """Of B for each class [E, N]."""
        ways = self.plan.shape[2]
        return ((~self.known).sum(1, keepdim=True) / ways).double().expand(-1, ways)

    def remaining_shares(self) -> Tensor:
        """Of B for each class [E, N], where all of the pile was to be shared equally."""
        pile = (self.left >= 0).sum(1, keepdim=True)
        taken = (self.members() * (self.left >= 0)[..., None]).sum(1)
        room = (pile / taken.shape[1] - taken).clamp(min=0)
        total = room.sum(1, keepdim=True)  # 0 where classes took more than their shares
        share = room / total.clamp(min=LEAST) * (~self.known).sum(1, keepdim=True)
        return share.where(total > 0, self.equal_shares())

    def guessed(self, plan: Tensor) -> Self:
        """With guesses from a plan, where episodes go on."""
        new = ~self.known & self.going[:, None]
        return replace(
            self,
            labels=plan.argmax(-1).where(new, self.labels),
            plan=plan.where(new[..., None], self.plan),
        )

    def moved(self, chosen: Tensor, number: int) -> Self:
        """After chosen pictures [E, n] of B kept their guesses as labels."""
        left = self.left.where(~(chosen & self.going[:, None]), number)
        going = self.going & (chosen.sum(1) >= FEWEST) & (left.amax(1) == NEVER)
        return replace(self, left=left, going=going)


def joined(parts: Sequence[Labelling], order: Tensor, width: int) -> Labelling:
    """The episodes of all parts, whose numbers are `order` [E], with so many pictures each."""
    back = order.argsort()

    def whole(name: str) -> Tensor:
        values = [getattr(part, name) for part in parts]
        if name != "going":  # [E, n, ...]
            values = [padded(value, width, GAP if name == "left" else 0) for value in values]
        return torch.cat(values)[back]

    return Labelling(*(whole(field.name) for field in fields(Labelling)))


def padded(values: Tensor, width: int, filling: int) -> Tensor:
    """[E, n, ...] → [E, width, ...]."""
    gaps = values.new_full((len(values), width - values.shape[1], *values.shape[2:]), filling)
    return torch.cat([values, gaps], 1)


def present_of_all(task: Task) -> Tensor:
    """Which pictures of S and U are there [E, S+U]."""
    assert task.present is not None
    return torch.cat([torch.ones_like(task.labels, dtype=torch.bool), task.present], 1)


# --- the steps ---


def propagator(features: Tensor, neighbours: int, alpha: float) -> Tensor:
    """The Cholesky factor of I − αA [E, n, n], for directions [E, n, d]."""
    cosines = features @ features.transpose(1, 2)
    cosines.diagonal(0, 1, 2).fill_(-1.0)
    best = cosines.topk(min(neighbours, features.shape[1] - 1), dim=-1)
    one_way = torch.zeros_like(cosines).scatter_(-1, best.indices, best.values.clamp(min=0) ** 3)
    edges = one_way + one_way.transpose(1, 2)
    degree = edges.sum(-1)
    scale = degree.where(degree > 0, 1.0).rsqrt()
    system = -alpha * scale[:, :, None] * edges * scale[:, None, :]
    system.diagonal(0, 1, 2).add_(1.0)
    factor: Tensor = torch.linalg.cholesky(system)
    return factor


def normalised(scores: Tensor) -> Tensor:
    """Rows [..., N] that sum to 1, or to 0 where no label reached them."""
    return scores / scores.sum(-1, keepdim=True).clamp(min=LEAST)


def lowest(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Which pictures [E, n] are among the `count` lowest of their group [E, n, N], by values."""
    of_group = values[..., None].where(groups, math.inf)
    best = of_group.topk(min(count, values.shape[1]), dim=1, largest=False)
    found = torch.zeros_like(groups).scatter_(1, best.indices, best.values < math.inf)
    return found.any(-1)


def products_of(features: Tensor) -> Tensor:
    """X Xᵀ + 1 [E, n, n], in single precision; the 1 is the bias's."""
    return (features @ features.transpose(1, 2) + 1).float()


def mean_losses(
    features: Tensor, members: Tensor, targets: Tensor, used: Tensor, products: Tensor | None = None
) -> Tensor:
    """ℓ [E, n]: each picture's cross-entropy, on average over the training of a classifier.

    It begins with the directions of the class means of `members` [E, n, N] of features [E, n, d],
    and learns the targets [E, n, N] of the pictures in `used` [E, n].
    """
    products = products_of(features) if products is None else products
    weights = directions(class_sums(members, features))
    logits = (weights @ features.transpose(1, 2)).float()  # [E, N, n]
    share = (used / used.sum(1, keepdim=True)).float()[:, None]
    targets = targets.transpose(1, 2).float()
    given = (logits, products, share, targets)
    losses, missed = _followed(course(STEPS, MOMENTUM, LENGTHS[0]), *given)
    e = torch.arange(len(losses), device=losses.device)
    for longest in LENGTHS[1:]:
        e = e[missed > MOST_MISSED]  # episodes that want shorter steps
        if not len(e):
            break
        losses[e], missed = _followed(course(STEPS, MOMENTUM, longest), *(x[e] for x in given))
    return losses


def _followed(
    way: Course, logits: Tensor, products: Tensor, share: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean losses [E, n], and how far an expected step was off [E], for logits [E, N, n]."""
    wanted, moves = share * targets, way.moves.to(logits)
    state = logits.new_zeros(1 + PAST, *logits.shape)  # speed and the last gradients
    total, missed, expected = torch.zeros_like(logits), logits.new_zeros(len(logits)), None
    for i, weight in enumerate(way.shares):
        logs = logits.log_softmax(1)
        total.add_(logs, alpha=weight)
        pull = logs.exp_().mul_(share).sub_(wanted)
        gradient = state[1 + i % PAST]
        torch.baddbmm(logits, pull, products, beta=LR * DECAY, alpha=LR, out=gradient)
        if expected is not None:
            missed = missed.maximum((gradient - expected).abs_().amax((1, 2)))
        if i < len(moves):
            ahead = torch.mm(moves[i], state.flatten(1)).view(3, *logits.shape)
            state[0], logits = ahead[0], logits - ahead[1]
            expected = ahead[2] if way.looks[i + 1] - way.looks[i] > 1 else None
    return -(total * targets).sum(1).double(), missed


# --- the answers ---


@dataclass(frozen=True)
class LabelledRegression:
    """The logistic regression of S ∪ U."""

    weights: Tensor  # [E, N, d+1]
    mean: Tensor  # of S ∪ U [E, 1, d]
    method: LabelCleaning

    def logits(self, queries: Queries) -> Tensor:
        """Logarithms of probabilities, each query alone; a centred query keeps its length."""
        placed = self.method.powers(queries.features) - self.mean
        found = linear(placed, self.weights).log_softmax(-1).to(queries.features.dtype)
        return join_logits(queries.base_logits, found)


@dataclass(frozen=True)
class CleanedQueries:
    """The paper's transductive protocol: queries get their labels together, in rounds."""

    method: LabelCleaning
    task: Task

    def logits(self, queries: Queries) -> Tensor:
        """Half a query's label, half how it was shared out."""
        task, supports = self.task, self.task.support.shape[1]
        features, _ = self.method.placed(task.support, queries.features)
        found = self.method.cleaned(features, task.labels, task.ways, remaining=True)
        mixed = (found.one_hot() + normalised(found.plan))[:, supports:] / 2
        logs = mixed.clamp(min=LEAST).log().to(queries.features.dtype)
        return join_logits(queries.base_logits, logs)


METHODS = (
    MethodSpec("ilpc", "iLPC", LabelCleaning(), "algorithm-1", rank=24, joint=False, balanced=True),
)
