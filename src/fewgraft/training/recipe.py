"""Recipes: one TOML file says all that a training run does."""

import hashlib
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fewgraft.augment import Augmentation
from fewgraft.backbones import backbone_spec
from fewgraft.data.store import LARGEST_SIZE
from fewgraft.errors import FewgraftError, nearest, reading
from fewgraft.home import imports_root
from fewgraft.methods import method_spec
from fewgraft.methods.base import Method
from fewgraft.parsing import first_problem, read_toml
from fewgraft.prototypes import Refinement

EMBEDDED = resources.files("fewgraft") / "recipes"
# What may change while the models stay.
OF_METHODS = ("learning", "evaluation", "sessions", "normalise")
MOST = 1_000_000  # pictures of an episode: more than any data set here has
Steps = Annotated[int, Field(ge=1, le=100_000_000)]
Shots = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST)], ...], Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class Optimisation(_Section):
    """SGD with momentum, or Adam; the rate warms up, then falls along a cosine to 0, or stays."""

    kind: Literal["sgd", "adam"] = "sgd"
    """Stochastic gradient descent, or Adam."""
    lr: float = Field(gt=0)
    """The learning rate, at its largest."""
    schedule: Literal["cosine", "constant", "falls"] = "cosine"
    """After the warm-up the rate falls along a cosine to 0, stays, or falls in steps."""
    falls: tuple[tuple[float, float], ...] = ()
    """For "falls", in order: from this share of the steps on, this share of the rate."""
    warm_up: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps in which the rate rises from 0."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    nesterov: bool = True
    """Whether it is Nesterov's."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """Weight decay."""
    decays: Literal["matrices", "all"] = "matrices"
    """What decays: matrices, or normalisation layers and γ as well."""
    decoupled: bool = False
    """Whether Adam's decay is beside the gradient (AdamW) and not in it."""
    clip: float | None = Field(default=None, gt=0)
    """The largest norm of the gradient; a larger one is scaled down."""


class Rotation(_Section):
    """Self-supervision: some pictures are shown again, rotated by 0, 90, 180 or 270 degrees, and
    the features have to tell by how much.

    Gidaris et al., "Boosting few-shot visual learning with self-supervision", ICCV 2019.
    """

    share: float = Field(default=0.5, gt=0, le=1)
    """Share of the batch that is shown again, on top of it."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of its loss."""


class Pretraining(_Section):
    """Supervised training on base/train."""

    steps: Steps
    """Steps of the optimiser."""
    batch: int = Field(default=128, ge=1, le=16384)
    """Pictures per step."""
    optimisation: Optimisation
    """See below."""
    augmentation: Augmentation = Augmentation()
    """See below."""
    small_size: int | None = Field(default=None, ge=1, le=LARGEST_SIZE)
    """Pictures are this small at first: faster, and no worse."""
    small_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps with small pictures."""
    rotation: Rotation | None = None
    """Self-supervision, see below; none if not given."""
    validate_every: int = Field(default=500, ge=1)
    """Steps between two validations."""
    selection: Literal["joint", "apart"] = "joint"
    """What the kept step is best at on validation episodes: the joint accuracy of imprinted
    prototypes, or base and novel classes told apart among themselves (the border between the two is
    then left to meta-training)."""


class Distillation(Pretraining):
    """A second pre-training that starts from the first and also learns from its soft answers.

    Furlanello et al., "Born-again neural networks", ICML 2018; for few-shot features Tian et al.,
    "Rethinking few-shot image classification", ECCV 2020.
    """

    weight: float = Field(default=0.5, ge=0, le=1)
    """Weight of the teacher's answers against the labels."""
    temperature: float = Field(default=1.0, gt=0)
    """Of both softmaxes."""
    teacher_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the teacher in the weights that come out."""


class Metatraining(_Section):
    """Algorithms 1 and 2: episodes from novel/train and base/train."""

    steps: Steps
    """Steps of the optimiser."""
    episodes: int = Field(default=4, ge=1, le=1024)
    """Episodes per step."""
    optimisation: Optimisation
    """See below."""
    shots: Shots = (1, 5)
    """Numbers of shots, in turn, step by step."""
    ways: int = Field(default=5, ge=1, le=MOST)
    """Novel classes per episode."""
    queries: int = Field(default=10, ge=1, le=MOST)
    """Queries per novel class."""
    base_queries: int = Field(default=50, ge=0, le=MOST)
    """Queries of base classes in all."""
    unlabelled: int = Field(default=150, ge=0, le=MOST)
    """|U| in Algorithm 2, half of it novel."""
    novel: Literal["data", "rotated"] = "data"
    """Where novel training classes come from: disjoint ones if the data has them, else base classes
    in turn ("data"); or base classes rotated by quarters, which W_b has no row for ("rotated")."""
    moves: Literal["last-block", "all"] = "last-block"
    """What of the network moves."""
    refinement_steps: int = Field(default=1, ge=1, le=1000)
    """Steps of refinement in Algorithm 2."""
    alpha: float = Field(default=1.0, gt=0, le=1)
    """α of Eq. 4."""
    augmentation: Augmentation = Augmentation()
    """See below."""
    validate_every: int = Field(default=50, ge=1)
    """Steps between two validations."""

    @property
    def refinement(self) -> Refinement:
        """Refinement during training."""
        return Refinement(steps=self.refinement_steps, alpha=self.alpha)


class Learning(_Section):
    """What one method learns on features of the frozen network: pieces per number of shots."""

    steps: Steps
    """Steps of the optimiser."""
    episodes: int = Field(default=8, ge=1, le=1024)
    """Episodes per step."""
    optimisation: Optimisation
    """See below."""
    shots: Shots = (1, 5)
    """One after the other, each with pieces of its own."""
    ways: int = Field(default=5, ge=1, le=MOST)
    """Novel classes per episode."""
    queries: int = Field(default=5, ge=1, le=MOST)
    """Queries per novel class."""
    base_queries: int = Field(default=25, ge=0, le=MOST)
    """Queries of base classes in all, for methods that have base classes."""
    unlabelled: int = Field(default=50, ge=0, le=MOST)
    """|U|, for methods that have none."""
    novel: Literal["data", "rotated"] = "data"
    """As for meta-training. A frozen network forgets nothing of base classes, so that they serve as
    fake-novel ones."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the entries of every feature that are dropped: pictures that the network was trained
    on lie closer together than new ones do."""
    validate_every: int = Field(default=500, ge=1)
    """Steps between two validations."""


class Validation(_Section):
    """Episodes of the val parts: which step is kept is decided on them, never on test."""

    episodes: int = Field(default=200, ge=2, le=100_000)
    """Episodes per validation and number of shots."""
    shots: Shots = (1, 5)
    """Numbers of shots; the mean over them decides."""
    refinement_steps: int = Field(default=5, ge=1, le=1000)
    """Steps of refinement with U, as in testing."""
    ways: int = Field(default=5, ge=1, le=MOST)
    """Novel classes per episode."""
    queries: int = Field(default=15, ge=1, le=MOST)
    """Queries per novel class."""
    base_queries: int = Field(default=75, ge=1, le=MOST)
    """Queries of base classes in all."""
    unlabelled: int | None = Field(default=None, ge=0, le=MOST)
    """|U|; the paper's number if not given."""


