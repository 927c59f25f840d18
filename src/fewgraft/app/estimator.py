"""The tool as a scikit-learn estimator, for photos or for features that you have already.

    from fewgraft import FewgraftClassifier

    v1 = FewgraftClassifier("efficientnet-lite0").fit(photos, names)
    v2 = v1.learn(new_photos, new_names, unlabelled=pile)
    v2.predict(["a photo.jpg"])
    v2.save("v2")

The constructor only stores; what was learnt ends in `_`. `learn` gives a new estimator and leaves
the old one as it is.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from fewgraft.app.features.embedding import Embedded, Embedder, Embeds, Photo
from fewgraft.app.features.labelled import Labelled
from fewgraft.app.learning.base import base_of_features, build_base, model_of_backbone
from fewgraft.app.learning.learn import LearnSettings, Outcome, learn
from fewgraft.app.learning.names import UNKNOWN
from fewgraft.app.learning.saving import open_classifier, save_outcome
from fewgraft.app.report.page import report_page
from fewgraft.devices import choose_device
from fewgraft.errors import FewgraftError
from fewgraft.model import CosineModel, ModelCard, load_model, read_card, save_model
from fewgraft.prototypes import Refinement
from fewgraft.runtime import place_of

Labels = NDArray[Any]


class FewgraftClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes from a few examples; a scikit-learn estimator.

    Classes are directions of features. `fit` learns the base classes, `learn` joins new ones.

    Args:
        backbone: Name of a backbone, folder of a saved model, or a `CosineModel`; X are then
            photos: file names, bytes, arrays of pixels or Pillow images. None means that X holds
            features [n, d].
        steps: How often prototypes are refined with unlabelled examples; None: as was rehearsed.
        alpha: How far a prototype moves to its new estimate (α), with `steps`.
        method: "refine", "graft", or "auto" for the one that did better when `fit` rehearsed.
        tolerance: Share of their examples that old classes may lose to new ones. None: one for
            every 10 that were mistaken in rehearsal, from 0.003 to 0.02.
        unknown: Whether `predict` may answer "unknown"; labels must be strings then.
        keep: Whether features of photos are kept on disk.
        device: Where the network is computed: "auto", "cpu", "cuda" or "mps". None leaves a
            `CosineModel` where it is and is the CPU otherwise.

    Attributes:
        classes_: Labels that it knows [K].
        model_: The `CosineModel` behind it.
        outcome_: What the last `learn` gained and lost.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> centres = 3 * rng.normal(size=(5, 16))
        >>> names = np.array(["ant", "bee", "cat", "dog", "emu"])
        >>> y = np.repeat(np.arange(5), 20)
        >>> X = centres[y] + rng.normal(size=(100, 16))
        >>> old, new = y < 3, np.isin(np.arange(100), [60, 61, 80, 81])
        >>> v1 = fewgraft.FewgraftClassifier().fit(X[old], names[y[old]])
        >>> v2 = v1.learn(X[new], names[y[new]], unlabelled=X)
        >>> v2.classes_.tolist()
        ['ant', 'bee', 'cat', 'dog', 'emu']
        >>> bool((v2.predict(X) == names[y]).mean() > 0.9)
        True
    """

    def __init__(
        self,
        backbone: str | nn.Module | None = None,
        *,
        steps: int | None = None,
        alpha: float = 0.5,
        method: str = "auto",
        tolerance: float | None = None,
        unknown: bool = False,
        keep: bool = True,
        device: str | None = None,
    ) -> None:
        self.backbone = backbone
        self.steps = steps
        self.alpha = alpha
        self.method = method
        self.tolerance = tolerance
        self.unknown = unknown
        self.keep = keep
        self.device = device

    def fit(self, X: Any, y: ArrayLike) -> Self:  # noqa: N803
        """Learn the base classes.

        Args:
            X: Photos, or features [n, d].
            y: Labels [n].

        Returns:
            The estimator itself.
        """
        if self.backbone is None:
            X, y = validate_data(self, X, y, dtype=np.float32)  # noqa: N806
        labels = np.asarray(y)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if self.backbone is None:
            self.model_ = _base_of_arrays(X, labels, self.classes_)
        else:
            built = build_base(self._start(), _by_class(_photos(X), labels), keep=self.keep)
            self.failed_, self.notes_ = built.failed, built.notes
            self.model_ = built.model if self.device is None else built.model.cpu()
        return self

    def _start(self) -> CosineModel:
        """The backbone, on the device that was asked for; one that was given stays as it is."""
        start, place = self._opened(), self._place()
        return start if place in (None, place_of(start)) else copy.deepcopy(start).to(place)

    def _place(self) -> torch.device | None:
        return None if self.device is None else choose_device(self.device)

    def _opened(self) -> CosineModel:
        if isinstance(self.backbone, CosineModel):
            return self.backbone
        if isinstance(self.backbone, str):
            return model_of_backbone(self.backbone)
        raise FewgraftError(
            "a module alone does not say what pictures it wants",
            "Wrap it: CosineModel(ModelCard(backbone='custom', ...), module).",
        )

    def learn(
        self,
        X: Any,  # noqa: N803
        y: ArrayLike,
        unlabelled: Any = None,
        check: tuple[Any, ArrayLike] | None = None,
    ) -> "FewgraftClassifier":
        """A new classifier that also knows the classes of y; this one stays as it is.

        Args:
            X: A few photos, or features [n, d], of each new class.
            y: Their labels [n].
            unlabelled: Photos, or features [m, d], of old and new classes mixed. They are used only
                where they do no harm.
            check: Photos, or features, of old classes and their labels: what the loss of old
                classes is measured on.

        Returns:
            A `FewgraftClassifier`; its `outcome_` says what happened.
        """
        check_is_fitted(self)
        labels = np.asarray(y)
        kinds = {_kind(self.classes_), _kind(labels)}
        if len(kinds) > 1:
            raise ValueError(f"labels are {kinds}: they must all be of one kind")
        outcome = learn(
            self.model_,
            _by_class(self._checked(X), labels),
            self._checked(unlabelled) if unlabelled is not None else (),
            _by_class(self._checked(check[0]), np.asarray(check[1])) if check else None,
            LearnSettings(
                method=self.method, refinement=self._refinement(), tolerance=self.tolerance
            ),
            self._embedder(),
        )
        fresh = np.unique(labels[~np.isin(labels, self.classes_)])
        order = {str(label): label for label in fresh}
        named = outcome.model.card.classes[len(self.classes_) :]
        new: FewgraftClassifier = clone(self)
        new.model_, new.outcome_ = outcome.model, outcome
        new.classes_ = np.concatenate([self.classes_, np.array([order[name] for name in named])])
        if self.backbone is None:
            new.n_features_in_ = self.n_features_in_
        return new

    def _refinement(self) -> Refinement | None:
        return None if self.steps is None else Refinement(steps=self.steps, alpha=self.alpha)

    def predict(self, X: Any) -> Labels:  # noqa: N803
        """A label for each row or photo.

        Args:
            X: Photos, or features [n, d].

        Returns:
            Labels [n], "unknown" among them where that is allowed.
        """
        logits = self._logits(X)
        answers: Labels = self.classes_[logits.argmax(-1).numpy()]
        limit = self.model_.card.unknown
        if self.unknown and limit is not None:
            answers = answers.astype(object)
            answers[(logits.amax(-1) < limit.threshold).numpy()] = UNKNOWN
        return answers

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Probabilities of the classes.

        Args:
            X: Photos, or features [n, d].

        Returns:
            Probabilities [n, K], in the order of `classes_`.
        """
        probabilities: NDArray[np.float64] = self._logits(X).double().softmax(-1).numpy()
        return probabilities

    @torch.inference_mode()
    def _logits(self, X: Any) -> torch.Tensor:  # noqa: N803
        check_is_fitted(self)
        photos = self._checked(X)
        done = self._embedder()(photos)
        if done.failed:
            number, why = next(iter(done.failed.items()))
            raise FewgraftError(f"{photos[number]} cannot be read: {why}")
        return self.model_.classify(done.tensor())

    def _checked(self, X: Any) -> Sequence[Any]:  # noqa: N803
        if self.backbone is not None:
            return _photos(X)
        rows: Sequence[Any] = validate_data(self, X, dtype=np.float32, reset=False)
        return rows

    def _embedder(self) -> Embeds:
        if self.backbone is None:
            return ArrayEmbedder(self.model_)
        return Embedder(self.model_, keep=self.keep, device=self._place())

    def save(self, folder: str | Path) -> None:
        """Write the classifier, and what is known of its last lesson.

        Args:
            folder: Where to; `load` reads it again.
        """
        check_is_fitted(self)
        if isinstance(getattr(self, "outcome_", None), Outcome):
            report = report_page(self.outcome_) if self.backbone is not None else ""
            save_outcome(self.outcome_, Path(folder), report)
        else:
            save_model(self.model_, Path(folder))


def load(folder: str | Path, backbone: nn.Module | None = None) -> FewgraftClassifier:
    """A saved classifier, or one inside the package, such as "icons".

    Args:
        folder: What `FewgraftClassifier.save`, `fewgraft base` or `fewgraft learn` wrote, or a
            name.
        backbone: Your own network, for a classifier that was built on one. One that was fitted on
            features needs none.

    Returns:
        A `FewgraftClassifier` that can `predict` and `learn`.

    Raises:
        FewgraftError: The files are absent or damaged, or the backbone is missing.

    Example:
        >>> classifier = fewgraft.load("icons")
        >>> picture = fewgraft.open_data("icons").pictures[0]
        >>> classifier.predict_proba([picture]).shape
        (1, 108)
    """
    of_features = _of_features(Path(folder))
    if of_features:
        backbone = nn.Identity()
    model = load_model(Path(folder), backbone) if backbone else open_classifier(folder)
    loaded = FewgraftClassifier(None if of_features else str(folder))
    loaded.model_ = model
    loaded.classes_ = np.array(model.card.classes)
    loaded.n_features_in_ = model.card.width
    return loaded


class ArrayEmbedder:
    """Features that are there already, taken from the model's centre."""

    def __init__(self, model: CosineModel) -> None:
        self.model = model

    def __call__(self, photos: Sequence[Any], what: str = "") -> Embedded:
        """Rows [n, d] as they are."""
        del what
        rows = np.asarray(photos, np.float32).reshape(-1, self.model.card.width)
        return Embedded(
            self.model.place(torch.from_numpy(rows)).numpy(),
            list(range(len(rows))),
            [row.tobytes() for row in rows],
            {},
        )


