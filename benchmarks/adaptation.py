"""Test-time adaptation as this project does it, beside the plain way, in one run.

    .venv/bin/python benchmarks/adaptation.py [RECIPE] [--episodes 12] [--shots 1]

The plain way is how it is usually written: for every episode the model is loaded anew, every step
opens its pictures one after the other, augments them afresh, and runs the whole network; autograd
carries the gradient through all of it, though only the last block and W move. Ours keeps, for
each picture and view, what enters the last block, and takes the short way through its
convolutions. Same losses (those of `distilled-adaptation`), same steps, same batches; the augmented
views differ by their draws.
Prints seconds per episode, the ratio (target 10), and the paired difference of joint accuracy on
validation episodes.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy, normalize
from usual import with_usual_convolutions

from fewgraft.augment import Augmentation, augment
from fewgraft.bench.runner import Bench, Job
from fewgraft.data.store import ImageStore
from fewgraft.episodes import Episodes, EpisodeSettings
from fewgraft.methods.distilled_adaptation import DistilledAdaptation
from fewgraft.methods.losses import distillation, nt_xent
from fewgraft.methods.moving import batches
from fewgraft.metrics import join_scores, paired, score
from fewgraft.model import CosineModel
from fewgraft.progress import track
from fewgraft.prototypes import Refinement, cosine_logits, prototypes, refine
from fewgraft.split_features import SplitFeatures
from fewgraft.training.recipe import load_recipe, tuned_method
from fewgraft.zoo import models_folder, stage_model


def opened(store: ImageStore, model: CosineModel, pictures: Tensor) -> Tensor:
    """Pictures as they are, one after the other."""
    rows = [torch.from_numpy(store.pictures[int(p)].copy()) for p in pictures]
    return torch.cat([model.prepare(row[None]) for row in rows])


def opened_view(
    store: ImageStore, model: CosineModel, pictures: Tensor, weak: Augmentation, rng: Generator
) -> Tensor:
    """Freshly augmented pictures, one after the other."""
    rows = []
    for picture in pictures:
        pixels = torch.from_numpy(store.pictures[int(picture)].copy())[None]
        rows.append(model.prepare(augment(pixels, weak, rng)))
    return torch.cat(rows)


def plain_episode(
    folder: Path, split: SplitFeatures, episodes: Episodes, e: int, config: DistilledAdaptation
) -> Tensor:
    """Logits [1, Q, N_b+N] of one episode, adapted the usual way."""
    store = split.store
    model = stage_model(folder, "algorithm-2").eval()
    with_usual_convolutions(model)
    gamma = model.gamma.item()
    support, unlabelled, query = episodes.support[e], episodes.unlabelled[e], episodes.query[e]
    labels = episodes.support_labels[e] - episodes.n_base
    refinement = Refinement(config.refinement_steps, config.alpha, config.temperature)
    weak, rng = split.network.weak, Generator().manual_seed(e)

    def seen(pictures: Tensor, views: int) -> Tensor:
        parts = [model.embed(opened(store, model, pictures))]
        parts += [model.embed(opened_view(store, model, pictures, weak, rng)) for _ in range(views)]
        return normalize(torch.stack([normalize(part, dim=-1) for part in parts]).mean(0), dim=-1)

    def base_logits(pictures: Tensor) -> Tensor:
        return cosine_logits(model.embed(opened(store, model, pictures)), model.weight, gamma)

    def solution(views: int) -> tuple[Tensor, Tensor]:
        s, u = (seen(part, views)[None] for part in (support, unlabelled))
        novel = prototypes(s, labels[None], episodes.settings.ways)
        base = (
            cosine_logits(u, model.weight, gamma)
            if kept_unlabelled is None
            else kept_unlabelled[None]
        )
        return refine(novel, s, labels[None], u, base, gamma, refinement)[0], u[0]

    kept_unlabelled, kept_query = None, None
    with torch.no_grad():
        if config.base == "kept":
            kept_unlabelled, kept_query = base_logits(unlabelled), base_logits(query)
        first, features = solution(config.teacher_views)
        teacher = cosine_logits(features, torch.cat([model.weight, first]), gamma)
        teacher[:, episodes.n_base :] += config.teacher_bias
    novel = first.clone().requires_grad_()
    moving = [*model.backbone[-2].parameters(), model.weight, novel]  # type: ignore[index]
    optimiser = torch.optim.SGD(moving, config.lr, config.momentum)
    batch = batches(len(unlabelled), config.batch, e)
    with torch.enable_grad():
        for step in range(config.steps):
            places = batch(step)
            few = model.embed(opened(store, model, support))
            one, other = (
                model.embed(opened_view(store, model, unlabelled[places], weak, rng))
                for _ in range(2)
            )
            weights = torch.cat([model.weight, novel])
            students = cosine_logits(torch.cat([one, other]), weights, gamma)
            loss = config.w_cls * cross_entropy(
                cosine_logits(few, weights, gamma), labels + episodes.n_base
            )
            loss = loss + config.w_ctr * nt_xent(one, other, config.tau_ctr)
            teachers = teacher[places].repeat(2, 1)
            loss = loss + config.w_dst * distillation(students, teachers, config.tau_dst)
            model.zero_grad()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    with torch.no_grad():
        weights = torch.cat([model.weight, solution(0)[0]])
        logits = cosine_logits(model.embed(opened(store, model, query)), weights, gamma)
        if kept_query is not None:
            logits[:, : episodes.n_base] = kept_query
        return logits[None]


def timed(run: Callable[[], Tensor]) -> tuple[Tensor, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe", nargs="?", default="icons")
    parser.add_argument("--episodes", type=int, default=12)
    parser.add_argument("--shots", type=int, default=1)
    arguments = parser.parse_args()
    recipe, folder, bench = load_recipe(arguments.recipe), models_folder(arguments.recipe), Bench()
    method = tuned_method(recipe, "distilled-adaptation", arguments.shots)
    assert isinstance(method, DistilledAdaptation)
    settings = EpisodeSettings.paper("s2i", arguments.shots, split="val", seed=4)
    job = Job(
        recipe.name,
        recipe.data,
        "distilled-adaptation",
        dataclasses.asdict(method),
        settings,
        arguments.episodes,
        folder,
    )
    split, (episodes, answers) = bench.split_features(job), bench.episodes(job)
    warm_up = time.perf_counter()
    bench.logits(job, slice(0, 1))
    for e in range(arguments.episodes):  # every view of every picture once, as in a long run
        bench.logits(dataclasses.replace(job, hyper={**job.hyper, "steps": 2}), slice(e, e + 1))
    warm_up = time.perf_counter() - warm_up

    def plain_logits(chunk: range) -> Tensor:
        return torch.cat([plain_episode(folder, split, episodes, e, method) for e in chunk])

    ours, plain, ours_seconds, plain_seconds = [], [], 0.0, 0.0
    for chunk in track(job.chunks, "chunks of episodes"):  # as a long run has them, both in turn
        rows = slice(chunk.start, chunk.stop)
        logits, seconds = timed(partial(bench.logits, job, rows))
        ours.append(score(logits, answers.query_labels[rows], episodes.n_base))
        ours_seconds += seconds
        logits, seconds = timed(partial(plain_logits, chunk))
        plain.append(score(logits, answers.query_labels[rows], episodes.n_base))
        plain_seconds += seconds
    n = arguments.episodes
    print(f"{recipe.name}, {arguments.shots}-shot, {n} validation episodes, {method.steps} steps")
    print(
        f"ours  {ours_seconds / n:.2f} s an episode (+ {warm_up:.0f} s once for kept activations)"
    )
    print(f"plain {plain_seconds / n:.2f} s an episode")
    print(f"ratio {plain_seconds / ours_seconds:.1f} (target 10)")
    a, b = join_scores(ours), join_scores(plain)
    difference = paired(a.acc, b.acc).difference
    print(f"joint accuracy ours {100 * a.acc.mean():.2f}, plain {100 * b.acc.mean():.2f}")
    print(f"paired difference {difference}")


if __name__ == "__main__":
    main()
