"""`fewgraft base`, `learn`, `predict` and `export`: the tool for one's own photos."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewgraft.errors import FewgraftError, writing

if TYPE_CHECKING:
    from fewgraft.app.learning.learn import Outcome

DeviceOption = Annotated[
    str,
    typer.Option(
        help="Compute the network on cpu, cuda or mps; auto takes a GPU where there is one."
    ),
]
SHOWN = 5  # pictures that could not be used, before the rest is only counted


def base(
    out: Annotated[Path, typer.Option(help="Write the new classifier to this folder.")],
    photos: Annotated[
        Path | None,
        typer.Argument(
            help="Read photos from this folder, one sub-folder per class, or from a CSV of paths "
            "and labels."
        ),
    ] = None,
    backbone: Annotated[
        str,
        typer.Option(
            help="Use efficientnet-lite0, timm:NAME, hf:NAME-or-folder, onnx:FILE, or the folder "
            "of a trained model."
        ),
    ] = "efficientnet-lite0",
    head: Annotated[
        Path | None,
        typer.Option(help="Take class weights from this safetensors, ONNX or state-dict file."),
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="Read its class names here: one per line, or a JSON list.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Make a base classifier from class folders, on top of a backbone that is trained already.

    With --head and --names the class weights come from a classifier that you have; photos of its
    classes are optional then and set the scale of its scores.

    Examples:

      fewgraft base photos/old --out v1

      fewgraft base photos/old --backbone runs/icons/algorithm-2 --out v1

      fewgraft base --backbone onnx:features.onnx --head head.safetensors --names names.txt --out v1
    """
    from fewgraft.app.features.given import labelled_photos, refuse_addresses
    from fewgraft.app.learning.base import build_base, import_base, model_of_backbone
    from fewgraft.devices import choose_device
    from fewgraft.model import save_model

    _new_folder(out)
    refuse_addresses(photos, head, names)
    if (head is None) != (names is None):
        raise FewgraftError("--head and --names go together")
    if photos is None and head is None:
        raise FewgraftError("give class folders of photos, or --head and --names")
    classes = labelled_photos(photos, at_least=1 if head else 2) if photos else {}
    start = model_of_backbone(backbone).to(choose_device(device))
    if head and names:
        built = import_base(start, head, names, classes)
    else:
        built = build_base(start, classes)
    save_model(built.model.cpu(), out)
    _tell_failures(built.failed)
    for note in built.notes:
        typer.echo(f"note: {note}")
    card = built.model.card
    source = f"{sum(card.examples)} photos" if card.examples else str(head)
    typer.echo(f"{len(card.classes)} classes from {source}")
    for name, value in card.metrics.items():
        said = f"{value:.1%}" if name.endswith("accuracy") else f"{value:.2f}"
        typer.echo(f"{name.replace('_', ' ').replace('auroc', 'AUROC')}: {said}")
    typer.echo(f"wrote {out}")


