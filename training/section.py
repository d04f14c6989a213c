"""A table of the recipe, and the types of its fields. Each component has its own sections in its `config.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_LAYERS = 160
"""Most layers of a model: a plan traces each, and a stranger's recipe must not hold a program for minutes. The deepest
published decoders have 126 (Llama 3.1, arXiv:2407.21783, table 3)."""
Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A frozen table of the recipe; unknown keys are refused and field docstrings are the descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
