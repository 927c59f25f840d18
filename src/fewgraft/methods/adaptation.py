"""The proposed method: refinement, and the network adapted to each task without forgetting.

The S²I-FSL paper (BMVC 2021), Sec. 4.3. From the meta-trained {θ̄, W̄_b}, for every episode anew,
descend on w_cls·L_cls + w_ctr·L_ctr + w_dst·L_dst: cross-entropy of the support over all classes,
contrast between two views of U (Eq. 5), and distillation of base-class predictions on U from the
model as it was (Eqs. 6–7). Then compute the prototypes again, refine, and answer.

W_n, the refined prototypes, stands still during the descent: what the paper adapts is {θ, W_b}, of
θ here the last block. The paper does not print weights, temperatures, rate and steps. Ours are
chosen on validation episodes among positive values. `w_dst` stays 1: a common factor of the three
weights is the same as one of the rate.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Method, MethodSpec, Search, Task
from fewgraft.methods.losses import distillation, nt_xent
from fewgraft.methods.moving import AdaptedSolution, AdaptedWeights, batches, descend, pictures_of
from fewgraft.prototypes import Refinement, direction_logits, prototypes, refine

if TYPE_CHECKING:
    from fewgraft.network import View

# Places [B] in U, and the V views that the student sees them in → logits [V·B, C] to be kept. The
# C columns are the first of W = [W_b, W_n].
Teacher = Callable[[Tensor, "Sequence[View]"], Tensor]


@dataclass(frozen=True)
class Adaptation(Method):
    """Refinement on a network that moves."""

    uses_unlabelled = True
    moves_network = True
    search: ClassVar[Search] = {
        "lr": (3e-3, 1e-2, 3e-2),
        "w_ctr": (0.1, 0.3, 1.0),
        "w_cls": (0.03, 0.1),
        "tau_dst": (1.0, 2.0),
        "tau_ctr": (0.1, 0.5),
        "steps": (10, 20),
    }
    search_by = "coordinates"
    positive: ClassVar[tuple[str, ...]] = ("w_cls", "w_ctr", "w_dst")

    refinement_steps: int = 5
    alpha: float = 1.0
    temperature: float = 1.0  # of the pseudo-labels
    w_cls: float = 0.1
    w_ctr: float = 0.1
    w_dst: float = 1.0
    tau_ctr: float = 0.1  # τ₁
    tau_dst: float = 1.0  # τ₂
    steps: int = 10
    lr: float = 1e-2
    momentum: float = 0.9
    batch: int = 64  # B
    views: int = 2  # kept augmented views of each picture

    def __post_init__(self) -> None:
        """With a weight of 0 it would be another method."""
        for name in self.positive:
            if not getattr(self, name) > 0:
                raise FewgraftError(f"hyper-parameter '{name}' must be above 0")

    def inherited(self, hyper: dict[str, Any]) -> dict[str, Any]:
        """Refinement as it is without adaptation; `steps` are those of the descent here."""
        names = {"steps": "refinement_steps", "alpha": "alpha", "temperature": "temperature"}
        return {names[name]: value for name, value in hyper.items() if name in names}

    def fit(self, task: Task) -> AdaptedSolution:
        """Every episode starts anew; all that moved answers."""
        episodes = [self._episode(task, e) for e in range(len(task))]
        return AdaptedSolution(pictures_of(task).network, episodes, task.gamma)

    def _episode(self, task: Task, e: int) -> AdaptedWeights:
        """{θ, W_b} adapted to one episode, and its W_n; without U nothing is adapted."""
        support, unlabelled = task.support[e], task.unlabelled[e]
        novel = self._refined(task, e, support, unlabelled, task.base_unlabelled[e])
        adapted = self._start(task, novel)
        if len(unlabelled):
            self._descend(task, e, adapted, self._teacher(task, e))
        return self._answering(task, e, adapted.detached())

    def _start(self, task: Task, novel: Tensor) -> AdaptedWeights:
        """{θ̄, W̄_b}, which move, beside W_n, which does not."""
        start = AdaptedWeights.start(pictures_of(task).network, task.weights, novel)
        return dataclasses.replace(start, novel=novel)

    def _teacher(self, task: Task, e: int) -> Teacher:
        """γ·cos of Eq. 7 by {θ̄, W̄_b} over base columns, for the same views as the student's."""
        network, unlabelled = pictures_of(task).network, pictures_of(task).unlabelled[e]

        def logits(places: Tensor, views: "Sequence[View]") -> Tensor:
            seen = [network.initial_features(unlabelled[places], view) for view in views]
            return direction_logits(torch.cat(seen), task.weights, task.gamma)

        return logits

    def _descend(self, task: Task, e: int, adapted: AdaptedWeights, teacher: Teacher) -> None:
        """A batch of U per step."""
        batch = batches(task.unlabelled.shape[1], self.batch, int(task.numbers[e]))
        descend(
            adapted,
            lambda step: self._loss(task, e, adapted, teacher, batch(step), step),
            self.steps,
            self.lr,
            self.momentum,
        )

    def _loss(
        self,
        task: Task,
        e: int,
        adapted: AdaptedWeights,
        teacher: Teacher,
        places: Tensor,
        step: int,
    ) -> Tensor:
        """w_cls·L_cls + w_ctr·L_ctr + w_dst·L_dst on the pictures of U at places [B]."""
        pictures = pictures_of(task)
        network, chosen = pictures.network, pictures.unlabelled[e][places]
        views = [network.weak_view((step + turn) % self.views) for turn in (0, 1)]
        seen = [
            network.trunk_activations(pictures.support[e]),
            *(network.trunk_activations(chosen, view) for view in views),
        ]
        features = network.head_features(torch.cat(seen), adapted.parameters)
        few, first, second = torch.split(features, [len(part) for part in seen])
        answers = adapted.logits(few, task.gamma)
        loss = self.w_cls * cross_entropy(answers, task.labels[e] + len(task.weights))  # L_cls
        loss = loss + self.w_ctr * nt_xent(first, second, self.tau_ctr)  # L_ctr, Eq. 5
        teachers = teacher(places, views)
        if teachers.shape[1]:  # without base classes the sum of Eq. 6 is empty
            students = adapted.logits(torch.cat([first, second]), task.gamma)
            students = students[:, : teachers.shape[1]]
            loss = loss + self.w_dst * distillation(students, teachers, self.tau_dst)  # Eq. 6
        return loss

    @torch.no_grad()
    def _answering(
        self, task: Task, e: int, adapted: AdaptedWeights, base: Tensor | None = None
    ) -> AdaptedWeights:
        """The adapted network with prototypes of its own features, refined again.

        U's base logits [U, N_b] are the adapted network's, unless others are given.
        """
        pictures = pictures_of(task)
        support, unlabelled = (
            pictures.network.features(part, adapted.parameters)
            for part in (pictures.support[e], pictures.unlabelled[e])
        )
        if base is None:
            base = direction_logits(unlabelled, adapted.base, task.gamma)
        return dataclasses.replace(adapted, novel=self._refined(task, e, support, unlabelled, base))

    @torch.no_grad()
    def _refined(
        self, task: Task, e: int, support: Tensor, unlabelled: Tensor, base: Tensor
    ) -> Tensor:
        """Eqs. 2–4: W_n [N, d] of one episode.

        From features [S, d] and [U, d], and the base logits [U, N_b] of U.
        """
        labels = task.labels[e : e + 1]
        novel = prototypes(support[None], labels, task.ways)
        if len(unlabelled):
            novel = refine(
                novel,
                support[None],
                labels,
                unlabelled[None],
                base[None],
                task.gamma,
                Refinement(self.refinement_steps, self.alpha, self.temperature),
            )
        return novel[0]


METHODS = (
    MethodSpec(
        "proposed",
        "Proposed",
        Adaptation(),
        "algorithm-2",
        rank=8,
        builds_on="proposed-without-adaptation",
    ),
)