def learn(
    classifier: Annotated[
        str, typer.Argument(help="Teach the classifier of this folder, or icons, in the package.")
    ],
    new: Annotated[
        Path,
        typer.Option(
            help="Learn from this folder, one sub-folder per new class, 1 to 5 photos each, or "
            "from a CSV of paths and labels."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Write the new classifier to this folder.")],
    unlabelled: Annotated[
        Path | None,
        typer.Option(
            help="Use this pile: a folder of unlabelled photos of any classes, or a list of paths."
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Measure what old classes lose on these class folders, or this CSV, of old photos."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="Learn with refine, or with graft, which also looks at what it kept of photos of "
            "each class; auto takes graft where it was clearly better when base rehearsed."
        ),
    ] = "auto",
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Let old classes lose this share of their photos to new ones; if not given, one "
            "for every 10 that are mistaken anyway, from 0.003 to 0.02.",
        ),
    ] = None,
    unknown: Annotated[bool, typer.Option(help='Answer "unknown" where no class fits.')] = True,
    foreign: Annotated[
        Path | None,
        typer.Option(help='Measure "unknown" on this folder of photos that are of no class.'),
    ] = None,
    review: Annotated[
        int, typer.Option(min=0, max=10_000, help="Propose so many photos for labelling next.")
    ] = 20,
    adapt: Annotated[
        bool, typer.Option("--adapt", help="Let the last block of the network move as well.")
    ] = False,
    device: DeviceOption = "auto",
    progress_json: Annotated[bool, typer.Option("--progress-json", hidden=True)] = False,
) -> None:
    """Teach a classifier new classes; the old one stays as it is.

    A class that it knows already gets more examples. Where the pile of unlabelled photos does harm,
    the new classifier is the one without it, and you are told.

    Examples:

      fewgraft learn v1 --new photos/new --unlabelled photos/pile --check photos/old_val --out v2

      fewgraft learn v2 --new photos/newer --out v3

      fewgraft learn v1 --new new.csv --unlabelled pile.txt --out v2
    """
    from fewgraft.app.features.embedding import Embedder, track_photos
    from fewgraft.app.features.given import labelled_photos, refuse_addresses, unlabelled_photos
    from fewgraft.app.learning.adapting import learn_adapted
    from fewgraft.app.learning.learn import LearnSettings, learn
    from fewgraft.app.learning.saving import open_classifier, save_outcome
    from fewgraft.app.report.page import report_page
    from fewgraft.devices import choose_device
    from fewgraft.progress import json_lines

    _new_folder(out)
    refuse_addresses(classifier)
    place = choose_device(device)
    model = open_classifier(classifier)
    tracker = json_lines if progress_json else track_photos
    asked = (
        model,
        labelled_photos(new),
        unlabelled_photos(unlabelled) if unlabelled else (),
        labelled_photos(check) if check else None,
        LearnSettings(tolerance=tolerance, unknown=unknown, review=review, method=method),
    )
    others = unlabelled_photos(foreign) if foreign else ()
    outcome = (
        learn_adapted(*asked, tracker=tracker, device=place, foreign=others)
        if adapt
        else learn(*asked, Embedder(model, tracker=tracker, device=place), others)
    )
    save_outcome(outcome, out, report_page(outcome))
    _tell(outcome)
    typer.echo(f"wrote {out}; look at {out / 'report.html'}")


def predict(
    classifier: Annotated[str, typer.Argument(help="Use the classifier of this folder.")],
    photos: Annotated[
        Path,
        typer.Argument(help="Recognise this photo, this folder of photos, or those of a list."),
    ],
    csv: Annotated[Path | None, typer.Option(help="Write a table to this file.")] = None,
    unknown: Annotated[
        bool, typer.Option(help='Answer "unknown" where no class fits, or always name a class.')
    ] = True,
    device: DeviceOption = "auto",
) -> None:
    """Name what is on a photo, or on all photos of a folder.

    Examples:

      fewgraft predict v2 inbox --csv out.csv

      fewgraft predict v2 "one photo.jpg"

      fewgraft predict v2 inbox --no-unknown
    """
    from fewgraft.app.features.embedding import Embedder
    from fewgraft.app.features.given import refuse_addresses, unlabelled_photos
    from fewgraft.app.learning.predicting import predict, write_csv
    from fewgraft.app.learning.saving import open_classifier
    from fewgraft.devices import choose_device
    from fewgraft.files import readable

    refuse_addresses(classifier)
    embed = Embedder(open_classifier(classifier), device=choose_device(device))
    files = unlabelled_photos(photos)
    names = [readable(f.relative_to(photos) if photos.is_dir() else f) for f in files]
    answers = list(predict(embed, files, names, unknown=unknown))
    if csv:
        with writing(csv):
            write_csv(csv, answers)
        typer.echo(f"wrote {csv}: {len(answers)} photos")
    else:
        for answer in answers:
            said = answer.problem or f"{answer.label}\t{answer.score:.3f}"
            typer.echo(f"{answer.photo}\t{said}")
    if answers and all(answer.problem for answer in answers):
        raise FewgraftError("none of the photos can be read")


