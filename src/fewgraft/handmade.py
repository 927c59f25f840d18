"""Features without any training: histograms of gradient directions, cell by cell.

What line drawings and photographs share is where edges run. Each picture is divided into cells;
each cell counts how strongly it is crossed by edges of eight directions. This gives a floor that
any trained network must beat, and something to look at before one has been trained.

After Dalal and Triggs, "Histograms of oriented gradients for human detection", CVPR 2005.
"""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, normalize, pad

from fewgraft.data.pictures import Pixels

DIRECTIONS = 8


def gradient_histograms(pictures: Tensor, cells: int = 8) -> Tensor:
    """uint8 pictures [n, h, w, c] → float features [n, cells · cells · 8], cells L2-normalised."""
    grey = pad(pictures.float().mean(-1) / 255, (1, 1, 1, 1), mode="replicate")
    down = grey[:, 2:, 1:-1] - grey[:, :-2, 1:-1]
    right = grey[:, 1:-1, 2:] - grey[:, 1:-1, :-2]
    strength = (down.square() + right.square()).sqrt()
    position = torch.atan2(down, right) / (2 * torch.pi) * DIRECTIONS  # in directions, cyclic
    votes = _soft_votes(position) * strength[:, None]
    side = votes.shape[-1] // cells
    histograms = avg_pool2d(votes, kernel_size=side + 2, stride=side, padding=1)
    lengths: Tensor = torch.linalg.vector_norm(histograms, dim=1, keepdim=True)
    return torch.flatten(histograms / (lengths + 0.02), 1)


def _soft_votes(position: Tensor) -> Tensor:
    """[n, h, w] places on a circle of 8 → [n, 8, h, w]: each votes for its two neighbours."""
    centres = torch.arange(DIRECTIONS, dtype=position.dtype)[None, :, None, None]
    distance = (position[:, None] - centres).remainder(DIRECTIONS)
    distance = torch.minimum(distance, DIRECTIONS - distance)
    return (1 - distance).clamp(min=0)


def embed_pictures(pictures: Pixels, chunk: int = 2048) -> Tensor:
    """`gradient_histograms` a chunk at a time, L2-normalised: [n, h, w, c] → [n, d]."""
    starts = range(0, len(pictures), chunk)
    parts = [gradient_histograms(torch.tensor(pictures[s : s + chunk])) for s in starts]
    return normalize(torch.cat(parts), dim=-1)
