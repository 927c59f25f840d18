"""3×3 convolutions of 4×4 maps with a quarter of the multiplications.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016: F(4×4, 3×3). The
narrow networks spend a third of their arithmetic on maps of four by four places, where one tile is
the whole map, so that there is nothing to cut out and the transformations are matrix products with
constants. Larger maps gain nothing here: cutting tiles costs what the products save.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

SIDE = 4
POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)  # with infinity the six that a product of degree five needs


def _powers(degree: int) -> Tensor:
    """Values of 1, x, …, x^degree at the points and at infinity: [6, degree + 1]."""
    points = torch.tensor(POINTS, dtype=torch.float64)
    infinity = torch.eye(degree + 1, dtype=torch.float64)[-1:]
    return torch.cat([points[:, None] ** torch.arange(degree + 1), infinity])


@cache
def _transformations(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Into the product domain for maps [36, 16] and filters [36, 9], and out of it [16, 36]."""
    inverse = torch.linalg.inv(_powers(5)).T  # [6, 6], of a row of the padded map
    inner = inverse[:, 1:-1].contiguous()  # the padding is zero
    maps, filters, back = inner, _powers(2), _powers(3).T.contiguous()
    both = [torch.kron(row, row).to(dtype) for row in (maps, filters, back)]
    return both[0], both[1], both[2]


class _Convolution(Function):
    """With its gradients written out: those that autograd would find copy large matrices."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        into, into_filters, back = _transformations(x.dtype)
        points = torch.matmul(into, _rows(x)).transpose(0, 1)  # [36, n, c]
        filters = torch.matmul(into_filters, _rows(weight)).permute(1, 2, 0)  # [36, c, o]
        ctx.save_for_backward(points, filters)
        return _map(torch.matmul(back, torch.bmm(points, filters).transpose(0, 1)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        points, filters = ctx.saved_tensors
        into, into_filters, back = _transformations(gradient.dtype)
        products = torch.matmul(back.T, _rows(gradient)).transpose(0, 1)  # [36, n, o]
        of_filters = torch.bmm(products.transpose(1, 2), points)  # [36, o, c]
        of_weight = _map(torch.matmul(into_filters.T, of_filters.transpose(0, 1)))
        if not ctx.needs_input_grad[0]:  # kept activations, in the first layer that moves
            return None, of_weight
        of_points = torch.bmm(products, filters.transpose(1, 2))  # [36, n, c]
        return _map(torch.matmul(into.T, of_points.transpose(0, 1))), of_weight


def _rows(maps: Tensor) -> Tensor:
    """[n, c, s, s] → [n, s², c]."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2)


def _map(rows: Tensor) -> Tensor:
    """[n, s², c] → [n, c, s, s]."""
    side = math.isqrt(rows.shape[1])
    return rows.view(len(rows), side, side, -1).permute(0, 3, 1, 2)


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution of maps x [n, c, 4, 4], padded by one, with filters weight [o, c, 3, 3]."""
    result: Tensor = _Convolution.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


class Conv3x3(nn.Conv2d):
    """A 3×3 convolution that takes the short way where it learns, on a CPU, from 4×4 maps.

    Inference keeps to the library, so that features are the same to the bit everywhere.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[n, c, h, w] → [n, o, h/stride, w/stride]."""
        return convolve(x, self.weight) if self._short(x) else super().forward(x)

    def _short(self, x: Tensor) -> bool:
        return (
            x.shape[2:] == (SIDE, SIDE)
            and self.stride == (1, 1)
            and x.device.type == "cpu"
            and torch.is_grad_enabled()
            and self.weight.requires_grad
            and x.dtype in (torch.float32, torch.float64)  # less is too coarse for sums that cancel
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )
