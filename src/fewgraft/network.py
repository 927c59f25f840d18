"""A trained network whose upper part can move, above activations that are computed once a picture.

What lies below the moving part never changes, so that its output is kept for every picture that was
asked for and for each view of it: as it is, mirrored, or augmented at random. An episode that
adapts the network then costs only what moves.
"""

from collections.abc import Callable, Mapping
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

MOVES = ("last-block", "all")
_BLOCK = 256  # pictures that are computed together, so that a view never depends on who asks first


AS_IT_IS = Augmentation()


@dataclass(frozen=True)
class View:
    """One way to look at every picture; `number` tells random ones of the same kind apart."""

    how: Augmentation = AS_IT_IS
    number: int = 0
    mirrored: bool = False
    turns: int = 0  # by so many quarters


PLAIN = View()

Parameters = Mapping[str, Tensor]


def divided(backbone: nn.Module, moves: str) -> tuple[nn.Module, nn.Module]:
    """The part that stays and the part that moves."""
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
    """f_θ over the pictures of a data set, divided into what stays and what may move."""

    def __init__(
        self,
        model: CosineModel,
        pictures: Pixels,
        moves: str = "last-block",
        kept: "KeptActivations | None" = None,
    ) -> None:
        self.model = model.eval()
        self._pictures = pictures
        self.lower, self._upper = divided(model.backbone, moves)
        # Networks with the same part that stays, over the same pictures, may share what is kept.
        self._kept: KeptActivations = {} if kept is None else kept
        self._begun: KeptActivations = {}
        self._views = (PLAIN, View(mirrored=True)) if model.card.mirrored else (PLAIN,)
        with reading("the model's recipe", "readable recipe"):
            trained_with = model.card.recipe.get("pretraining", {}).get("augmentation", {})
            self.weak = validated(Augmentation, trained_with)
        self.strong = stronger(self.weak)

    @property
    def start(self) -> dict[str, Tensor]:
        """The parameters of the moving part, as training left them."""
        return {name: p.detach() for name, p in self._upper.named_parameters()}

    def below(self, pictures: Tensor, view: View = PLAIN) -> Tensor:
        """What enters the moving part [n, c, h, w], for pictures [n] by index."""
        return self._from(self._kept, pictures, view, self._compute)

    def begun(self, pictures: Tensor, view: View = PLAIN) -> Tensor:
        """Features [n, d] as training left the network: kept too, so the model must stay itself."""
        return self._from(self._begun, pictures, view, self._compute_begun)

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
        for block in blocks[~values.there[blocks]].tolist():
            values.put(block, compute(block, view))
        return values.take(pictures)

    @torch.no_grad()
    def _compute_begun(self, block: int, view: View) -> Tensor:
        last = min((block + 1) * _BLOCK, len(self._pictures))
        return self.above(self.below(torch.arange(block * _BLOCK, last), view))

    @torch.no_grad()
    def _compute(self, block: int, view: View) -> Tensor:
        pixels = torch.from_numpy(np.array(self._pictures[block * _BLOCK : (block + 1) * _BLOCK]))
        rng = torch.Generator().manual_seed(int(KeyStream(view.number, block).keys(1)[0] >> 1))
        pixels = augment(pixels, view.how, rng)
        pixels = pixels.flip(2) if view.mirrored else pixels
        pixels = torch.rot90(pixels, view.turns, (1, 2)) if view.turns else pixels
        activations: Tensor = self.lower(self.model.prepare(pixels))
        return activations

    def above(self, activations: Tensor, parameters: Parameters | None = None) -> Tensor:
        """Features [n, d] from activations, by the moving part with these parameters."""
        features: Tensor
        if parameters is None:
            features = self._upper(activations)
        else:
            features = functional_call(self._upper, dict(parameters), (activations,))
        return features - self.model.centre if self.model.card.centred else features

    def features(self, pictures: Tensor, parameters: Parameters | None = None) -> Tensor:
        """Features [..., d] of pictures [...] as they are."""
        if pictures.numel() == 0:
            return torch.empty(*pictures.shape, self.model.card.width)
        seen = [self.above(self.below(pictures.flatten(), v), parameters) for v in self._views]
        return (sum(seen[1:], seen[0]) / len(seen)).view(*pictures.shape, -1)


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
