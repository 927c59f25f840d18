"""From draws of sessions to scores: a method learns session after session, and is asked after each.

SessionFeatures → Carried.task → Method.fit → Carried.after → SessionScores
"""

import dataclasses
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from fewgraft.base_knowledge import BaseKnowledge
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.draws import Indices
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import feature_bank
from fewgraft.methods.base import Method, Queries
from fewgraft.methods.carried import Carried
from fewgraft.model import CosineModel
from fewgraft.prototypes import directions
from fewgraft.session_scores import SessionScores, score_session
from fewgraft.sessions import SessionDraws, SessionPools
from fewgraft.split_features import SplitFeatures

BASES = ("weights", "means")  # what base classes begin with: W_b, or class means of base/train


class SessionFeatures(SplitFeatures):
    """A model over the pictures that sessions may draw."""

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        split: str,
        queries: int,
        root: Path | None = None,
        models: Path | None = None,
    ) -> None:
        super().__init__(model, store, split, root, models)
        self.pools = SessionPools.of(store, split, queries)

    def _pictures(self) -> Indices:
        return self.pools.pictures

    @cached_property
    def base_means(self) -> Tensor:
        """Mean directions of all of base/train per base class [N_b, d]."""
        pictures = self.store.indices(Part.BASE_TRAIN)
        features = feature_bank(self.model, self.store, pictures, self._root).features
        labels = torch.from_numpy(self.store.labels[pictures]).long()
        total = torch.zeros_like(self.weights, device="cpu").index_add_(0, labels, features)
        return directions(total).to(self.weights.device)

    def begin(self, base: str, method: Method) -> Carried:
        """The base classes as a method finds them."""
        weights, scores = self.base_means if base == "means" else self.weights, None
        if method.uses_knowledge:
            scores = partial(_scores, method, self.knowledge)
        return Carried.begin(weights, self.gamma, scores)

    def lessons(
        self, method: Method, draws: SessionDraws, number: int, base: str = "weights"
    ) -> Iterator[Carried]:
        """The classifier after sessions 0 … T of a draw.

        A method that changes base classes is asked to learn from a task without novel ones first.
        """
        if method.moves_network or method.uses_pictures:
            raise FewgraftError(
                "sessions are for methods that work on features alone", "Leave this method out."
            )
        carried, ways = self.begin(base, method), draws.settings.ways
        none = draws.support[number, 0, :0]
        sessions = [(0, none, none)] if method.changes_base else []
        if not sessions:
            yield carried
        pairs = zip(draws.support[number], draws.unlabelled[number], strict=True)
        looks = method.uses_unlabelled  # else nobody has to answer for U
        sessions += [(ways, support, u if looks else none) for support, u in pairs]
        for new, support, unlabelled in sessions:
            task = carried.task(new, self._rows(support), self._rows(unlabelled), number)
            task = dataclasses.replace(
                task,
                learnt=self.learnt(method, draws.settings.shots),
                base_features=self.base_features if method.uses_base_features else None,
                mid=self._mid_rows(support, unlabelled) if method.uses_mid_features else None,
                knowledge=self.knowledge if method.uses_knowledge else None,
            )
            carried = carried.after(method.fit(task))
            yield carried

    def _mid_rows(self, *kinds: Indices) -> tuple[Tensor, Tensor] | None:
        """Mid-level directions of support [1, S, c] and unlabelled [1, U, c]."""
        if self.mid is None:
            return None
        support, unlabelled = (self.mid[torch.from_numpy(some)][None] for some in kinds)
        return support, unlabelled

    def _rows(self, pictures: Indices) -> Tensor:
        return self.bank[torch.from_numpy(pictures)]

    @torch.no_grad()
    def session_scores(
        self, method: Method, draws: SessionDraws, some: range, base: str = "weights"
    ) -> SessionScores:
        """How right a method is after each session, in consecutive draws."""
        found = torch.tensor(
            [self._scores_of(method, draws, number, base) for number in some], dtype=torch.float64
        )
        return SessionScores(*found.movedim(-1, 0).contiguous())

    def _scores_of(
        self, method: Method, draws: SessionDraws, number: int, base: str
    ) -> list[list[float]]:
        """[T+1, 4] of one draw. Solutions answer in turn, so that each is asked once per query."""
        pictures, columns = (torch.from_numpy(part) for part in draws.queries(number))
        features, ways = self.bank[pictures][None], draws.settings.ways
        rows: list[list[float]] = []
        logits, asked = torch.empty(0), 0
        for carried in self.lessons(method, draws, number, base):
            logits = logits if rows else carried.base_logits(features)
            for solution in carried.solutions[asked:]:
                logits = solution.logits(Queries(features, logits))
            asked = len(carried.solutions)
            seen = int((columns < logits.shape[-1]).sum())  # they are in the order of columns
            answers = logits[0, :seen].argmax(-1).cpu()
            rows.append(score_session(answers, columns[:seen], draws.n_base, ways if rows else 0))
        return rows


def _scores(
    method: Method, knowledge: BaseKnowledge | None, features: Tensor, logits: Tensor
) -> Tensor:
    return method.base_scores(features, logits, knowledge)
