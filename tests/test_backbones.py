"""Every backbone of the registry keeps the same promises."""

import pytest
import torch
from torch import nn

from fewgraft.backbones import backbone_spec, backbones, create_backbone
from fewgraft.backbones.layers import DropBlock
from fewgraft.backbones.resnet12 import Block
from fewgraft.errors import FewgraftError

pytestmark = pytest.mark.numerical

# Millions of parameters with three input channels: 12.42 (Res12), 11.17 (ResNet-18), 36.47
# (WRN-28-10) and 6.95 (DenseNet-121, no classifier) are the published sizes.
PARAMETERS = {
    "conv4": 112_832,
    "resnet10": 4_905_792,
    "resnet12": 12_424_320,
    "resnet12-512": 7_996_800,
    "resnet12-256": 2_232_448,
    "resnet12-narrow": 1_982_880,
    "resnet12-tiny": 496_848,
    "resnet18": 11_168_832,
    "resnet18-imagenet": 11_176_512,
    "wrn-28-10": 36_472_784,
    "densenet-121": 6_953_856,
    # As in the packages, less the 1,281,000 of the classifier.
    "efficientnet-lite0": 3_371_008,
    "efficientnet-lite1": 4_135_680,
    "efficientnet-lite2": 4_811_072,
}
TRAINED = [name for name in PARAMETERS if backbone_spec(name).trained]


def made(name: str, channels: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return create_backbone(name, channels)


def pictures(name: str, count: int = 2, channels: int = 3) -> torch.Tensor:
    size = backbone_spec(name).size
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def test_the_registry_is_what_is_tested_here() -> None:
    assert set(backbones()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_shapes(name: str) -> None:
    network = made(name)
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name]
    network.eval()
    with torch.inference_mode():
        assert network(pictures(name)).shape == (2, backbone_spec(name).width)
        if name not in TRAINED:
            grey = made(name, 1).eval()(pictures(name, channels=1))
            assert grey.shape[1] == backbone_spec(name).width


@pytest.mark.parametrize("name", TRAINED)
def test_trained_weights_fit_the_network_that_a_saved_model_is_loaded_into(name: str) -> None:
    spec = backbone_spec(name)
    assert spec.trained is not None
    trained, new = spec.trained(), made(name)
    assert not trained.training
    new.load_state_dict(trained.state_dict())
    with torch.inference_mode():
        x = pictures(name)
        features = trained(x)
        assert features.shape == (2, spec.width)
        torch.testing.assert_close(new.eval()(x), features)
        assert not torch.allclose(made(name).eval()(x), features), "trained weights are not random"
    assert spec.mean is not None
    assert spec.std is not None
    assert len(spec.mean) == len(spec.std) == 3
    assert 0 < spec.crop <= 1


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_gets_a_finite_gradient(name: str) -> None:
    network = made(name).train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network(pictures(name)).square().sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_in_eval_mode_a_picture_does_not_depend_on_its_neighbours(name: str) -> None:
    network = made(name).eval()
    three = pictures(name, count=3)
    with torch.inference_mode():
        together = network(three)
        assert torch.equal(together, network(three)), "two runs differ"
        torch.testing.assert_close(network(three[1:2]), together[1:2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet12", "resnet12-narrow", "conv4", "efficientnet-lite0"])
def test_blocks_in_turn_are_the_network(name: str) -> None:
    """So that activations below the last block can be kept while it alone moves."""
    network = made(name).eval()
    assert isinstance(network, nn.Sequential)
    cut = len(network) - 2
    with torch.inference_mode():
        x = pictures(name)
        torch.testing.assert_close(network[cut:](network[:cut](x)), network(x))


def test_a_resnet12_block_is_the_papers_block() -> None:
    """Pooled before the activation for speed, it must equal the block that pools after it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = Block(4, 6, nn.Identity()).train()
        x = torch.randn(3, 4, 10, 10)
    slow = nn.functional.leaky_relu(block.residual(x.clone()) + block.shortcut(x.clone()), 0.1)
    torch.testing.assert_close(block(x.clone()), nn.functional.max_pool2d(slow, 2))


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(FewgraftError, match="Did you mean 'resnet12'"):
        create_backbone("resnet-12")


def test_drop_block_drops_squares_and_keeps_the_scale() -> None:
    layer = DropBlock(rate=0.2, side=3).train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = layer(torch.ones(64, 16, 12, 12))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.2, abs=0.04)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    # A dropped place in the middle has dropped neighbours: squares, not dots.
    zero = dropped == 0
    beside = zero[:, :, 1:-1, 1:-1] & (zero[:, :, :-2, 1:-1] | zero[:, :, 2:, 1:-1])
    assert beside.sum() == zero[:, :, 1:-1, 1:-1].sum()
    assert torch.equal(layer.eval()(torch.ones(1, 1, 4, 4)), torch.ones(1, 1, 4, 4))
