"""The space in which classes are compared: rooted, centred, whitened within classes.

Photos of one class differ in some directions of a network's features more than in others. Fisher's
linear discriminant divides by how much they do: with Σ the covariance within classes, shared by all
of them, distances in A·f with AᵀA = Σ⁻¹ are those of Mahalanobis. Σ is shrunk towards a multiple of
the identity. The signed square root before it tames features of a few large values.

    f = x/‖x‖ of the rooted x − centre,    z = A·f − offset,    then z/‖z‖
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fewgraft.prototypes import directions

LARGEST_WHITENED = 4096  # features; a matrix of more would be larger than most networks
LEAST_SHRINKAGE = 0.5  # with any number of photos
LARGEST_SAMPLE = 4000  # photos that estimate the shrinkage
TINY = 1e-12


@dataclass(frozen=True)
class Space:
    """From features of a network to directions that compare well."""

    centre: Tensor  # [d] of rooted features
    whitening: Tensor  # A [d, d]
    offset: Tensor  # [d] the mean of the whitened class means

    def __call__(self, features: Tensor) -> Tensor:
        """Features [n, d] → directions [n, d]."""
        return self.placed(rooted(features))

    def placed(self, roots: Tensor) -> Tensor:
        """The same for features that are rooted already."""
        return directions(self._whitened(roots) - self.offset)

    def _whitened(self, roots: Tensor) -> Tensor:
        return directions(roots - self.centre) @ self.whitening.T


def rooted(features: Tensor) -> Tensor:
    """The signed square root of each feature."""
    return features.sign() * features.abs().clamp(min=TINY).sqrt()  # its gradient at 0 is 0


def space_of(
    features: Tensor, labels: Tensor, n_classes: int, *, shrinkage: float | None = None
) -> Space:
    """The space of labelled features [n, d]; the shrinkage is estimated if it is not given.

    A shrinkage of 1 leaves all directions alike: nothing is whitened.
    """
    return space_of_roots(rooted(features), labels, n_classes, features.shape[1], shrinkage)


def space_of_roots(
    roots: Tensor, labels: Tensor, n_classes: int, width: int, shrinkage: float | None
) -> Space:
    """The same for rooted features [n, r] of networks with so many features, perhaps turned."""
    centre = class_means(roots, labels, n_classes).mean(0)
    seen = directions(roots - centre)
    residuals = seen - class_means(seen, labels, n_classes)[labels]
    if shrinkage is None:
        shrinkage = estimated_shrinkage(residuals, width)
    whitening = whitening_of(residuals, len(seen) - n_classes, shrinkage, width)
    unplaced = Space(centre, whitening, torch.zeros_like(centre))
    offset = class_means(unplaced._whitened(roots), labels, n_classes).mean(0)
    return Space(centre, whitening, offset)


def turned(rows: Tensor) -> Tensor:
    """Rows [n, d], turned into as few dimensions as hold them if these are far fewer than d.

    Lengths and angles stay, and with them all that a space makes of rows: n rows lie in n
    dimensions. A QR decomposition finds these.
    """
    if 2 * len(rows) > rows.shape[1]:
        return rows
    inside: Tensor = torch.linalg.qr(rows.double().T, mode="r").R.T
    return inside.to(rows.dtype)


def whitening_of(
    residuals: Tensor, freedom: int, shrinkage: float, width: int | None = None
) -> Tensor:
    """A [r, r] with AᵀA = ((1−λ)Σ + λ·tr(Σ)/d·I)⁻¹ / scale, from residuals [n, r] within classes.

    d is r unless a width is given. The scale is free because lengths do not matter afterwards. In
    double precision: Σ of few photos is nearly singular.
    """
    rows = residuals.double() / max(freedom, 1) ** 0.5  # Σ = RᵀR
    mean_variance = rows.square().sum() / (width or residuals.shape[1])
    identity = torch.eye(residuals.shape[1], dtype=torch.float64)
    if shrinkage >= 1 or mean_variance <= 0:
        return identity.to(residuals.dtype)
    rows = rows * ((1 - shrinkage) / mean_variance).sqrt()
    root = _root_of_few if 2 * len(rows) < rows.shape[1] else _root_of_many
    return root(rows, shrinkage, identity).to(residuals.dtype)


def _root_of_many(rows: Tensor, shrinkage: float, identity: Tensor) -> Tensor:
    """A with AᵀA = (RᵀR + λI)⁻¹ for rows R [n, r]."""
    factor = torch.linalg.cholesky(rows.T @ rows + shrinkage * identity)
    found: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return found


def _root_of_few(rows: Tensor, shrinkage: float, identity: Tensor) -> Tensor:
    """The same for few rows, symmetric: the identity less something in the space of these.

    With RRᵀ = U S Uᵀ and T = √(S + λ): A = (I − RᵀU (T (T + √λ))⁻¹ UᵀR) / √λ.
    """
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    least = shrinkage**0.5
    lengths = (values.clamp(min=0) + shrinkage).sqrt()
    inside = (vectors / (lengths * (lengths + least)).sqrt()).T @ rows
    found: Tensor = (identity - inside.T @ inside) / least
    return found


def estimated_shrinkage(residuals: Tensor, width: int | None = None) -> float:
    """λ from residuals [n, r]: that of Ledoit and Wolf (2004), and half the way on from there to 1.

    Their λ is the best for the covariance itself. Classes that were never seen have another one,
    so that half of it is as much as carries over. It is near 1 where photos are few.
    """
    width = width or residuals.shape[1]
    if width > LARGEST_WHITENED or len(residuals) < 2 or not residuals.any():
        return 1.0
    sample = residuals[:: -(-len(residuals) // LARGEST_SAMPLE)].double()
    return LEAST_SHRINKAGE + (1 - LEAST_SHRINKAGE) * ledoit_wolf(sample, width)


def ledoit_wolf(sample: Tensor, width: int) -> float:
    """Their λ for rows [n, r] of mean 0 with so many features: how much of S = XᵀX/n is noise.

    E‖S − Σ‖² over ‖S − tr(S)/d·I‖², both estimated from lengths ‖x‖ and ‖S‖ alone, so that it does
    not matter which way the rows are turned.
    """
    n = len(sample)
    wide = sample.shape[1] > n
    products = sample @ sample.T if wide else sample.T @ sample  # both of the same length
    size = products.square().sum() / n**2  # ‖S‖²
    lengths = sample.square().sum(1)
    spread = size - (lengths.sum() / n) ** 2 / width
    noise = (lengths.square().sum() / n - size) / n
    return (torch.minimum(noise, spread) / spread).item() if noise > 0 else 0.0


def class_means(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """[n, d] with labels [n] → [n_classes, d]."""
    members = one_hot(labels, n_classes).to(features.dtype)
    return members.T @ features / members.sum(0)[:, None]