class Chosen(_Section):
    """Hyper-parameters of one method, as `bench tune` found them on validation episodes. A
    method that builds on another begins with that one's, such as `+pr+bias` with those of `+pr`,
    and `+X` with those of `X`.
    """

    method: str
    """Name of a method, or a Python file."""
    shots: int | None = None
    """For this number of shots; for any if not given."""
    hyper: dict[str, Any]
    """Hyper-parameters of the method, by name."""


class ChosenOverSessions(Chosen):
    """The same, as `bench sessions --tune` found them on validation sessions."""

    base: Literal["weights", "means"] = "weights"
    """What base classes begin with: W_b, or class means, where these have values of their own."""


class Recipe(_Section):
    """A benchmark: a whole training run, and how its models are evaluated."""

    name: str = Field(pattern=r"^[^./\\\x00][^/\\\x00]{0,99}$")
    """Of the benchmark, and of its folders."""
    data: str
    """Name of a data set (`fewgraft data`)."""
    backbone: str
    """Name of a backbone."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of everything random in training."""
    size: int | None = Field(default=None, ge=1, le=LARGEST_SIZE)
    """Side of the pictures in pixels; that of the stored ones if not given."""
    mirrored: bool = False
    """Whether a feature is the mean of a picture's and its mirror image's."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between two checkpoints."""
    pretraining: Pretraining
    """See below."""
    distillation: Distillation | None = None
    """A second pre-training, see below; none if not given."""
    metatraining: Metatraining
    """See below."""
    learning: dict[str, Learning] = {}
    """What methods learn beforehand, by method; see below."""
    validation: Validation = Validation()
    """See below."""
    normalise: bool = True
    """In evaluation, whether refinement makes features and prototypes directions; false is Eqs. 2–4
    of the paper to the letter (docs/task.md)."""
    evaluation: tuple[Chosen, ...] = ()
    """Tuned hyper-parameters, see below."""
    sessions: tuple[ChosenOverSessions, ...] = ()
    """The same for sessions, from validation sessions: what is there goes before `evaluation`."""

    @property
    def hash(self) -> str:
        """A short name for exactly this training of models, whatever methods make of them."""
        text = self.model_dump_json(exclude=set(OF_METHODS))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def hyper(self, method: str, shots: int) -> dict[str, Any]:
        """What was chosen for a method: for any number of shots, then for this one.

        A method that builds on another begins with what was chosen for that one.
        """
        spec = method_spec(method)
        base = self.hyper(spec.builds_on, shots) if spec.builds_on else {}
        found = spec.method.inherited(base)
        if not self.normalise and hasattr(spec.method, "normalise"):
            found["normalise"] = False
        for wanted in (None, shots):
            for chosen in self.evaluation:
                if chosen.method == method and chosen.shots == wanted:
                    found |= chosen.hyper
        return found

    def session_hyper(self, method: str, shots: int, base: str = "weights") -> dict[str, Any]:
        """What was chosen for a method over sessions, on top of what episodes have chosen.

        Where base classes do not begin with W_b, what was chosen for that goes first.
        """
        of_both = [chosen for chosen in self.sessions if chosen.base == "weights"]
        own = [chosen for chosen in self.sessions if chosen.base == base != "weights"]
        every = (*self.evaluation, *of_both, *own)
        return self.model_copy(update={"evaluation": every}).hyper(method, shots)

    def without(self, method: str, shots: int | None) -> Self:
        """The recipe without its entries for a method at this number of shots."""
        left = [c for c in self.evaluation if (c.method, c.shots) != (method, shots)]
        return self.model_copy(update={"evaluation": tuple(left)})

    def with_chosen(self, chosen: Chosen) -> Self:
        """The recipe with this entry in place of those for the same method and shots."""
        left = self.without(chosen.method, chosen.shots)
        return left.model_copy(update={"evaluation": (*left.evaluation, chosen)})


