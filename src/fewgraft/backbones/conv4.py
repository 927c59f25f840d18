"""Conv-4: four blocks of 64 filters, the small network of the first few-shot papers.

Vinyals et al., "Matching networks for one shot learning", NeurIPS 2016.
"""

from collections import OrderedDict

from torch import nn

from fewgraft.backbones import BackboneSpec
from fewgraft.backbones.layers import GlobalAverage, conv3x3, initialise


def make_conv4(channels: int, width: int = 64) -> nn.Sequential:
    """Four times convolution, normalisation, ReLU and pooling, then the global average."""
    blocks = OrderedDict[str, nn.Module]()
    for number in range(4):
        blocks[f"block{number + 1}"] = nn.Sequential(
            conv3x3(width if number else channels, width),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
    network = nn.Sequential(OrderedDict(**blocks, average=GlobalAverage()))
    initialise(network)
    return network


BACKBONES = (
    BackboneSpec("conv4", make_conv4, width=64, size=84, summary="four blocks of 64 filters"),
)
