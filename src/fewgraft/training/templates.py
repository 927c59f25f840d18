"""Recipes to start from, for a data set of your own."""

from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError, nearest

BATCH = 128
SMALL = 40  # pixels; up to here the narrow networks are at home
META_STEPS = 120

_PHOTOS = """\
# {data}: photographs, {pictures:,} of them to train on.
name = "{data}"
data = "{data}"
backbone = "{backbone}"
seed = 0
size = {size}
mirrored = true # a photograph and its mirror image show the same

[pretraining]
steps = {steps} # {epochs} epochs
batch = {batch}
validate_every = {validate}
optimisation = {{ lr = 0.1, warm_up = 0.1, weight_decay = 1e-3 }}
augmentation = {{ crop = {crop}, mirror = true, light = 0.2{colour} }}
rotation = {{ share = 0.5, weight = 1.0 }}
selection = "apart"

[metatraining]
steps = {meta}
episodes = 4
unlabelled = 300 # as in testing
novel = "{novel}"
optimisation = {{ lr = 5e-3 }}
augmentation = {{ mirror = true }}
validate_every = {meta_validate}
"""
_DRAWINGS = """\
# {data}: drawings, {pictures:,} of them to train on.
name = "{data}"
data = "{data}"
backbone = "{backbone}"
seed = 0
size = {size}

[pretraining]
steps = {steps} # {epochs} epochs
batch = {batch}
validate_every = {validate}
optimisation = {{ lr = 0.15, warm_up = 0.15, weight_decay = 1e-3 }}
# No mirror: an arrow to the left is none to the right. Strokes are thickened at random.
augmentation = {{ rotate = 15, scale = 0.25, shift = 0.12, thicken = 0.3 }}

[metatraining]
steps = {meta}
episodes = 4
novel = "{novel}"
optimisation = {{ lr = 5e-3 }}
validate_every = {meta_validate}
"""
# Text, backbones for small and for larger pictures, and how often each picture is seen.
KINDS = {
    "photos": (_PHOTOS, ("resnet12-narrow", "resnet12-512"), 50),
    "drawings": (_DRAWINGS, ("resnet12-tiny", "resnet12-narrow"), 20),
}


def template(kind: str, store: ImageStore) -> str:
    """A recipe in TOML that suits the kind and the size of the pictures.

    Novel training classes are those of the data, or rotated base classes where it has none.
    """
    if kind not in KINDS:
        raise FewgraftError(f"there is no kind of recipe '{kind}'", nearest(kind, KINDS))
    text, backbones, epochs = KINDS[kind]
    size, channels = store.pictures.shape[1], store.pictures.shape[3]
    pictures = sum(map(len, store.by_class(Part.BASE_TRAIN).values()))
    steps = max(1, round(epochs * pictures / BATCH))
    return text.format(
        data=store.manifest.name,
        pictures=pictures,
        backbone=backbones[size > SMALL],
        size=size,
        steps=steps,
        epochs=epochs,
        batch=BATCH,
        validate=max(1, steps // 10),
        crop=max(1, size // 8),
        colour=", colour = 0.3" if channels == 3 else "",
        novel="data" if store.by_class(Part.NOVEL_TRAIN) else "rotated",
        meta=META_STEPS,
        meta_validate=META_STEPS // 2,
    )
