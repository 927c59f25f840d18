"""How many classes and pictures each part of a data set has."""

from rich import box
from rich.table import Table

from fewgraft.data.parts import PARTS
from fewgraft.data.store import ImageStore


def counts_table(store: ImageStore) -> Table:
    """Classes and pictures of each part."""
    table = Table(
        title=f"{store.manifest.name}: {len(store):,} pictures",
        title_justify="left",
        box=box.SIMPLE,
    )
    for column in ("part", "classes", "pictures", "a class"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part in PARTS:
        sizes = [len(pictures) for pictures in store.by_class(part).values()]
        if sizes:
            span = f"{min(sizes)}–{max(sizes)}" if min(sizes) < max(sizes) else str(sizes[0])
            table.add_row(part, str(len(sizes)), f"{sum(sizes):,}", span)
    return table
