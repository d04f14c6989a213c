"""CLIP (Radford et al. 2021): how well a picture matches a sentence, as the cosine of their embeddings.

One class serves both OpenAI's ViT-B/32, which ranked the 2021 run's pictures (paper, section 3.1), and the demo's own
small CLIP (`training.generate.small_clip`). Each is a transformers folder: model, tokenizer, preprocessor_config.json.

Letters: E width of an embedding, S side of the model's input pictures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from training.data.store.shards import Kind
from training.errors import BadInput

INSTALL = "pip install transformers"
VIT_B_32 = "openai/clip-vit-base-patch32"
"""Hub name of the model with which the 2021 run ranked pictures."""
EMBEDDED_TOGETHER = 64
"""Pictures or sentences in one pass."""
PREPROCESSING_FILE = "preprocessor_config.json"


class Clip:
    """A CLIP model with its tokenizer.

    Args:
        model: transformers' `CLIPModel`.
        tokenizer: The model's tokenizer, from transformers.
        mean: Mean of each colour channel, in [0, 1], which is subtracted from pixels.
        deviation: Standard deviation of each channel, by which the result is divided.
        name: Name of the model for people.
    """

    def __init__(self, model, tokenizer, *, mean: Sequence[float], deviation: Sequence[float], name: str):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self._mean = torch.tensor(mean).view(1, 3, 1, 1)
        self._deviation = torch.tensor(deviation).view(1, 3, 1, 1)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Embeddings of length 1, (n, E); long texts are truncated to the model's limit."""
        longest = self.model.config.text_config.max_position_embeddings
        found = []
        for start in range(0, len(texts), EMBEDDED_TOGETHER):
            part = list(texts[start : start + EMBEDDED_TOGETHER])
            tokens = self.tokenizer(part, padding=True, truncation=True, max_length=longest, return_tensors="pt")
            inputs = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
            found.append(self.model.get_text_features(**inputs).pooler_output)
        return functional.normalize(torch.cat(found), dim=-1)

    @torch.inference_mode()
    def embed_pictures(
        self, pictures: Sequence[np.ndarray], *, progress: Callable[[int, int], None] | None = None
    ) -> Tensor:
        """Embeddings of length 1, (n, E).

        Args:
            pictures: uint8 (side, side, 3), sRGB; square, as all pictures of a run; resized if necessary.
            progress: Called with the number of pictures done and the total.
        """
        found = []
        for start in range(0, len(pictures), EMBEDDED_TOGETHER):
            part = pictures[start : start + EMBEDDED_TOGETHER]
            found.append(self.model.get_image_features(pixel_values=self.pixels(part)).pooler_output)
            if progress is not None:
                progress(start + len(part), len(pictures))
        return functional.normalize(torch.cat(found), dim=-1)

    def pixels(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """Pictures as the model's input: resized (bicubic) to S, normalized, (n, 3, S, S)."""
        side = self.model.config.vision_config.image_size
        resized = [
            np.asarray(
                picture
                if picture.shape[0] == side
                # Bicubic, as in CLIP's own preprocessing ("resample": 3 in its preprocessor_config.json).
                else Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC)
            )
            for picture in pictures
        ]
        stacked = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float() / 255
        return (stacked - self._mean) / self._deviation


def check_scores(kind: Kind) -> None:
    """Checks that checkpoints of a run of this kind have a CLIP score.

    Raises:
        BadInput: If they have none.
    """
    if kind == "text":
        raise BadInput("--clip is for runs that draw pictures, and this one trains a language model; omit it.")


def load_clip(source: str | Path) -> Clip:
    """A CLIP model from a folder, or by its name on the Hugging Face Hub (from the local cache if it is there).

    Raises:
        BadInput: If transformers is missing, or there is no such CLIP model.
    """
    transformers = import_transformers()
    try:
        model = transformers.CLIPModel.from_pretrained(source)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        shaping, _ = transformers.image_processing_utils.ImageProcessingMixin.get_image_processor_dict(source)
        mean, deviation = shaping["image_mean"], shaping["image_std"]
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadInput(
            f"No CLIP model can be read from {source}: {str(error).splitlines()[0]} Give a folder of transformers' "
            f"form, or a name on the Hugging Face Hub such as {VIT_B_32}, with --clip."
        ) from None
    return Clip(model, tokenizer, mean=mean, deviation=deviation, name=str(source))


def save_clip(clip: Clip, folder: Path) -> None:
    """Writes a folder that `load_clip` reads."""
    clip.model.save_pretrained(folder)
    clip.tokenizer.save_pretrained(folder)
    shaping = {
        "image_processor_type": "CLIPImageProcessor",
        "image_mean": clip._mean.flatten().tolist(),
        "image_std": clip._deviation.flatten().tolist(),
        "size": {"shortest_edge": clip.model.config.vision_config.image_size},
        "crop_size": clip.model.config.vision_config.image_size,
    }
    (folder / PREPROCESSING_FILE).write_text(json.dumps(shaping, indent=1) + "\n", encoding="utf-8")


def import_transformers():
    """The transformers library, with its log messages turned off.

    Raises:
        BadInput: If it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise BadInput(f"CLIP needs transformers ({error}). Install it: {INSTALL}") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def rank(scores: Sequence[float], keep: int) -> list[int]:
    """Indices of the best `keep` scores, best first; of equal scores the earlier one is first.

    >>> rank([0.1, 0.3, 0.2, 0.3], 3)
    [1, 3, 2]
    """
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:keep]
