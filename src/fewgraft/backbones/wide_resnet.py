"""WRN-28-10: shallow, wide and pre-activated.

Zagoruyko and Komodakis, "Wide residual networks", BMVC 2016.
"""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.functional import relu

from fewgraft.backbones import BackboneSpec
from fewgraft.backbones.layers import GlobalAverage, conv1x1, conv3x3, initialise

DEPTH, WIDEN = 28, 10
WIDTHS = (16 * WIDEN, 32 * WIDEN, 64 * WIDEN)


class WideBlock(nn.Module):
    """Normalisation and ReLU come before each convolution, and before the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(inputs)
        self.residual = nn.Sequential(
            conv3x3(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            conv3x3(outputs, outputs),
        )
        self.shortcut = conv1x1(inputs, outputs, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] → [n, outputs, h/stride, w/stride]."""
        activated = relu(self.first_norm(x))
        kept: Tensor = x if self.shortcut is None else self.shortcut(activated)
        residual: Tensor = self.residual(activated)
        return kept + residual


def make_wide_resnet(channels: int) -> nn.Sequential:
    """Three stages of four blocks."""
    blocks = OrderedDict[str, nn.Module](stem=conv3x3(channels, 16))
    inputs = 16
    for number, outputs in enumerate(WIDTHS):
        stage = [
            WideBlock(outputs if i else inputs, outputs, stride=2 if number and not i else 1)
            for i in range((DEPTH - 4) // 6)
        ]
        blocks[f"block{number + 1}"] = nn.Sequential(*stage)
        inputs = outputs
    last = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), GlobalAverage())
    network = nn.Sequential(OrderedDict(**blocks, average=last))
    initialise(network)
    return network


BACKBONES = (
    BackboneSpec("wrn-28-10", make_wide_resnet, WIDTHS[-1], 32, "28 layers, ten times as wide"),
)
