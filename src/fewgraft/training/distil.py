"""Self-distillation: pre-training once more, the first network's soft answers beside the labels.

What the first network holds for likely besides the right class tells how classes resemble each
other, which is what features for classes never seen need. Both networks lie in one valley: the mean
of their weights is a network too, often a better one (Wortsman et al., "Model soups", ICML 2022).
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fewgraft.data.store import ImageStore
from fewgraft.model import CosineModel
from fewgraft.prototypes import cosine_logits
from fewgraft.training.pretrain import Pretrain
from fewgraft.training.recipe import Distillation, Recipe


class Distil(Pretrain):
    """Pre-training from the teacher's weights; the teacher itself does not move."""

    name = "distillation"

    def __init__(
        self,
        model: CosineModel,
        teacher: CosineModel,
        store: ImageStore,
        recipe: Recipe,
        config: Distillation,
    ) -> None:
        super().__init__(model, store, recipe, config)
        self._teacher = teacher.eval()
        self._weight, self._temperature = config.weight, config.temperature
        self._mirror = config.augmentation.mirror
        self._share = config.teacher_share

    def _class_loss(self, logits: Tensor, labels: Tensor, pictures: Tensor) -> Tensor:
        """Labels and the teacher's softened answers, weighted."""
        answers = (self._answers(pictures) / self._temperature).softmax(-1)
        soft = cross_entropy(logits / self._temperature, answers)
        return (1 - self._weight) * cross_entropy(logits, labels) + self._weight * soft

    @torch.no_grad()
    def _answers(self, pictures: Tensor) -> Tensor:
        """The teacher's logits [b, N_b]; it sees the mirror image too, where that is allowed."""
        views = [pictures, pictures.flip(3)] if self._mirror else [pictures]
        features = [normalize(self._teacher.backbone(view), dim=-1) for view in views]
        return cosine_logits(
            torch.stack(features).mean(0), self._teacher.weight, self._teacher.gamma
        )

    def result(self) -> dict[str, Tensor]:
        """The student's weights, averaged with the teacher's: it has not gone far from there."""
        theirs = self._teacher.state_dict()
        return {
            name: torch.lerp(own, theirs[name], self._share) if own.is_floating_point() else own
            for name, own in self.model.state_dict().items()
        }

    def validate(self) -> dict[str, float]:
        """Imprinting on val episodes, with the averaged weights."""
        student = {name: own.clone() for name, own in self.model.state_dict().items()}
        self.model.load_state_dict(self.result())
        figures = super().validate()
        self.model.load_state_dict(student)
        return figures