def embed(
    photos: Annotated[Path, typer.Argument(help="Embed this photo, or this folder of photos.")],
    backbone: Annotated[
        str, typer.Option(help="Use this backbone, or that of the classifier in this folder.")
    ] = "efficientnet-lite0",
    engine: Annotated[str, typer.Option(help="Compute here, or on a cluster with ray.")] = "here",
    address: Annotated[
        str | None, typer.Option(help="Join the Ray cluster at this address.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Compute features of photos ahead, so that base, learn and predict find them.

    Features are kept by the content of a photo. With --engine ray many machines compute; the
    photos are read here, and the features are written here. Interrupted, the same command goes on.

    Examples:

      fewgraft embed photos/pile

      fewgraft embed photos/pile --backbone v1 --engine ray --address 10.0.0.1:6379
    """
    from fewgraft.app.features.embedding import Embedder
    from fewgraft.app.features.given import refuse_addresses, unlabelled_photos
    from fewgraft.app.features.labelled import photo_name
    from fewgraft.app.learning.base import model_of_backbone
    from fewgraft.devices import choose_device

    if engine not in ("here", "ray"):
        raise FewgraftError(f"there is no engine '{engine}'", "There are: here, ray.")
    if engine == "here" and address:
        raise FewgraftError("--address goes with --engine ray")
    refuse_addresses(backbone)
    place = choose_device(device)
    files = unlabelled_photos(photos)
    model = model_of_backbone(backbone)
    if engine == "ray":
        from fewgraft.app.features.ray_embedding import embed_on_ray
        from fewgraft.ray_cluster import RayCluster

        cluster = RayCluster(address)
        try:
            failed = embed_on_ray(model, files, cluster)
        finally:
            cluster.close()
    else:
        failed = Embedder(model, device=place)(files).failed
    _tell_failures({photo_name(files[number], number): why for number, why in failed.items()})
    typer.echo(f"features of {len(files) - len(failed)} photos are kept")
    if len(failed) == len(files):
        raise FewgraftError("none of the photos can be read")


def export(
    classifier: Annotated[str, typer.Argument(help="Export the classifier of this folder.")],
    out: Annotated[Path, typer.Argument(help="Write this ONNX file.")],
) -> None:
    """Write a classifier as one ONNX file: normalisation, network and classes.

    Class names, the size of pictures and the limit of "unknown" are in its metadata.

    Example:

      fewgraft export v2 model.onnx
    """
    from fewgraft.app.features.given import refuse_addresses
    from fewgraft.app.learning.saving import open_classifier
    from fewgraft.export import export_onnx

    refuse_addresses(classifier)
    export_onnx(open_classifier(classifier), out)
    typer.echo(f"wrote {out}")


def _new_folder(out: Path) -> None:
    """Asked for before the work begins: a classifier is never written over."""
    if out.exists():
        raise FewgraftError(
            f"{out} exists already", "Give another --out: classifiers are never changed."
        )


def _tell(outcome: "Outcome") -> None:
    """What was gained and what was lost, in a few lines."""
    from fewgraft.app.report.findings import old_unmeasured

    if old_unmeasured(outcome):
        said = "what the old classes lost was NOT measured: --check CLASS_FOLDERS measures it"
        typer.secho(said, fg=typer.colors.YELLOW, bold=True)
    counts = ", ".join(f"{name} ({len(own)})" for name, own in outcome.examples.items())
    typer.echo(f"learnt {counts}")
    typer.echo(f"method: {outcome.choice.method} ({outcome.choice.why})")
    if outcome.check:
        before, after = outcome.check.accuracy_before, outcome.check.accuracy_after
        photos = len(outcome.check.photos)
        typer.echo(f"old classes: {before:.1%} before, {after:.1%} after ({photos} check photos)")
    if outcome.left_out.after:
        share, photos = outcome.left_out.accuracy_after, len(outcome.left_out.photos)
        typer.echo(f"new photos, each left out in turn: {share:.1%} of {photos} recognised")
    unlabelled = outcome.unlabelled
    if outcome.used_unlabelled:
        helped = int((unlabelled.step > 0).sum())
        typer.echo(f"pile: {helped} of {len(unlabelled.photos)} photos helped a class")
    elif outcome.why_not:
        typer.echo(f"the pile was NOT used: {outcome.why_not}")
    unknown = outcome.model.card.unknown
    if unknown:
        typer.echo(
            f'"unknown" rejects {unknown.false_rejects:.1%} of {unknown.pictures} '
            f"{unknown.chosen_on}"
        )
    if (foreign := outcome.foreign) is not None:
        typer.echo(
            f'"unknown" is the answer for {foreign.rejected} of {foreign.photos} foreign photos'
        )
        if foreign.auroc is not None:
            typer.echo(
                f"the best score tells foreign photos from known ones: AUROC {foreign.auroc:.2f}"
            )
    for note in outcome.notes:
        typer.echo(f"note: {note}")
    _tell_failures(outcome.failed)


def _tell_failures(failed: Mapping[str, str]) -> None:
    for photo, why in list(failed.items())[:SHOWN]:
        typer.echo(f"skipped {photo}: {why}", err=True)
    if len(failed) > SHOWN:
        typer.echo(f"... and {len(failed) - SHOWN} more", err=True)
