"""ResNet-12 in the widths that few-shot papers use, and narrow ones for a CPU.

The blocks of Oreshkin et al., "TADAM", NeurIPS 2018, with the drops of Lee et al., "Meta-learning
with differentiable convex optimization", CVPR 2019: three 3×3 convolutions, a 1×1 shortcut,
max-pooling.
"""

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from fewgraft.backbones import BackboneSpec
from fewgraft.backbones.layers import DropBlock, GlobalAverage, conv1x1, conv3x3, initialise

SLOPE = 0.1


@dataclass(frozen=True)
class ResNet12Config:
    """Widths of the blocks; a stem that halves the picture first, if any; the drops."""

    widths: tuple[int, ...]
    stem: int = 0  # filters of the pooled stem
    drop: float = 0.1
    drop_block: int = 5  # side of the dropped squares in the last two blocks


class Block(nn.Module):
    """Three convolutions beside a shortcut, pooled to half the size."""

    def __init__(self, inputs: int, outputs: int, drop: nn.Module) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv3x3(inputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(SLOPE, inplace=True),
            conv3x3(outputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(SLOPE, inplace=True),
            conv3x3(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(conv1x1(inputs, outputs), nn.BatchNorm2d(outputs))
        self.activation = nn.LeakyReLU(SLOPE, inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] → [n, outputs, h/2, w/2].

        Pooling before the activation is the same as after it, because the activation is monotone,
        and leaves it a quarter of the work.
        """
        joint = self.residual(x).add_(self.shortcut(x))
        dropped: Tensor = self.drop(self.activation(self.pool(joint)))
        return dropped


def make_resnet12(channels: int, config: ResNet12Config) -> nn.Sequential:
    """The network of these widths."""
    blocks = OrderedDict[str, nn.Module]()
    inputs = channels
    if config.stem:
        blocks["stem"] = nn.Sequential(
            conv3x3(channels, config.stem),
            nn.BatchNorm2d(config.stem),
            nn.MaxPool2d(2),
            nn.LeakyReLU(SLOPE, inplace=True),
        )
        inputs = config.stem
    for number, outputs in enumerate(config.widths):
        late = number >= len(config.widths) - 2
        drop = DropBlock(config.drop, config.drop_block) if late else nn.Dropout(config.drop)
        blocks[f"block{number + 1}"] = Block(inputs, outputs, drop)
        inputs = outputs
    network = nn.Sequential(OrderedDict(**blocks, average=GlobalAverage()))
    initialise(network, SLOPE)
    return network


def _spec(name: str, size: int, config: ResNet12Config, summary: str) -> BackboneSpec:
    return BackboneSpec(
        name, lambda channels: make_resnet12(channels, config), config.widths[-1], size, summary
    )


BACKBONES = (
    _spec("resnet12", 84, ResNet12Config((64, 160, 320, 640)), "the paper's Res12"),
    _spec("resnet12-512", 84, ResNet12Config((64, 128, 256, 512)), "Meta-Baseline's Res12"),
    _spec("resnet12-256", 84, ResNet12Config((64, 96, 128, 256)), "XtarNet's Res12"),
    _spec(
        "resnet12-narrow",
        32,
        ResNet12Config((64, 128, 256), stem=32, drop=0.0),
        "for a CPU: pooled stem, 2.0 M parameters",
    ),
    _spec(
        "resnet12-tiny",
        32,
        ResNet12Config((32, 64, 128), stem=16, drop=0.0),
        "for Icons: pooled stem, 0.5 M parameters",
    ),
)
