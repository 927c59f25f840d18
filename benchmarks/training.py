"""Training speed beside a plain step written the usual way, and beside the machine's peak.

    .venv/bin/python benchmarks/training.py

Prints images/s of a pre-training step and of an Algorithm-2 step on Icons, of the plain step, their
ratio, the share of the time that data takes, and what share of the measured matrix-multiply peak
the forward and backward pass of resnet12 reaches. Nothing else should run on the machine.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode
from usual import with_usual_convolutions

from fewgraft.backbones import create_backbone
from fewgraft.backbones.resnet12 import Block
from fewgraft.data.icons import load_icons
from fewgraft.data.store import ImageStore
from fewgraft.model import CosineModel, new_model
from fewgraft.prototypes import cosine_logits
from fewgraft.training.loop import make_optimiser
from fewgraft.training.metatrain import Metatrain
from fewgraft.training.phase import Phase, Shard
from fewgraft.training.pretrain import Pretrain
from fewgraft.training.recipe import Recipe, load_recipe
from fewgraft.training.run import channel_statistics

BATCH = 128


def seconds(work: Callable[[int], object], least: float = 6.0) -> float:
    """Median time of a call, over at least `least` seconds, after one to warm up."""
    return seconds_of([work], least)[0]


def seconds_of(works: Sequence[Callable[[int], object]], least: float = 12.0) -> list[float]:
    """The same for several, in turn: a machine that slows down slows all of them down."""
    for work in works:
        work(0)
    times: list[list[float]] = [[] for _ in works]
    while sum(map(sum, times)) < least:
        for work, own in zip(works, times, strict=True):
            start = time.perf_counter()
            work(len(own) + 1)
            own.append(time.perf_counter() - start)
    return [sorted(own)[len(own) // 2] for own in times]


def model_for(store: ImageStore, backbone: str) -> CosineModel:
    mean, std = channel_statistics(store)
    return new_model(backbone, store.base_classes, 32, 1, mean, std)


def our_step(phase: Phase) -> Callable[[int], None]:
    optimiser = make_optimiser(phase)
    phase.set_mode()

    def step(number: int) -> None:
        optimiser.zero_grad()
        loss, _ = phase.loss(number, Shard())
        torch.autograd.backward(loss)
        optimiser.step()

    return step


class UsualBlock(nn.Module):
    """A block as it is usually written: the activation before the pooling, nothing in place."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] → [n, outputs, h/2, w/2]."""
        block = self.block
        out: Tensor = block.pool(block.activation(block.residual(x) + block.shortcut(x)))
        return out


def usual_network(network: nn.Module) -> nn.Sequential:
    """The same network, written the usual way, every convolution the library's."""
    assert isinstance(network, nn.Sequential)
    for layer in with_usual_convolutions(network).modules():
        if isinstance(layer, nn.LeakyReLU):
            layer.inplace = False
    stem = network[0]
    assert isinstance(stem, nn.Sequential)
    blocks = [UsualBlock(layer) for layer in network if isinstance(layer, Block)]
    return nn.Sequential(stem[0], stem[1], stem[3], stem[2], *blocks, network[-1])


def plain_step(model: CosineModel, store: ImageStore) -> Callable[[int], None]:
    """The usual way: pictures augmented one after the other, NCHW memory, the usual blocks."""
    model.backbone = usual_network(model.backbone)
    model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    rng = torch.Generator().manual_seed(0)

    def augmented(picture: Tensor) -> Tensor:
        padded = nn.functional.pad(picture[None], (4, 4, 4, 4), mode="reflect")[0]
        y, x = torch.randint(0, 9, (2,), generator=rng).tolist()
        return padded[:, y : y + 32, x : x + 32]

    def step(_: int) -> None:
        chosen = torch.randint(0, 9000, (BATCH,), generator=rng).numpy()
        pictures = torch.from_numpy(store.pictures[chosen]).permute(0, 3, 1, 2).float() / 255
        pictures = torch.stack([augmented(p) for p in pictures.contiguous()])
        pictures = ((pictures - model.mean) / model.std).contiguous()
        labels = torch.from_numpy(store.labels[chosen]).long()
        optimiser.zero_grad()
        logits = cosine_logits(model.embed(pictures), model.weight, model.gamma)
        torch.autograd.backward(cross_entropy(logits, labels))
        optimiser.step()

    return step


def peak_flops(size: int = 2048) -> float:
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / seconds(lambda _: a @ b, least=3)


def share_of_peak(peak: float, size: int = 84, batch: int = 16) -> float:
    """Floating-point operations a second of resnet12, forward and backward, over the peak."""
    network = create_backbone("resnet12").to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    pictures = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)

    def step(_: int) -> None:
        torch.autograd.backward(network(pictures).square().mean())

    with FlopCounterMode(display=False) as counter:
        step(0)
    flops: float = counter.get_total_flops()
    return flops / seconds(step, least=10) / peak


def report_pretraining(store: ImageStore, recipe: Recipe, backbone: str) -> None:
    phase = Pretrain(model_for(store, backbone), store, recipe)
    steps = [our_step(phase), plain_step(model_for(store, backbone), store)]
    ours, plain = (BATCH / time_taken for time_taken in seconds_of(steps))
    rng = torch.Generator()
    data = seconds(lambda step: phase._batch(step, Shard(), rng), least=2) * ours / BATCH
    print(
        f"pre-training {backbone}: {ours:.0f} images/s, {100 * data:.0f} % of the time for data; "
        f"plain step {plain:.0f} images/s; ratio {ours / plain:.2f} (target 1.3)"
    )


def main() -> None:
    store, recipe = load_icons(), load_recipe("icons")
    for backbone in ("resnet12-tiny", "resnet12-narrow"):
        report_pretraining(store, recipe, backbone)
    for moves in ("last-block", "all"):
        config = recipe.metatraining.model_copy(update={"moves": moves, "shots": (5,)})
        changed = recipe.model_copy(update={"metatraining": config})
        phase = Metatrain(model_for(store, recipe.backbone), store, changed, 2)
        count = config.episodes * (
            config.ways * (5 + config.queries) + config.base_queries + config.unlabelled
        )
        rate = count / seconds(our_step(phase))
        print(f"Algorithm 2, {moves} moves: {rate:.0f} images/s")
    peak = peak_flops()
    print(f"matrix-multiply peak: {peak / 1e9:.0f} GFLOP/s")
    print(f"resnet12 at 84 px, forward and backward: {100 * share_of_peak(peak):.0f} % of it")


if __name__ == "__main__":
    main()
