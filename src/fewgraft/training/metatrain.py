"""Meta-training: Algorithm 1 (Meta-Inc-Baseline) and Algorithm 2 (with fake unlabelled data).

Both sample incremental few-shot episodes from novel/train and base/train, build W = [W_b, W_n] and
descend on the cross-entropy of the queries. Algorithm 2 also samples an unlabelled set, whose
labels it never looks at, and refines W_n with it (Eqs. 3–4), so that the network learns features
with which refinement does not blur base and novel classes.
"""

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fewgraft.augment import augment
from fewgraft.data.store import ImageStore
from fewgraft.draws import KeyStream
from fewgraft.episodes import Answers, Episodes, EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.model import CosineModel
from fewgraft.network import KeptActivations, Network, View
from fewgraft.prototypes import Refinement, cosine_logits, joint_logits, without_columns
from fewgraft.training.phase import Phase, Share
from fewgraft.training.recipe import Metatraining, Recipe
from fewgraft.training.validation import Validator

Algorithm = Literal[1, 2]


def query_logits(
    model: CosineModel,
    support: Tensor,
    query: Tensor,
    unlabelled: Tensor,
    episodes: Episodes,
    refinement: Refinement | None,
    rehearsal: bool,
) -> Tensor:
    """Ŷ_q before the softmax [E, Q, N_b+N], from features [E, ·, d] of S, Q and U."""
    labels = episodes.support_labels - episodes.n_base

    def base(features: Tensor) -> Tensor:
        logits = cosine_logits(features, model.weight, model.gamma)
        return without_columns(logits, episodes.classes) if rehearsal else logits

    return joint_logits(
        support,
        labels,
        episodes.settings.ways,
        query,
        base(query),
        unlabelled,
        base(unlabelled),
        model.gamma,
        refinement,
    )


