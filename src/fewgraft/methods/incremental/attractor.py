"""Attractor: a classifier per episode, trained to its end and pulled to what base classes suggest.

Ren, Liao, Fetaya, Zemel, "Incremental few-shot learning with attention attractor networks", NeurIPS
2019, the variant with logistic regression. For every episode the novel weights and biases, T =
(w; c) [d+1, N], minimise the cross-entropy of the supports among all classes. What keeps them from
harming base classes is a quadratic pull to attractors u, which an attention reads off the base
weights. With S supports x = (h; 1), base weights w_j and means p_k of the classes' supports:

    key_j = V_2ᵀ tanh(V_1ᵀ w_j + v_1) + v_2
    β_kj  = softmax_j(τ cos(p_k, w_j)),   u_k = Σ_j β_kj key_j + u_0
    E(T)  = 1/S Σ_i CE([base logits; Tᵀx_i], y_i) + ½ 10⁻⁵ ‖T‖² + 1/N Σ_k Σ_r g_r (T_rk − u_rk)²

E is strictly convex, so that T* is what it is, whoever finds it: here Newton's method, batched over
episodes. τ, V, v, u_0 and log g descend on the cross-entropy L of the queries at T*, through the
fixed point: v_0 = ∂L/∂T, v_{i+1} = (1 − λ) v_i − ∇²E v_i, and ∂L/∂θ = −(∂²E/∂θ∂T)ᵀ Σ v_i, with 20
iterations and damping λ = 0.1 (recurrent back-propagation). λ is not small against ∇²E: the exact
gradient, `gradient = "exact"`, is another method.

Kept: all of that, sizes, initial values, optimiser, dropout on p in training. On a cosine network
h = f/‖f‖, base columns are γ w_j/‖w_j‖ without bias, and T takes γ in. Ours: attractors are learnt
in units of γ, which are those of T, and the pull begins at 0.1/γ² (the authors': 0.1 at 1 shot and
0.01 at 5, in other units); dropout is drawn once per episode, not at every evaluation of E; several
episodes per step; base classes that an episode does without are struck out of the attention, too.
Over sessions, supports are told from classes of earlier sessions, too, whose T stays; the attention
reads base weights alone.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, pad

from fewgraft.methods.base import LearntTensors, MethodSpec, Queries, Task
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import directions, join_logits, prototypes

Gradient = Literal["recurrent", "exact"]
DECAY = 1e-5  # on T
DAMPING, ITERATIONS = 0.1, 20  # of recurrent back-propagation
TOLERANCE = 1e-8  # largest entry of ∇E at T*
MOST_STEPS, MOST_HALVINGS = 100, 40  # of Newton's method
START_STD = 0.01  # of V and u_0
PULL = 0.1  # g before training, in units of 1/γ²


@dataclass(frozen=True)
class Attractor(TrainedMethod):
    """Logistic regression per episode, pulled to attractors."""

    pieces = "attractor"

    hidden: int = 50
    dropout: float = 0.1  # on class means, in training
    gradient: Gradient = "recurrent"

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The authors' initial values, with a pull in the units of T."""
        del shots
        d, hidden = weights.shape[1], self.hidden
        return {
            "tau": torch.tensor(2.0),
            "inner": _truncated_normal((d, hidden), rng),  # V_1
            "inner_bias": torch.zeros(hidden),
            "outer": _truncated_normal((hidden, d + 1), rng),  # V_2
            "outer_bias": torch.zeros(d + 1),
            "offset": _truncated_normal((d + 1,), rng),  # u_0
            "log_pull": torch.full((d + 1,), math.log(PULL / gamma**2)),  # log g
        }

    def fit(self, task: Task) -> "LinearClassifier":
        """Solve every episode, in double precision."""
        return self._solved(task, _means(task))

    def loss(
        self, task: Task, queries: Queries, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the queries, with some entries of the class means dropped."""
        means = _means(task)
        kept = torch.rand(means.shape, generator=rng).to(means.device) >= self.dropout
        logits = self._solved(task, means * kept / (1 - self.dropout)).logits(queries)
        return cross_entropy(logits.flatten(0, 1), labels.flatten()), logits

    def _solved(self, task: Task, means: Tensor) -> "LinearClassifier":
        learnt = {name: tensor.double() for name, tensor in self.learnt(task).items()}
        base = task.gamma * directions(task.first_weights.double())
        scores = learnt["tau"] * _cosines(means, base)
        pulled = task.gamma * attractors(learnt, base, task.strike(scores).softmax(-1))
        support = task.support.double()
        pictures = pad(support, (0, 1), value=1.0)
        known = task.previous if isinstance(task.previous, LinearClassifier) else None
        old = [task.strike(support @ base.T), *([pictures @ known.novel] if known else [])]
        problem = Problem(
            pictures=pictures,
            base=torch.cat(old, -1).logsumexp(-1),
            answers=one_hot(task.labels, task.ways).double(),
        )
        pull = learnt["log_pull"].exp()
        new = FixedPoint.apply(pulled, pull, problem, self.gradient)  # type: ignore[no-untyped-call]
        return known.joined(new) if known else LinearClassifier(new)


@dataclass(frozen=True)
class LinearClassifier:
    """T* [E, D, N], the bias in its last row."""

    novel: Tensor
    grafted: int = 0  # how many of the N novel classes are of earlier sessions

    @property
    def carried(self) -> Tensor:
        """Directions of w, for whoever asks; a next session begins with T itself."""
        return directions(self.novel[:, :-1].transpose(1, 2)).float()

    def joined(self, new: Tensor) -> "LinearClassifier":
        """With the classes of one more session [E, D, ·]."""
        return LinearClassifier(torch.cat([self.novel, new], -1), self.novel.shape[-1])

    def logits(self, queries: Queries) -> Tensor:
        """Base logits as they are, and Tᵀ(q; 1)."""
        pictures = pad(queries.features.to(self.novel.dtype), (0, 1), value=1.0)
        novel = pictures @ self.novel
        kept = queries.base_logits.shape[-1] - self.grafted
        return join_logits(queries.base_logits[..., :kept], novel.to(queries.base_logits.dtype))


def attractors(learnt: LearntTensors, base: Tensor, shares: Tensor) -> Tensor:
    """u [E, D, N] of base weights [N_b, d] and the attention β [E, N, N_b] to them."""
    inside = torch.tanh(base @ learnt["inner"] + learnt["inner_bias"])
    keys = inside @ learnt["outer"] + learnt["outer_bias"]  # [N_b, D]
    return (shares @ keys + learnt["offset"]).transpose(1, 2)


def _means(task: Task) -> Tensor:
    """Of the supports of each class [E, N, d], in double precision."""
    return prototypes(task.support.double(), task.labels, task.ways, normalise=False)


def _cosines(means: Tensor, base: Tensor, room: float = 1e-5) -> Tensor:
    """[E, N, N_b]; `room` on each length, as the authors have it."""
    of_means, of_base = (x.square().sum(-1).sqrt() + room for x in (means, base))
    return means @ base.T / (of_means[..., None] * of_base)


def _truncated_normal(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Within two standard deviations."""
    made = torch.empty(shape)
    return torch.nn.init.trunc_normal_(
        made, std=START_STD, a=-2 * START_STD, b=2 * START_STD, generator=rng
    )


# --- the inner problem ---


@dataclass(frozen=True)
class Problem:
    """The cross-entropy of the supports in E episodes."""

    pictures: Tensor  # x [E, S, D]
    base: Tensor  # log Σ exp of the base logits [E, S]; −∞ where there are none
    answers: Tensor  # 1 at the class of each support [E, S, N]

    @property
    def ways(self) -> int:
        """N."""
        return self.answers.shape[-1]

    def stiffness(self, pull: Tensor) -> Tensor:
        """Second derivative of all but the cross-entropy [D, 1], per feature."""
        return (DECAY + 2 / self.ways * pull)[:, None]

    def energy(self, t: Tensor, attractors: Tensor, pull: Tensor) -> Tensor:
        """E(T) [E]."""
        logits = self.pictures @ t
        everything = torch.logaddexp(logits.logsumexp(-1), self.base)
        loss = (everything - (logits * self.answers).sum(-1)).mean(-1)
        pulled = (pull[:, None] * (t - attractors).square()).sum((1, 2)) / self.ways
        return loss + DECAY / 2 * t.square().sum((1, 2)) + pulled

    def shares(self, t: Tensor) -> Tensor:
        """Probabilities of the novel classes among all [E, S, N]."""
        logits = self.pictures @ t
        return (logits - torch.logaddexp(logits.logsumexp(-1), self.base)[..., None]).exp()

    def gradient(self, t: Tensor, attractors: Tensor, pull: Tensor) -> Tensor:
        """∇E [E, D, N]."""
        wrong = (self.shares(t) - self.answers) / self.pictures.shape[1]
        pulled = 2 / self.ways * pull[:, None] * (t - attractors)
        return self.pictures.transpose(1, 2) @ wrong + DECAY * t + pulled

    def hessian_times(self, v: Tensor, shares: Tensor, pull: Tensor) -> Tensor:
        """∇²E v [E, D, N]."""
        moved = self.pictures @ v
        moved = shares * (moved - (shares * moved).sum(-1, keepdim=True))
        curved = self.pictures.transpose(1, 2) @ moved / self.pictures.shape[1]
        return curved + self.stiffness(pull) * v

    def hessian_solve(self, v: Tensor, shares: Tensor, stiffness: Tensor) -> Tensor:
        """(∇²E)⁻¹ v [E, D, N], where ∇²E without the cross-entropy is `stiffness` [D, 1].

        What the supports add has rank S·N, so that Woodbury's identity needs a system of that size:
        (Λ + XᵀBX)⁻¹ = Λ⁻¹ − Λ⁻¹Xᵀ(I + BXΛ⁻¹Xᵀ)⁻¹BXΛ⁻¹, B of a block [N, N] per support.
        """
        episodes, supports, ways = shares.shape
        blocks = torch.diag_embed(shares) - shares[..., :, None] * shares[..., None, :]
        blocks = blocks / supports  # B [E, S, N, N]
        kernel = (self.pictures / stiffness[:, 0]) @ self.pictures.transpose(1, 2)  # [E, S, S]
        system = torch.einsum("eink,eij->einjk", blocks, kernel)
        system = system.reshape(episodes, supports * ways, supports * ways)
        system = system + torch.eye(supports * ways, dtype=v.dtype, device=v.device)
        first = v / stiffness
        inside = torch.einsum("eink,eik->ein", blocks, self.pictures @ first)
        inside = torch.linalg.solve(system, inside.reshape(episodes, -1))
        back: Tensor = self.pictures.transpose(1, 2) @ inside.view(episodes, supports, ways)
        return first - back / stiffness


def solve(
    problem: Problem, attractors: Tensor, pull: Tensor, start: Tensor | None = None
) -> Tensor:
    """T* [E, D, N] by Newton's method with backtracking, from the attractors or from `start`."""
    t = attractors.clone() if start is None else start.clone()
    stiffness = problem.stiffness(pull)
    for _ in range(MOST_STEPS):
        slope = problem.gradient(t, attractors, pull)
        if slope.abs().amax() < TOLERANCE:
            break
        way = -problem.hessian_solve(slope, problem.shares(t), stiffness)
        t = t + _step_length(problem, t, way, slope, attractors, pull) * way
    return t


def _step_length(
    problem: Problem, t: Tensor, way: Tensor, slope: Tensor, attractors: Tensor, pull: Tensor
) -> Tensor:
    """1, halved per episode until E falls [E, 1, 1]; rounding may hide the last falls."""
    before = problem.energy(t, attractors, pull)
    expected = (way * slope).sum((1, 2))  # below 0
    length = torch.ones_like(before)
    for _ in range(MOST_HALVINGS):
        after = problem.energy(t + length[:, None, None] * way, attractors, pull)
        short = after > before + 1e-4 * length * expected + 1e-12 * before.abs()
        if not short.any():
            break
        length = torch.where(short, length / 2, length)
    return length[:, None, None]


def recurrent(problem: Problem, v: Tensor, shares: Tensor, pull: Tensor, count: int) -> Tensor:
    """Σ v_i of `count` iterations of damped recurrent back-propagation from v_0 [E, D, N]."""
    total = v
    for _ in range(count):
        v = (1 - DAMPING) * v - problem.hessian_times(v, shares, pull)
        total = total + v
    return total


class FixedPoint(torch.autograd.Function):
    """T* as a function of attractors [E, D, N] and pull [D]."""

    @staticmethod
    def forward(
        ctx: Any, attractors: Tensor, pull: Tensor, problem: Problem, gradient: Gradient
    ) -> Tensor:
        """Solve."""
        found = solve(problem, attractors, pull)
        ctx.save_for_backward(attractors, pull, found)
        ctx.problem, ctx.gradient = problem, gradient
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """−(∂²E/∂θ∂T)ᵀ s: only the pull of E depends on what is learnt."""
        (v,), problem = gradients, ctx.problem
        attractors, pull, found = ctx.saved_tensors
        shares = problem.shares(found)
        if ctx.gradient == "exact":
            s = problem.hessian_solve(v, shares, problem.stiffness(pull))
        else:
            s = recurrent(problem, v, shares, pull, ITERATIONS)
        scaled = 2 / problem.ways * s
        return scaled * pull[:, None], -(scaled * (found - attractors)).sum((0, 2)), None, None


METHODS = (MethodSpec("attractor", "Attractor", Attractor(), "pre-trained", rank=2, regular=False),)