def recipe_names() -> list[str]:
    """Names of the recipes inside the package."""
    return sorted(Path(str(file)).stem for file in EMBEDDED.iterdir() if file.name.endswith("toml"))


def load_recipe(path_or_name: str, changes: dict[str, str] | None = None) -> Recipe:
    """A recipe from a file, or by name from inside the package, with changes such as
    {"pretraining.steps": "10"}.
    """
    with reading(path_or_name, "readable recipe"):
        content = read_toml(recipe_file(path_or_name))
        for key, value in (changes or {}).items():
            _set(content, key, value)
        recipe = _recipe(content, path_or_name)
    backbone_spec(recipe.backbone)
    return recipe


def recipe_file(path_or_name: str) -> Path:
    """The file of a recipe: the one that is named, or one inside the package or of an import."""
    path = Path(path_or_name)
    if path.is_file():
        return path
    if path_or_name in recipe_names():
        return Path(str(EMBEDDED / f"{path_or_name}.toml"))
    imported = imports_root() / path_or_name / "recipe.toml"
    if path.name == path_or_name and imported.is_file():
        return imported
    raise FewgraftError(
        f"there is no recipe '{path_or_name}'", nearest(path_or_name, recipe_names())
    )


def learning_hash(recipe: Recipe, name: str, shots: int) -> str:
    """A short name for exactly the training of a method's pieces."""
    section = recipe.learning[name].model_dump(mode="json")
    text = json.dumps([recipe.seed, section, recipe.hyper(name, shots)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def tuned_method(recipe: Recipe | str, name: str, shots: int) -> Method:
    """A method with the hyper-parameters that a recipe has chosen for it on validation episodes.

    The recipe is one that was loaded, or its name; the method is named, or given by its file. Where
    the recipe has chosen nothing, the method is as it is registered.
    """
    loaded = load_recipe(recipe) if isinstance(recipe, str) else recipe
    return method_spec(name).method.changed(**loaded.hyper(name, shots))


def _recipe(content: dict[str, Any], name: str) -> Recipe:
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise FewgraftError(f"{name}: {_explain(error)}") from None


def _set(content: dict[str, Any], key: str, value: str) -> None:
    """Follow the dots; a value that reads as TOML is that, any other is text."""
    *sections, last = key.split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise FewgraftError(f"'{key}' does not name a setting of a recipe")
    try:
        content[last] = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # no TOML, or numbers and nests beyond measure
        content[last] = value


def _explain(error: ValidationError) -> str:
    """The first problem, with its field; an unknown one with the nearest valid name."""
    first = error.errors()[0]
    if first["type"] != "extra_forbidden":
        return first_problem(error)
    where = ".".join(str(step) for step in first["loc"])
    known = _fields(Recipe, first["loc"][:-1])
    hint = nearest(str(first["loc"][-1]), known)
    return f"there is no setting '{where}'\n{hint}"


def _fields(model: type[BaseModel], steps: tuple[int | str, ...]) -> list[str]:
    """Names of the settings at a place; places in a list are numbers."""
    for step in steps:
        if isinstance(step, str) and step in model.model_fields:  # else the name of a method
            model = _section_of(model.model_fields[step].annotation)
    return list(model.model_fields)


def _section_of(annotation: Any) -> type[BaseModel]:
    """The section in an annotation such as `tuple[Chosen, ...]` or `Distillation | None`."""
    parts = [annotation, *get_args(annotation)]
    return next(p for p in parts if isinstance(p, type) and issubclass(p, BaseModel))
