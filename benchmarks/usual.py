"""A network as it is usually written, to measure against."""

from torch import nn

from fewgraft.backbones.winograd import Conv3x3


def with_usual_convolutions(network: nn.Module) -> nn.Module:
    """The same network with the same parameters; every convolution is the library's."""
    for parent in list(network.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, Conv3x3):
                stride = layer.stride[0]
                usual = nn.Conv2d(layer.in_channels, layer.out_channels, 3, stride, 1, bias=False)
                usual.weight = layer.weight
                setattr(parent, name, usual)
    return network
