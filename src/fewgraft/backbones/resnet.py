"""ResNet-10 and ResNet-18 with basic blocks, for small pictures or with the ImageNet stem.

He et al., "Deep residual learning for image recognition", CVPR 2016.
"""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.functional import relu

from fewgraft.backbones import BackboneSpec
from fewgraft.backbones.layers import GlobalAverage, conv1x1, conv3x3, initialise

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv3x3(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            conv3x3(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] → [n, outputs, h/stride, w/stride]."""
        return relu(self.residual(x) + self.shortcut(x))


def _stem(channels: int, imagenet: bool) -> nn.Sequential:
    if imagenet:
        convolution = nn.Conv2d(channels, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        return nn.Sequential(
            convolution,
            nn.BatchNorm2d(WIDTHS[0]),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
    return nn.Sequential(
        conv3x3(channels, WIDTHS[0]), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU(inplace=True)
    )


def make_resnet(channels: int, depth: int, imagenet: bool) -> nn.Sequential:
    """Four stages of `depth` basic blocks each."""
    blocks = OrderedDict[str, nn.Module](stem=_stem(channels, imagenet))
    inputs = WIDTHS[0]
    for number, outputs in enumerate(WIDTHS):
        stage = [
            BasicBlock(outputs if i else inputs, outputs, stride=2 if number and not i else 1)
            for i in range(depth)
        ]
        blocks[f"block{number + 1}"] = nn.Sequential(*stage)
        inputs = outputs
    network = nn.Sequential(OrderedDict(**blocks, average=GlobalAverage()))
    initialise(network)
    return network


def _spec(name: str, size: int, depth: int, imagenet: bool, summary: str) -> BackboneSpec:
    return BackboneSpec(
        name, lambda channels: make_resnet(channels, depth, imagenet), WIDTHS[-1], size, summary
    )


BACKBONES = (
    _spec("resnet10", 84, 1, True, "one basic block a stage, ImageNet stem"),
    _spec("resnet18", 32, 2, False, "two basic blocks a stage, for small pictures"),
    _spec("resnet18-imagenet", 84, 2, True, "two basic blocks a stage, ImageNet stem"),
)