class Metatrain(Phase):
    """Algorithm 1 or 2, several episodes a step, the shots in turn."""

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        recipe: Recipe,
        algorithm: Algorithm,
        kept: KeptActivations | None = None,
    ) -> None:
        self.model = model
        self.name = f"algorithm-{algorithm}"
        self._how = recipe.metatraining
        self._seed = recipe.seed
        self._refinement = self._how.refinement if algorithm == 2 else None
        turned = self._how.novel == "turned"
        self._pools = Pools.turned(store) if turned else Pools.of(store, "train")
        self._settings = [_settings(recipe, shots, algorithm) for shots in self._how.shots]
        self._embedder = _Embedder(model, store, self._how, kept)
        self._validator = Validator(store, recipe, "s2i" if algorithm == 2 else "incremental")
        self._test_refinement = Refinement(steps=recipe.validation.refinement_steps)
        self.steps = self._how.steps
        self.validate_every = self._how.validate_every
        self.optimisation = self._how.optimisation

    def loss(self, step: int, share: Share) -> tuple[Tensor, float]:
        """The loop body of Algorithms 1 and 2, but for the update."""
        episodes, answers = self._sample(step, share)
        parts = [episodes.support, episodes.query, episodes.unlabelled]
        features = self._embedder(torch.cat(parts, dim=1), self._seed, step, share)
        support, query, unlabelled = torch.split(features, [p.shape[1] for p in parts], 1)
        episodes = episodes.to(features.device)
        logits = query_logits(
            self.model,
            support,
            query,
            unlabelled,
            episodes,
            self._refinement,
            self._pools.rehearsal,
        )
        labels = answers.query_labels.to(logits.device)
        accuracy = (logits.detach().argmax(-1) == labels).float().mean().item()
        return cross_entropy(logits.flatten(0, 1), labels.flatten()), accuracy

    def _sample(self, step: int, share: Share) -> tuple[Episodes, Answers]:
        """This share of the step's episodes; all processes together do all of them."""
        settings = self._settings[step % len(self._settings)]
        numbers = range(self._how.episodes)[share.number :: share.of]
        if not numbers:
            raise FewgraftError(
                f"{share.of} processes cannot share {self._how.episodes} episodes a step",
                "Raise metatraining.episodes or use fewer processes.",
            )
        first = step * self._how.episodes
        drawn = [sample_episodes(self._pools, settings, 1, first + n) for n in numbers]
        return _join([episodes for episodes, _ in drawn]), _join_answers([a for _, a in drawn])

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Val episodes in the setting that the algorithm rehearses."""
        features = self._embedder.plain(self._validator.pictures)
        weights, gamma = self.model.weight.detach(), self.model.gamma.detach()
        refinement = self._test_refinement if self._refinement else None
        return self._validator.figures(self._validator.scores(features, weights, gamma, refinement))

    def moving(self) -> list[tuple[str, nn.Parameter]]:
        """θ (or its last block) and W_b."""
        fixed = {id(p) for p in self._embedder.lower.parameters()}
        return [(n, p) for n, p in self.model.named_parameters() if id(p) not in fixed]

    def set_mode(self) -> None:
        """Normalisation statistics stay those of pre-training: episodes are no fair sample."""
        self.model.eval()


def _settings(recipe: Recipe, shots: int, algorithm: Algorithm) -> EpisodeSettings:
    how = recipe.metatraining
    return EpisodeSettings.paper(
        "s2i" if algorithm == 2 else "incremental",
        shots,
        split="train",
        ways=how.ways,
        queries=how.queries,
        base_queries=how.base_queries,
        unlabelled=how.unlabelled if algorithm == 2 else 0,
        seed=recipe.seed,
    )


def _join(parts: Sequence[Episodes]) -> Episodes:
    names = ("classes", "support", "support_labels", "query", "unlabelled")
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Episodes(settings=parts[0].settings, n_base=parts[0].n_base, **joined)


def _join_answers(parts: Sequence[Answers]) -> Answers:
    return Answers(
        torch.cat([part.query_labels for part in parts]),
        torch.cat([part.unlabelled_labels for part in parts]),
    )


class _Embedder:
    """Features of pictures by index; with `moves = "last-block"` what lies below it is kept.

    Kept activations can be those of the mirrored picture; any other augmentation needs "all".
    """

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        how: Metatraining,
        kept: KeptActivations | None,
    ) -> None:
        self._model = model
        self._store = store
        self._how = how
        self._network = Network(model, store.pictures, how.moves, kept)
        self.lower = self._network.lower

    def __call__(self, pictures: Tensor, seed: int, step: int, share: Share) -> Tensor:
        """Features [E, n, d] of augmented pictures [E, n]; each episode has its own randomness."""
        below = []
        for row, indices in enumerate(pictures):
            number = step * self._how.episodes + row * share.of + share.number
            key = int(KeyStream(seed, number).keys(1)[0] >> 1)
            below.append(self._below(indices, torch.Generator().manual_seed(key)))
        return self._network.above(torch.cat(below)).view(*pictures.shape, -1)

    def _below(self, indices: Tensor, rng: torch.Generator) -> Tensor:
        """What enters the moving part."""
        quarters, indices = indices // len(self._store), indices % len(self._store)
        if self._how.moves == "all":
            pixels = torch.from_numpy(self._store.pictures[indices.numpy()])
            pixels = augment(pixels, self._how.augmentation, rng)
            for turns in (1, 2, 3):
                chosen = quarters == turns
                pixels[chosen] = torch.rot90(pixels[chosen], turns, (1, 2))
            return self._model.prepare(pixels)
        mirrored = torch.rand(len(indices), generator=rng) < 0.5
        return self._kept(indices, quarters, mirrored & self._how.augmentation.mirror)

    def _kept(self, indices: Tensor, quarters: Tensor, mirrored: Tensor) -> Tensor:
        """Kept activations of pictures [n], each turned by its quarters and mirrored or not."""
        groups = []
        for turns, mirror in itertools.product(range(4), (False, True)):
            places = torch.nonzero((quarters == turns) & (mirrored == mirror)).flatten()
            if len(places):
                view = View(mirrored=mirror, turns=turns)
                groups.append((places, self._network.below(indices[places], view)))
        order = torch.cat([places for places, _ in groups]).argsort()
        return torch.cat([below for _, below in groups])[order]

    def plain(self, indices: Tensor, batch: int = 256) -> Tensor:
        """Features [n, d] without augmentation."""
        return torch.cat([self._fixed(some) for some in torch.split(indices, batch)])

    def _fixed(self, indices: Tensor) -> Tensor:
        if self._how.moves == "last-block":
            return self._network.features(indices)
        pixels = torch.from_numpy(self._store.pictures[indices.numpy()])
        return self._model.embed(self._model.prepare(pixels))
