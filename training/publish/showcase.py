"""Public view of a run's model: the texts and pictures that it makes, and the words of its model card."""

from __future__ import annotations

from dataclasses import dataclass

from training.model.language.source import HUB_ID
from training.recipe import LanguageRun, RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Picture or text that a model has made of a prompt, with the judge's verdict."""

    prompt: str
    file: str | None = None
    """Path of the picture below the pictures' folder, such as `000040/0.png`."""
    shape: bool | None = None
    """True if every shape is as the prompt says; None if the judge does not know the prompt's words."""
    colour: bool | None = None
    text: str | None = None
    """The model's continuation of the prompt."""
    good: bool | None = None
    """True if the text is right; None for a picture, or if the judge does not know the prompt's words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardWords:
    """Words of a model card that depend on the kind of model."""

    pipeline_tag: str
    """Name of the task on model hubs, such as `text-generation`."""
    weights: str
    """Contents of the checkpoint, as the words after "Weights of"."""
    needs: str
    """Sentence on other files that are needed to use the checkpoint."""
    knows: str
    """Data that the model has seen, as the words after "The model knows"."""
    makes: str
    """Verb for the model's output, as the word after "nobody has filtered what it"."""
    loss_unit: str
    base: str | None = None
    """Hub id of the weights with which training began, or beside which adapters are trained."""


def card_words(run: RunConfig) -> CardWords:
    """Chooses the words of a model card by what the run trains."""
    return _words_for_text(run) if isinstance(run, LanguageRun) else _WORDS_FOR_PICTURES


_WORDS_FOR_PICTURES = CardWords(
    pipeline_tag="text-to-image",
    weights="a text-to-image transformer",
    needs="Pictures also need the run's image codec, which lies beside its prepared shards.",
    knows="the captions and pictures that it was trained on",
    makes="draws",
    loss_unit="nats per token, of pictures and captions with their weights",
)


def _words_for_text(run: LanguageRun) -> CardWords:
    base = run.model.pretrained
    needs = "It also needs the run's tokenizer, which lies beside its prepared shards."
    if run.adapter is not None:
        needs += f" These are adapters: they stand beside the frozen weights of {base}, which are not in this folder."
    return CardWords(
        pipeline_tag="text-generation",
        weights="a language model" if run.adapter is None else "adapters (LoRA) for a language model",
        needs=needs,
        knows="the texts that it was trained on",
        makes="writes",
        loss_unit="nats per token",
        base=base.partition("@")[0] if base is not None and HUB_ID.fullmatch(base) else None,
    )
