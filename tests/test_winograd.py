"""The short way through 4×4 maps gives the library's convolution."""

import pytest
import torch
from torch.nn.functional import conv2d

from fewgraft.backbones.winograd import Conv3x3, convolve

pytestmark = pytest.mark.numerical


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("n", "inputs", "outputs"), [(1, 1, 1), (3, 5, 2), (16, 8, 24)])
def test_values_and_gradients_are_those_of_the_library(
    n: int, inputs: int, outputs: int, memory: torch.memory_format
) -> None:
    x = drawn(n, inputs, 4, 4, dtype=torch.float64).contiguous(memory_format=memory)
    weight = drawn(outputs, inputs, 3, 3, dtype=torch.float64).contiguous(memory_format=memory)
    arriving = drawn(n, outputs, 4, 4, dtype=torch.float64)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    short, usual = convolve(x, weight), conv2d(x, weight, padding=1)
    torch.testing.assert_close(short, usual)
    for own, library in zip(
        torch.autograd.grad(short, leaves, arriving),
        torch.autograd.grad(usual, leaves, arriving),
        strict=True,
    ):
        torch.testing.assert_close(own, library)


def test_gradients_are_those_of_finite_differences() -> None:
    x = drawn(2, 2, 4, 4, dtype=torch.float64).requires_grad_()
    weight = drawn(3, 2, 3, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(convolve, (x, weight))


def test_single_precision_loses_less_than_five_digits() -> None:
    x, weight = drawn(64, 256, 4, 4), drawn(256, 256, 3, 3) / 48
    exact = conv2d(x.double(), weight.double(), padding=1)
    assert (convolve(x, weight) - exact).abs().max() < 1e-4 * exact.std()


def test_the_short_way_is_taken_where_a_layer_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def watched(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        taken.append(tuple(x.shape))
        return convolve(x, weight)

    monkeypatch.setattr("fewgraft.backbones.winograd.convolve", watched)
    layer = Conv3x3(3, 5, 3, padding=1, bias=False)
    layer(drawn(2, 3, 4, 4))
    assert taken == [(2, 3, 4, 4)]
    layer(drawn(2, 3, 5, 5))  # another size
    Conv3x3(3, 5, 3, stride=2, padding=1, bias=False)(drawn(2, 3, 4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        layer(drawn(2, 3, 4, 4))
    Conv3x3(3, 5, 3, padding=1, bias=False, dtype=torch.bfloat16)(drawn(2, 3, 4, 4).bfloat16())
    with torch.no_grad():
        layer(drawn(2, 3, 4, 4))
    layer.requires_grad_(False)(drawn(2, 3, 4, 4))
    assert len(taken) == 1


def test_inference_is_the_library_to_the_bit() -> None:
    layer = Conv3x3(6, 4, 3, padding=1, bias=False)
    x = drawn(3, 6, 4, 4)
    with torch.no_grad():
        assert torch.equal(layer(x), conv2d(x, layer.weight, padding=1))


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    x = drawn(1, 2, 4, 4).requires_grad_()
    weight = drawn(2, 2, 3, 3).requires_grad_()
    (first,) = torch.autograd.grad(convolve(x, weight).square().sum(), [weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(first.sum())


def test_an_input_that_stays_costs_and_gets_no_gradient() -> None:
    x, weight = drawn(2, 3, 4, 4), drawn(5, 3, 3, 3).requires_grad_()
    (own,) = torch.autograd.grad(convolve(x, weight).square().sum(), [weight])
    (library,) = torch.autograd.grad(conv2d(x, weight, padding=1).square().sum(), [weight])
    torch.testing.assert_close(own, library, rtol=1e-4, atol=1e-3)
