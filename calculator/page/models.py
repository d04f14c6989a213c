"""A model's own settings: the values of fields that are left empty, and which fields apply to it."""

from __future__ import annotations

from calculator.families.registry import family_of
from calculator.models.architectures import Architecture, from_config, quantization_of
from calculator.parts.parameters import odd_matrix


def own_values(model: Architecture) -> dict:
    """Returns for the form the values of empty fields, the largest values of others, and the fields that apply."""
    family = family_of(model)
    most = {"sequence_length": model.max_positions} if family.position_table and model.max_positions else {}
    return {
        "placeholders": {
            "sequence_length": str(model.sequence_length),
            "image_size": str(model.image_height or ""),
            "target_length": str(model.target_length or ""),
            "dropout": str(model.dropout),
            "shared_groups": str(model.shared_groups or "none shared"),
        },
        **({"most": most} if most else {}),
        "reversible": model.reversible,
        "two_stacks": bool(model.num_decoder_layers),
        "text_to_image": family.reversible,
        **({"pictures": True} if model.patch_size else {}),
        **({"texts": True} if model.diffuses else {}),
        **({"mixed": True} if model.mixed else {}),
        **({"movable": True} if family.offload_activations else {}),
        **({"packs": True} if family.packs else {}),
        **({"fp8": True} if family.fp8 and not odd_matrix(model) else {}),
        **({"ligers": True} if family.liger else {}),
        **({"adapters": True} if family.modules else {}),
    }


def used_part(config: dict) -> dict:
    """The entries of a config.json that the calculator reads, in its order; null is kept, as it may have a meaning.

    Raises:
        BadSetup: If the calculator refuses the config.
    """
    watched = _Watched(config)
    from_config(watched)
    used = {key: config[key] for key in watched.asked if key in config}
    # Of a thousand names of classes, only their number counts, and an address has no room for the names.
    names = used.pop("id2label", None)
    method = quantization_of(config)
    used |= {"quantization_config": {"quant_method": method}} if method else {}
    return used | ({"num_labels": len(names)} if names is not None else {})


class _Watched(dict):
    """A dict that remembers which keys were read."""

    def __init__(self, content: dict):
        super().__init__(content)
        self.asked: dict[str, None] = {}

    def get(self, key, default=None):
        # A dict keeps the order. Only `get` is watched, because the readers of a config use nothing else.
        self.asked[key] = None
        return super().get(key, default)
