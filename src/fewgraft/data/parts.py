"""The six parts of a data set.

Base parts hold *different pictures of the same* classes; novel parts hold *disjoint classes*.
"""

from enum import IntEnum, StrEnum


class Part(StrEnum):
    """Which of the six parts a picture belongs to; stored as its position in this list."""

    BASE_TRAIN = "base/train"
    BASE_VAL = "base/val"
    BASE_TEST = "base/test"
    NOVEL_TRAIN = "novel/train"
    NOVEL_VAL = "novel/val"
    NOVEL_TEST = "novel/test"

    @property
    def code(self) -> int:
        """The byte that stands for this part in a store."""
        return PARTS.index(self)

    @property
    def is_base(self) -> bool:
        """Whether pictures of this part belong to base classes."""
        return self.value.startswith("base/")


class Role(IntEnum):
    """What a published protocol of sessions says about a picture of a novel class."""

    ANY = 0
    QUERY = 1  # it tests
    LISTED = 2  # it is one of the published shots


PARTS = tuple(Part)
BASE_PARTS = tuple(part for part in PARTS if part.is_base)
NOVEL_PARTS = tuple(part for part in PARTS if not part.is_base)
