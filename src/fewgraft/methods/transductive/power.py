"""The power transform, which makes features of a ReLU network look more like a Gaussian.

Hu, Gripon, Pateux, "Leveraging the feature distribution in transfer-based few-shot learning",
ICANN 2021: x ← unit((x + ε)^β). Networks that end in a leaky ReLU give features below 0, which have
no root: "signed" takes the root of their size and gives the sign back, "cut" makes them 0.
"""

from typing import Literal

from torch import Tensor

from fewgraft.prototypes import directions

Negatives = Literal["signed", "cut"]
SHIFT = 1e-6  # ε


def power_transform(features: Tensor, power: float, negatives: Negatives) -> Tensor:
    """Directions of the powers of features [..., d]; a power of 1 leaves all but their length."""
    if power == 1:
        return directions(features)
    if negatives == "cut":
        return directions((features.clamp(min=0) + SHIFT) ** power)
    sizes = (features.abs() + SHIFT) ** power
    return directions(sizes.where(features >= 0, -sizes))
