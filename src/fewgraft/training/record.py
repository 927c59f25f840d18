"""What a run's folder says it is a run of: `run.json`, and the cards of the stages that are done.

A folder holds one run. Stages that were trained with other settings, or on other pictures, would
make cards that claim what never happened.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import write_atomically
from fewgraft.model import read_card
from fewgraft.parsing import read_whole
from fewgraft.training.checkpoint import checkpoint_run
from fewgraft.training.recipe import OF_METHODS, Recipe

FILE = "run.json"
LARGEST = 1 << 24  # bytes
_SHOWN = 5  # changes that are named

RunSettings = dict[str, Any]


def check_record(folder: Path, recipe: Recipe, store: ImageStore, stages: Sequence[str]) -> None:
    """Refuse to go on with a run of other settings or other pictures."""
    now = _record(recipe, store)
    for then in _records(folder, store, stages):
        changes = list(_changes(then, now))
        if changes:
            more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
            raise _another(folder, f"{', '.join(changes[:_SHOWN])}{more}")
    if (folder / FILE).exists():
        return
    known = {run_name(recipe, store, stage) for stage in stages}
    for path in sorted(folder.glob("*.checkpoint")):
        name = checkpoint_run(path)
        if name not in known and not path.stem.endswith("-shot"):  # pieces: their own phase checks
            raise _another(
                folder, f"{path.name} is of [{name}], not of {recipe.hash} on these pictures"
            )


def _another(folder: Path, what: str) -> FewgraftError:
    return FewgraftError(
        f"{folder} holds another run: {what}",
        "Give another --out, or the settings and data that this run began with.",
    )


def run_name(recipe: Recipe, store: ImageStore, stage: str) -> str:
    """What a checkpoint calls the training it belongs to."""
    return f"{recipe.name} {recipe.hash} {stage} {store.manifest.content[:12]}"


def write_record(folder: Path, recipe: Recipe, store: ImageStore) -> None:
    """Say what the run is, before anything of it is there."""
    if not (folder / FILE).exists():
        text = json.dumps(_record(recipe, store), indent=1, ensure_ascii=False)
        with writing(folder / FILE):
            write_atomically(folder / FILE, text.encode())


def training_settings(recipe: Recipe) -> RunSettings:
    """All that training depends on; how the models are evaluated may change."""
    return recipe.model_dump(mode="json", exclude=set(OF_METHODS))


def data_name(store: ImageStore) -> str:
    """As cards call what a model was trained on: the name, and what is in it."""
    return f"{store.manifest.name} {store.manifest.content[:16]}"


def _record(recipe: Recipe, store: ImageStore) -> RunSettings:
    return {"recipe": training_settings(recipe), "data": data_name(store)}


def _records(folder: Path, store: ImageStore, stages: Sequence[str]) -> Iterator[RunSettings]:
    """What the folder says, each part of it on its own."""
    path = folder / FILE
    if path.exists():
        with reading(path, "record of a run", "Remove it to go on by the cards of the stages."):
            told = json.loads(read_whole(path, LARGEST))
            yield {"recipe": _completed(told["recipe"]), "data": str(told["data"])}
    for path in (folder / stage / "model.json" for stage in stages):
        if not path.exists():
            continue
        card = read_card(path)
        if card.recipe:  # a model that was put there by hand may have none
            yield {"recipe": _completed(card.recipe), "data": card.data or data_name(store)}


def _completed(recipe: RunSettings) -> RunSettings:
    """With the settings that did not exist yet when it was written."""
    try:
        return training_settings(Recipe.model_validate(recipe))
    except ValidationError:
        return {name: value for name, value in recipe.items() if name not in OF_METHODS}


def _changes(then: RunSettings, now: RunSettings) -> Iterator[str]:
    """Such as "seed: 0 then, 7 now"."""
    old, new = dict(_flat(then)), dict(_flat(now))
    for name in sorted(old.keys() | new.keys(), key=list(old | new).index):
        a, b = (_told(values, name) for values in (old, new))
        if a != b:
            yield f"{name}: {a} then, {b} now"


def _flat(values: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """{"a": {"b": 1}} → ("a.b", 1); the recipe's own settings without a word in front."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if (under, name) == ("", "recipe") else f"{under}{name}.")
        else:
            yield f"{under}{name}" if (under, name) != ("", "data") else "pictures", value


def _told(values: RunSettings, name: str) -> str:
    value = values.get(name)
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
