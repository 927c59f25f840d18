"""`fewgraft data`: add, list, verify and show data sets."""

from pathlib import Path
from typing import Annotated

import typer

from fewgraft.errors import FewgraftError

app = typer.Typer(
    help="Add, list, verify and show data sets: the embedded Icons, the published ones and your "
    "own folders.",
    no_args_is_help=True,
)
Root = Annotated[
    Path | None,
    typer.Option("--root", help="Keep data sets here instead of in $FEWGRAFT_HOME/data."),
]


@app.command()
def add(
    name: Annotated[
        str,
        typer.Argument(
            help="Add cifar-fs, mini-imagenet or tiered-imagenet; any other name is a folder of "
            "yours."
        ),
    ],
    path: Annotated[
        Path, typer.Option("--from", help="Read the downloaded files or folders here.")
    ],
    kind: Annotated[
        str | None, typer.Option(help="Read this kind of source, where the name is your own.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Store pictures of so many pixels a side.")
    ] = None,
    grey: Annotated[
        bool, typer.Option("--grey", help="Store one channel instead of three.")
    ] = False,
    split: Annotated[
        Path | None,
        typer.Option(help="Divide a folder as this TOML or CSV file says."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Divide pictures by draws of this seed.")
    ] = 0,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail if a picture cannot be read, instead of skipping it."),
    ] = False,
    root: Root = None,
) -> None:
    """Read pictures into a store of their own. Nothing is downloaded or changed at the source.

    Examples:

      fewgraft data add cifar-fs --from ~/downloads/cifar-100-python

      fewgraft data add birds --from ~/photos/birds --size 96 --split birds.toml
    """
    from fewgraft.data.build import describe_skipped
    from fewgraft.data.catalogue import add_data
    from fewgraft.data.sources import SourceOptions

    options = SourceOptions(size=size, grey=grey, split=split, seed=seed)
    store = add_data(name, path.expanduser(), kind, options, root=root, strict=strict)
    skipped = store.manifest.skipped
    if skipped:
        typer.echo(f"skipped {len(skipped)} files that cannot be read:", err=True)
        typer.echo(describe_skipped(skipped), err=True)
    for note in store.manifest.notes:
        typer.echo(f"note: {note}")
    typer.echo(
        f"added {name}: {_line(store.manifest.pictures, len(store.classes), store.manifest.size)}"
    )


def _line(pictures: int, classes: int, size: int) -> str:
    return f"{pictures:,} pictures of {classes} classes at {size}×{size}"


@app.command("list")
def list_(root: Root = None) -> None:
    """List the data sets that are here, and those that could be added.

    Example: fewgraft data list
    """
    from fewgraft.data.catalogue import added_names, data_root, open_data
    from fewgraft.data.icons import ICONS
    from fewgraft.data.sources import source_kinds

    root = root or data_root()
    names = added_names(root)
    for name in [ICONS, *names]:
        try:
            store = open_data(name, root)
        except FewgraftError as error:
            typer.echo(f"{name:<16} {error.problem}")
            continue
        line = _line(len(store), len(store.classes), store.manifest.size)
        where = "embedded" if name == ICONS else f"from {store.manifest.source}"
        typer.echo(f"{name:<16} {line} ({where})")
    for kind in source_kinds().values():
        if kind.name not in names:
            typer.echo(f"{kind.name:<16} not added: {kind.summary}")
    typer.echo(f"\nAdd one with `fewgraft data add NAME --from PATH`. They are kept in {root}.")
    typer.echo("`fewgraft zoo list` says where trained models for them are to be had.")


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Verify these data sets; all that are here if none is named."),
    ] = None,
    root: Root = None,
) -> None:
    """Read every byte of a data set and check it against its content hash.

    Example: fewgraft data verify cifar-fs
    """
    from fewgraft.data.catalogue import added_names, data_root, open_data
    from fewgraft.data.icons import ICONS
    from fewgraft.data.store import verify_store

    for name in names or [ICONS, *added_names(root or data_root())]:
        store = open_data(name, root)
        verify_store(store)
        line = _line(len(store), len(store.classes), store.manifest.size)
        typer.echo(f"{name}: {line}, content {store.manifest.content[:16]}: as it should be")


@app.command("names")
def names_(
    name: Annotated[str, typer.Argument(help="Name the classes of this data set.")],
    table: Annotated[Path, typer.Argument(help="Read this CSV file, with columns class and name.")],
    root: Root = None,
) -> None:
    """Give classes whose own names are codes a name that figures and reports show.

    The data stays the same, and so do episodes and results. Adding the data set again drops the
    names.

    Example: fewgraft data names mini-imagenet names.csv
    """
    from fewgraft.data.catalogue import data_root, open_data
    from fewgraft.data.icons import ICONS
    from fewgraft.data.store import NAMES, read_names
    from fewgraft.errors import reading, writing
    from fewgraft.files import write_atomically

    if name == ICONS:
        raise FewgraftError("the classes of icons have names already")
    store = open_data(name, root)
    found = read_names(table, store.classes)
    with reading(table, "readable table of names"):
        content = table.read_bytes()
    target = (root or data_root()) / name / NAMES
    with writing(target):
        write_atomically(target, content)
    typer.echo(f"{len(found)} of {len(store.classes)} classes of {name} have names to show")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Show the data set of this name.")],
    out: Annotated[
        Path | None, typer.Option(help="Write this PNG file; NAME.png if not given.")
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Show only this part, such as novel/test; may be repeated."),
    ] = None,
    classes: Annotated[
        int, typer.Option(min=1, max=400, help="Show at most so many classes.")
    ] = 36,
    pictures: Annotated[
        int, typer.Option(min=1, max=100, help="Show so many pictures of each.")
    ] = 16,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Draw the pictures by this seed.")
    ] = 0,
    root: Root = None,
) -> None:
    """Draw a contact sheet and print how many classes and pictures each part has.

    Examples:

      fewgraft data show icons

      fewgraft data show cifar-fs --part novel/test --classes 20 --out sheet.png
    """
    from rich.console import Console

    from fewgraft.cli.output import save_picture
    from fewgraft.data.catalogue import open_data
    from fewgraft.data.contact_sheet import class_rows, draw_sheet
    from fewgraft.data.overview import counts_table
    from fewgraft.data.parts import PARTS, Part
    from fewgraft.errors import nearest

    for wanted in part or ():
        if wanted not in PARTS:
            raise FewgraftError(f"'{wanted}' is not a part", nearest(wanted, map(str, PARTS)))
    store = open_data(name, root)
    Console().print(counts_table(store))
    rows = class_rows(store, [Part(p) for p in part or PARTS], classes, pictures, seed)
    if not rows:
        raise FewgraftError(f"{name} has no pictures in {', '.join(part or ())}")
    save_picture(draw_sheet(store, rows), out or Path(f"{name}.png"))
