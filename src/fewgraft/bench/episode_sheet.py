"""An episode to look at: support, unlabelled and query pictures."""

from PIL import Image

from fewgraft.data.contact_sheet import SheetRow, draw_sheet
from fewgraft.data.store import ImageStore
from fewgraft.episodes import Episodes

COLUMNS = 20
MOST_LINES = 4


def draw_episode(store: ImageStore, episodes: Episodes, number: int = 0) -> Image.Image:
    """Draw one of `episodes`, as a method sees it: only supports carry names."""
    shots = episodes.settings.shots
    support = episodes.support[number].tolist()
    rows = [
        SheetRow(f"support\n{store.name_of(label)}", support[way * shots :][:shots])
        for way, label in enumerate(episodes.classes[number].tolist())
    ]
    for role, pictures in (("unlabelled", episodes.unlabelled), ("query", episodes.query)):
        count = pictures.shape[1]
        if count:
            shown = pictures[number, : COLUMNS * MOST_LINES].tolist()
            label = f"{role}\n{count} pictures"
            if len(shown) < count:
                label += f",\nfirst {len(shown)} shown"
            rows.append(SheetRow(label, shown))
    return draw_sheet(store, rows, columns=COLUMNS)
