"""Layers that several families share."""

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from fewgraft.backbones.winograd import Conv3x3


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3×3 convolution without bias: a normalisation follows."""
    return Conv3x3(inputs, outputs, 3, stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 1×1 convolution without bias."""
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


def initialise(module: nn.Module, slope: float = 0.0) -> None:
    """He initialisation for the (leaky) ReLU around each convolution."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, a=slope, nonlinearity="leaky_relu")


class GlobalAverage(nn.Module):
    """Mean over all places: [n, d, h, w] → [n, d]."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean of each feature map."""
        return x.mean((2, 3))


class DropBlock(nn.Module):
    """Drops whole squares of a feature map, as neighbours tell the same.

    Ghiasi et al., "DropBlock: a regularization method for convolutional networks", NeurIPS 2018.
    """

    def __init__(self, rate: float, side: int) -> None:
        super().__init__()
        self.rate = rate
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        """x [n, c, h, w] with about `rate` of it in dropped squares; unchanged in eval mode."""
        if not self.training or self.rate == 0:
            return x
        side = min(self.side, *x.shape[2:])
        places = (x.shape[2] - side + 1) * (x.shape[3] - side + 1)
        chance = self.rate * x.shape[2] * x.shape[3] / side**2 / places
        seeds = torch.rand(*x.shape[:2], x.shape[2] - side + 1, x.shape[3] - side + 1) < chance
        # Each seed becomes a square: the maximum over all squares that can reach a place.
        dropped = max_pool2d(
            nn.functional.pad(seeds.to(x), [side - 1] * 4), kernel_size=side, stride=1
        )
        kept = 1 - dropped
        return x * kept * (kept.numel() / kept.sum().clamp(min=1))
