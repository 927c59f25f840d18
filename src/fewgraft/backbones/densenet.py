"""DenseNet-121, whose layers see the outputs of all layers before them.

Huang et al., "Densely connected convolutional networks", CVPR 2017.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fewgraft.backbones import BackboneSpec
from fewgraft.backbones.layers import GlobalAverage, conv1x1, conv3x3, initialise

GROWTH, BOTTLENECK = 32, 4
DEPTHS = (6, 12, 24, 16)
STEM = 64


class DenseLayer(nn.Module):
    """Adds `GROWTH` new feature maps to those that came in."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        inner = BOTTLENECK * GROWTH
        self.new = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(inplace=True),
            conv1x1(inputs, inner),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            conv3x3(inner, GROWTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] → [n, inputs + GROWTH, h, w]."""
        return torch.cat([x, self.new(x)], dim=1)


def make_densenet(channels: int) -> nn.Sequential:
    """Four dense blocks with halving transitions between them."""
    blocks = OrderedDict[str, nn.Module](
        stem=nn.Sequential(
            nn.Conv2d(channels, STEM, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(STEM),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
    )
    width = STEM
    for number, depth in enumerate(DEPTHS):
        layers: list[nn.Module] = []
        if number:
            halved = width // 2
            layers += [nn.BatchNorm2d(width), nn.ReLU(), conv1x1(width, halved), nn.AvgPool2d(2)]
            width = halved
        for _ in range(depth):
            layers.append(DenseLayer(width))
            width += GROWTH
        blocks[f"block{number + 1}"] = nn.Sequential(*layers)
    last = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), GlobalAverage())
    network = nn.Sequential(OrderedDict(**blocks, average=last))
    initialise(network)
    return network


BACKBONES = (
    BackboneSpec("densenet-121", make_densenet, 1024, 84, "121 layers with ImageNet stem"),
)
