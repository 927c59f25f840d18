"""A whole model in one ONNX file: normalisation, backbone, centre and cosine classifier.

The file's metadata tells what a program needs beside it: class names, how to cut a picture, when to
answer "unknown".
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewgraft import __version__
from fewgraft.errors import FewgraftError, writing
from fewgraft.extras import extra, first_line, quiet
from fewgraft.files import write_atomically
from fewgraft.model import CosineModel, ModelCard

EXTRA = "onnx"


class Classifier(nn.Module):
    """uint8 pixels [n, size, size, channels] → logits [n, K] and probabilities [n, K]."""

    def __init__(self, model: CosineModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """γ·cos(f, w_k), and its softmax."""
        logits = self.model(self.model.prepare(pixels))
        return logits, logits.softmax(1)


def export_onnx(model: CosineModel, path: Path) -> None:
    """Write the model as an ONNX file: `pixels` in, `logits` and `probabilities` out.

    The number of pictures is free. An old file in this place stays until the new one is complete.
    """
    if model.card.backbone.startswith("onnx:"):
        raise FewgraftError(
            "this model's backbone is an ONNX file, which cannot be exported as a part of another",
            "Run that file, then γ·cos(f, w_k) with W and γ of model.safetensors.",
        )
    classifier = Classifier(copy.deepcopy(model).cpu().eval())
    graph = onnx_graph(classifier, model.card, ["logits", "probabilities"])
    for key, value in metadata(model.card).items():
        graph.metadata_props.add(key=key, value=value)
    try:
        content = graph.SerializeToString()
    except Exception as error:  # a message of 2 GiB or more cannot be one file
        raise FewgraftError(f"cannot write {path}: {first_line(error)}") from error
    with writing(path):
        write_atomically(path, content)


def onnx_graph(module: nn.Module, card: ModelCard, outputs: Sequence[str]) -> Any:
    """A module from uint8 `pixels` [n, size, size, channels] as an ONNX message; n is free."""
    for package in ("onnx", "onnxscript"):
        extra(package, EXTRA)
    # Two pictures: of one, the exporter would take the number for a constant.
    example = torch.zeros(2, card.size, card.size, card.channels, dtype=torch.uint8)
    try:
        with quiet(), torch.inference_mode(mode=False):
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                dynamic_shapes={"pixels": {0: torch.export.Dim("n")}},
                input_names=["pixels"],
                output_names=list(outputs),
                verbose=False,
            )
    except Exception as error:  # whatever a foreign backbone meets on its way
        raise FewgraftError(
            f"the backbone {card.backbone} cannot be exported: {first_line(error)}"
        ) from error
    assert program is not None
    return program.model_proto


def metadata(card: ModelCard) -> dict[str, str]:
    """What a program that runs the file has to know; every value is text."""
    unknown = card.unknown
    return {
        "classes": json.dumps(card.classes, ensure_ascii=False),
        "size": str(card.size),
        "crop": repr(card.crop),
        "channels": str(card.channels),
        "unknown_threshold": "" if unknown is None else repr(unknown.threshold),
        "preparation": preparation(card),
        "backbone": card.backbone,
        "licence": card.licence,
        "fewgraft_version": __version__,
    }


def preparation(card: ModelCard) -> str:
    """How to make `pixels` from a picture, in words."""
    mode = "grey" if card.channels == 1 else "RGB"
    return (
        f"Turn the picture upright, lay it on white, make it {mode}. Resize its shorter side to "
        f"{round(card.size / card.crop)} pixels (bicubic) and cut the middle {card.size}×"
        f"{card.size} out. pixels: uint8 [n, {card.size}, {card.size}, {card.channels}]; the file "
        "normalises them. The answer is unknown if the best logit lies below unknown_threshold."
    )
