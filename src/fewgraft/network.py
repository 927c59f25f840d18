"""A trained network of a frozen trunk and a moving head; the trunk runs once per picture.

The trunk never changes, so that its activations are kept for every picture that was asked for and
for each view of it: as it is, mirrored, or augmented at random. An episode that adapts the network
then costs only what moves.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fewgraft.augment import Augmentation, augment, stronger
from fewgraft.data.pictures import Pixels
from fewgraft.draws import KeyStream
from fewgraft.errors import FewgraftError, reading
from fewgraft.model import CosineModel
from fewgraft.parsing import validated
from fewgraft.progress import track
from fewgraft.prototypes import directions

MOVES = ("last-block", "all")
_BLOCK = 256  # pictures that are computed together, so that a view never depends on who asks first


AS_IT_IS = Augmentation()


@dataclass(frozen=True)
class View:
    """One way to look at every picture; `number` tells random ones of the same kind apart."""

    augmentation: Augmentation = AS_IT_IS
    number: int = 0
    mirrored: bool = False
    quarters: int = 0  # turns by 90 degrees


PLAIN = View()

Parameters = Mapping[str, Tensor]


def divided(backbone: nn.Module, moves: str) -> tuple[nn.Module, nn.Module]:
    """The frozen trunk and the moving head."""
    if not any(True for _ in backbone.parameters()):
        raise FewgraftError(
            "this backbone has no parameters, so nothing in it can move",
            "Use a method that works on features alone.",
        )
    if moves == "all":
        return nn.Identity(), backbone
    if not isinstance(backbone, nn.Sequential) or len(backbone) < 3:
        raise FewgraftError(
            "this backbone is not a sequence of blocks, so its last block cannot move alone",
            'Set metatraining.moves = "all".',
        )
    return backbone[:-2], backbone[-2:]  # the last one is the average


class Network:
    """f_θ over the pictures of a data set: a frozen trunk and a head that may move."""

    plain = PLAIN  # the view of a picture as it is

    def __init__(
        self,
        model: CosineModel,
        pictures: Pixels,
        moves: str = "last-block",
        kept: "KeptActivations | None" = None,
    ) -> None:
        self.model = model.eval()
        self._pictures = pictures
        self.trunk, self._head = divided(model.backbone, moves)
        # Networks with the same trunk, over the same pictures, may share what is kept.
        self._kept: KeptActivations = {} if kept is None else kept
        self._initial: KeptActivations = {}
        self.keeping_seconds = 0.0  # spent in the trunk so far, for activations that are kept
        # Features are means over these views.
        self.views = (PLAIN, View(mirrored=True)) if model.card.mirrored else (PLAIN,)
        with reading("the model's recipe", "readable recipe"):
            trained_with = model.card.recipe.get("pretraining", {}).get("augmentation", {})
            self.weak = validated(Augmentation, trained_with)
        self.strong = stronger(self.weak)

    def weak_view(self, number: int) -> View:
        """A random view, augmented as in training."""
        return View(self.weak, number)

    def strong_view(self, number: int) -> View:
        """A random view, augmented more strongly than in training."""
        return View(self.strong, number)

    @property
    def start(self) -> dict[str, Tensor]:
        """The parameters of the head, as training left them."""
        return {name: p.detach() for name, p in self._head.named_parameters()}

    def trunk_activations(self, pictures: Tensor, view: View = PLAIN) -> Tensor:
        """What enters the head [n, c, h, w], for pictures [n] by index."""
        return self._from(self._kept, pictures, view, self._compute)

    def initial_features(self, pictures: Tensor, view: View = PLAIN) -> Tensor:
        """Directions [n, d] as training left the network: kept, so the model must stay itself."""
        return self._from(self._initial, pictures, view, self._compute_initial)

    def _from(
        self,
        kept: "KeptActivations",
        pictures: Tensor,
        view: View,
        compute: Callable[[int, View], Tensor],
    ) -> Tensor:
        """Rows of pictures [n]; blocks that nobody has asked for yet are computed now."""
        values = kept.setdefault(view, _Kept(len(self._pictures)))
        blocks = np.unique(pictures.numpy() // _BLOCK)
        missing = blocks[~values.there[blocks]].tolist()
        todo = track(missing, "keeping activations", len(missing)) if missing[1:] else missing
        for block in todo:
            values.put(block, compute(block, view))
        return values.take(pictures)

    @torch.no_grad()
    def _compute_initial(self, block: int, view: View) -> Tensor:
        last = min((block + 1) * _BLOCK, len(self._pictures))
        return directions(
            self.head_features(self.trunk_activations(torch.arange(block * _BLOCK, last), view))
        )

    @torch.no_grad()
    def _compute(self, block: int, view: View) -> Tensor:
        pixels = torch.from_numpy(np.array(self._pictures[block * _BLOCK : (block + 1) * _BLOCK]))
        rng = torch.Generator().manual_seed(int(KeyStream(view.number, block).keys(1)[0] >> 1))
        pixels = augment(pixels, view.augmentation, rng)
        pixels = pixels.flip(2) if view.mirrored else pixels
        pixels = torch.rot90(pixels, view.quarters, (1, 2)) if view.quarters else pixels
        start = time.perf_counter()
        activations: Tensor = self.trunk(self.model.prepare(pixels))
        self.keeping_seconds += time.perf_counter() - start
        return activations

    def head_features(self, activations: Tensor, parameters: Parameters | None = None) -> Tensor:
        """Features [n, d] of any length from activations, by the head with these parameters."""
        features: Tensor
        if parameters is None:
            features = self._head(activations)
        else:
            features = functional_call(self._head, dict(parameters), (activations,))
        return self.model.place(features)

    def features(
        self,
        pictures: Tensor,
        parameters: Parameters | None = None,
        views: Sequence[View] | None = None,
    ) -> Tensor:
        """Directions [..., d] of pictures [...] as they are, or in other views."""
        if pictures.numel() == 0:
            return self.model.weight.new_empty(*pictures.shape, self.model.card.width)
        seen = [
            self.head_features(self.trunk_activations(pictures.flatten(), v), parameters)
            for v in views or self.views
        ]
        return directions(sum(seen[1:], seen[0])).view(*pictures.shape, -1)


class _Kept:
    """Activations of one view; memory is only taken for blocks that were asked for."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.there = np.zeros(-(-total // _BLOCK), bool)
        self._values = torch.empty(0)

    def put(self, block: int, activations: Tensor) -> None:
        if not self.there.any():
            shape = (self._total, *activations.shape[1:])
            self._values = torch.empty(
                shape, memory_format=_layout(activations), device=activations.device
            )
        self._values[block * _BLOCK :][: len(activations)] = activations
        self.there[block] = True

    def take(self, pictures: Tensor) -> Tensor:
        return self._values[pictures]


KeptActivations = dict[View, _Kept]


def _layout(activations: Tensor) -> torch.memory_format:
    """Channels last where the activations are: that is how convolutions on a CPU like them."""
    last = activations.ndim == 4 and activations.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
