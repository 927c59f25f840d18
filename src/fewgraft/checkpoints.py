"""Networks that others trained, under the names of ours.

The ResNet-12s of few-shot repositories compute the same and name their layers differently:

    layer1.0.conv1 … bn3, layer1.0.downsample.0, .1     MetaOptNet, RFS, FEAT, DeepEMD
    layer1.conv1 … bn3, layer1.downsample.0, .1         Meta-Baseline
    layers.0.conv1 … bn3, layers.0.shortcut.0, .1       EASY

below prefixes such as `encoder.` or `module.`, in a dict that may be one entry of a larger one.
A state dict says nothing of slopes, pooling and drops: all of these have LeakyReLU 0.1, max-pooling
by 2 after each block and the mean over all places at the end, and drop nothing when they answer.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fewgraft.backbones import backbone_spec, backbones, create_backbone
from fewgraft.errors import FewgraftError, reading
from fewgraft.weight_files import Tensors, file_and_name, is_whole, read_tensors

# A block of theirs and the place of each of its layers in a block of ours.
PLACES = {
    "conv1": "residual.0",
    "bn1": "residual.1",
    "conv2": "residual.3",
    "bn2": "residual.4",
    "conv3": "residual.6",
    "bn3": "residual.7",
    "downsample.0": "shortcut.0",
    "downsample.1": "shortcut.1",
}
_BLOCK = re.compile(
    r"(?P<prefix>(?:.*\.)?)(?:layer(?P<number>[1-4])(?:\.0)?|layers\.(?P<place>[0-3]))\."
    r"(?P<layer>(?:conv|bn)[123]|(?:downsample|shortcut)\.[01])\.(?P<rest>[a-z_]+)"
)
# Beside a network and no part of its features.
_HEAD = re.compile(r"(fc|classifier|linear|head|logits?|temp|scale)\w*(\.|$)")
COUNTER = "num_batches_tracked"  # of normalisation: only training needs it, old files lack it
SHOWN = 5  # names of each kind in an error


def read_checkpoint(path: str | Path, backbone: str, channels: int = 3) -> nn.Module:
    """The backbone of that name with the weights of a file, ready to answer.

    `path` is FILE, or FILE#PREFIX where the file has several networks. The file is safetensors or a
    torch state dict, in the layout of ours or of a few-shot repository.

    Raises:
        FewgraftError: It does not fit; the lists of what is missing, of what is there besides and
            of shapes are in its hint.
    """
    file, prefix = file_and_name(path)
    with torch.random.fork_rng(devices=[]):  # its first weights are of no use
        network = create_backbone(backbone, channels)
    wanted = network.state_dict()
    tensors = read_tensors(file)
    with reading(file, "checkpoint"):
        named = {_ours(name): name for name in tensors}
        if len(named) < len(tensors):
            raise ValueError("it has two tensors for one layer")
        begin = _beginning(file, named, wanted, prefix)
        inside = {
            name.removeprefix(begin): theirs
            for name, theirs in named.items()
            if name.startswith(begin) and not _HEAD.match(name.removeprefix(begin))
        }
        found = {name: tensors[theirs] for name, theirs in inside.items()}
        if problems := _problems(found, inside, wanted):
            other = _that_fit(found, channels)
            raise FewgraftError(f"{file} does not fit {backbone}", "\n".join([*problems, *other]))
        for name, theirs in inside.items():
            _refuse_odd(tensors[theirs], theirs)
            wanted[name].copy_(tensors[theirs])
    return network.eval()


def _ours(name: str) -> str:
    """A name in the layout of ours; any other stays."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        return name
    number = int(match["number"]) if match["number"] else int(match["place"]) + 1
    layer = PLACES[match["layer"].replace("shortcut", "downsample")]
    return f"{match['prefix']}block{number}.{layer}.{match['rest']}"


def _beginning(file: Path, names: Mapping[str, str], wanted: Tensors, chosen: str) -> str:
    """What stands before the names of a network: of the only one, or of the `chosen` one."""
    depth = 1 + max(name.count(".") for name in wanted)
    counts = Counter(prefix for name in names for prefix in _prefixes(name, wanted, depth))
    if chosen:
        counts = Counter({p: n for p, n in counts.items() if p.rstrip(".") == chosen.rstrip(".")})
    most = max(counts.values(), default=0)
    found = [prefix for prefix, count in counts.items() if count == most]
    if len(found) == 1:
        return found[0]
    if found:
        prefixes = ", ".join(f"{file}#{prefix.rstrip('.')}" for prefix in found[:SHOWN])
        raise FewgraftError(f"{file} has more than one network", f"Name one: {prefixes}")
    where = f" below '{chosen}'" if chosen else ""
    raise FewgraftError(
        f"{file} has no network of a known layout{where}",
        f"It has {_some(names.values()) or 'no tensors'}. Known are the names of ours and of the "
        "ResNet-12s of MetaOptNet, RFS, FEAT, DeepEMD, Meta-Baseline and EASY.",
    )


def _prefixes(name: str, wanted: Tensors, depth: int) -> Iterator[str]:
    """What may stand before the network's own name of a tensor, which has up to `depth` parts."""
    parts = name.rsplit(".", depth)
    for start in range(len(parts)):
        if (own := ".".join(parts[start:])) in wanted:
            yield name.removesuffix(own)


def _problems(found: Tensors, inside: Mapping[str, str], wanted: Tensors) -> list[str]:
    """What does not fit, one line per kind."""
    missing = [name for name in wanted if name not in found and not name.endswith(COUNTER)]
    besides = [theirs for name, theirs in inside.items() if name not in wanted]
    shapes = [
        f"{inside[name]} is {list(tensor.shape)}, not {list(wanted[name].shape)}"
        for name, tensor in found.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    kinds = {"It lacks": missing, "It has besides": besides, "Of another shape": shapes}
    return [f"{kind}: {_some(names)}." for kind, names in kinds.items() if names]


def _that_fit(found: Tensors, channels: int) -> list[str]:
    """A line with the backbones of the registry whose shapes are those of the file."""
    shapes = {name: tensor.shape for name, tensor in found.items() if not name.endswith(COUNTER)}
    fitting = [name for name in backbones() if shapes and _shapes_of(name, channels) == shapes]
    return [f"It fits --backbone {' or '.join(fitting)}."] if fitting else []


def _shapes_of(backbone: str, channels: int) -> dict[str, torch.Size]:
    """Of its tensors, without making them; nothing for one that comes with weights."""
    if backbone_spec(backbone).trained is not None:
        return {}
    with torch.device("meta"):
        state = create_backbone(backbone, channels).state_dict()
    return {name: tensor.shape for name, tensor in state.items() if not name.endswith(COUNTER)}


def _refuse_odd(tensor: Tensor, name: str) -> None:
    if name.endswith(COUNTER):
        return
    if not is_whole(tensor) or not tensor.is_floating_point():
        raise ValueError(f"'{name}' is no array of floating-point numbers")
    if not torch.isfinite(tensor).all():
        raise ValueError(f"'{name}' holds numbers that are not finite")
    if name.endswith("running_var") and (tensor < 0).any():
        raise ValueError(f"'{name}' holds a variance below 0")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
