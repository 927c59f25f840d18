"""The models that ship: where they are, and how to open one."""

from importlib import resources
from pathlib import Path

from fewgraft.errors import FewgraftError, nearest
from fewgraft.home import imports_root
from fewgraft.model import CosineModel, load_model, read_card

ZOO = Path(str(resources.files("fewgraft") / "zoo_models"))
CHECKOUT_ZOO = ZOO.parents[2] / "zoo"  # where this is a source tree
IMPORTED = "imported"  # the stage of a model that others trained
IN_SOURCE_TREE = ("cifar-100-sessions", "cifar-fs")  # models that are too large for the package


def shipped_names() -> list[str]:
    """What models inside the package are called."""
    return sorted(path.name for path in ZOO.iterdir() if path.is_dir())


def models_folder(name: str) -> Path:
    """Where the trained models of a recipe are: in the package, the source tree, or an import."""
    for place in (ZOO / name, CHECKOUT_ZOO / name, imports_root() / name):
        if place.is_dir():
            return place
    raise FewgraftError(f"the package has no trained models for '{name}'", where_to_get(name))


def where_to_get(name: str, option: str = "--models ") -> str:
    """What to do for models that are not in the package; `option` takes their folder."""
    train = f"`fewgraft train {name} --out runs/{name}` trains them: pass {option}runs/{name}."
    if name not in IN_SOURCE_TREE:
        return train
    return f"The project's source tree has them: pass {option}SOURCE/zoo/{name}. {train}"


def is_imported_model(folder: Path) -> bool:
    """Whether a folder is itself a model, of others, that stands for every stage of training."""
    path = folder / "model.json"
    return path.is_file() and read_card(path).stage == IMPORTED


def stage_model(folder: Path, stage: str) -> CosineModel:
    """One of the models of a folder that holds one per stage, or the model of an import."""
    if is_imported_model(folder):
        return load_model(folder)
    if not (folder / stage / "model.json").is_file():
        raise FewgraftError(
            f"{folder} has no model '{stage}'", "It is the folder of a `fewgraft train` run."
        )
    return load_model(folder / stage)


def shipped_model(name: str, stage: str) -> CosineModel:
    """A model inside the package, such as ("icons", "algorithm-2")."""
    folder = ZOO / name / stage
    if not folder.is_dir():
        cards = [card.parent for card in ZOO.glob("*/*/model.json")]
        known = [f"{path.parent.name}/{path.name}" for path in cards]
        raise FewgraftError(
            f"no model '{name}/{stage}' ships with this version", nearest(f"{name}/{stage}", known)
        )
    return load_model(folder)