FEATURES = "features"  # in the card's data: fitted on features, not on photos


def _base_of_arrays(rows: NDArray[np.float32], labels: Labels, classes: Labels) -> CosineModel:
    names = tuple(map(str, classes))
    card = ModelCard(
        backbone="custom",
        width=rows.shape[1],
        classes=(),
        size=1,
        channels=1,
        mean=(0.0,),
        std=(1.0,),
        centred=True,
    )
    labelled = Labelled(
        tuple(rows), tuple(map(str, labels)), (b"",) * len(rows), torch.from_numpy(rows)
    )
    model = base_of_features(CosineModel(card, nn.Identity()), names, labelled)
    model.card = model.card.model_copy(update={"data": FEATURES})
    return model


def _of_features(folder: Path) -> bool:
    path = folder / "model.json"
    return path.is_file() and read_card(path).data == FEATURES


def _photos(photos: Any) -> list[Photo]:
    return [Path(photo) if isinstance(photo, str) else photo for photo in photos]


def _by_class(photos: Sequence[Any], labels: Labels) -> dict[str, list[Any]]:
    if len(photos) != len(labels):
        raise ValueError(f"{len(photos)} photos and {len(labels)} labels")
    classes: dict[str, list[Any]] = {str(label): [] for label in np.unique(labels)}
    for photo, label in zip(photos, labels, strict=True):
        classes[str(label)].append(photo)
    return classes


def _kind(labels: Labels) -> str:
    return "text" if labels.dtype.kind in "OUS" else "numbers"
