"""Conversion of state dictionaries of dalle-pytorch (1.6.6 and the 2021 run's fork of it) to this project's, and back.

dalle-pytorch repeats a shared matrix under the name of every layer that uses it; this project has it once.
dalle-pytorch's names include the wrappers around each module, which differ between versions, so names are matched
without the wrappers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from training.errors import BadInput
from training.model.config import ModelConfig
from training.model.rotary import rotary_angles
from training.model.transformer import TextToImageTransformer

_ANGLES = "transformer.pos_emb"
_OUTPUT = {
    "to_logits.0.weight": "final_norm.weight",
    "to_logits.0.bias": "final_norm.bias",
    "to_logits.1.weight": "output.weight",
    "to_logits.1.bias": "output.bias",
}
_TIED_COPIES = {
    f"{part}_emb.linear.{name}": f"output.{name}" for part in ("text", "image") for name in ("weight", "bias")
}
_UNTIED = {"text_emb.weight": "text_embedding.weight", "image_emb.weight": "image_embedding.weight"}
_LEARNED_POSITIONS = {
    "text_pos_emb.weight": "text_positions",
    "image_pos_emb.weights_0": "row_positions",
    "image_pos_emb.weights_1": "column_positions",
}
_OWN = {"scale": "scale", "norm.weight": "norm.weight", "norm.bias": "norm.bias"}
_SHARED_ATTENTION = {"to_qkv.weight": "qkv.weight", "to_out.0.weight": "out.weight", "to_out.0.bias": "out.bias"}
_SHARED_FEED_FORWARD = {
    "net.0.weight": "inner.weight",
    "net.0.bias": "inner.bias",
    "net.3.weight": "out.weight",
    "net.3.bias": "out.bias",
}
_LAYER_NAME = re.compile(
    r"transformer\.layers\.(?:blocks\.(?P<block>\d+)\.(?P<fg>[fg])\.net|layers\.(?P<layer>\d+)\.(?P<number>[01]))"
    r"\.(?:fn\.)*(?P<rest>.+)"
)


def from_dalle_pytorch(state: Mapping[str, Tensor], model: TextToImageTransformer) -> dict[str, Tensor]:
    """Converts dalle-pytorch's state dictionary to this project's.

    The weights of its VAE (`vae.`) and its table of rotary angles are ignored: this project computes the angles. Names
    may have a prefix such as `module.`.

    Args:
        state: State dictionary of dalle-pytorch, for equal sizes and the same kind of stack (reversible or not).
        model: A model of the recipe; only its names and shapes are read, so it may be on the meta device.

    Raises:
        BadInput: If a name is unknown or missing, a shape differs, values are not finite floating-point numbers, or
            layers that share weights in the recipe do not share them in `state`.
    """
    ours = model.state_dict()
    taken: dict[str, Tensor] = {}
    for name, tensor in _without_prefix(state).items():
        if name.startswith("vae.") or name == _ANGLES:
            continue
        target = _our_name(name, model)
        if target not in ours:
            raise BadInput(f"{name} has no place in the model of this recipe; use the recipe that it was trained with.")
        if tensor.squeeze().shape != ours[target].squeeze().shape:  # dalle-pytorch's tensors have more axes of length 1
            raise BadInput(
                f"{name} is {tuple(tensor.shape)}; this recipe's {target} is {tuple(ours[target].shape)}.",
                cure="Use the recipe that the weights were trained with.",
            )
        if not (tensor.is_floating_point() and tensor.isfinite().all()):
            raise BadInput(
                f"{name} is not a weight: it holds {_oddity(tensor)}.", cure="Give a file that holds only weights."
            )
        shaped = tensor.reshape(ours[target].shape)
        # With one address it is one matrix under another name; its values need no comparison.
        if target in taken and taken[target].data_ptr() != tensor.data_ptr() and not torch.equal(taken[target], shaped):
            raise BadInput(
                f"{name} differs from the layers that share {target} in this recipe (shared_groups).",
                cure="Use the recipe that the weights were trained with.",
            )
        taken.setdefault(target, shaped)
    missing = sorted(ours.keys() - taken.keys())
    if missing:
        raise BadInput(
            f"{len(missing)} weights are missing, the first is {missing[0]}; is this the right recipe?",
            cure="Use the recipe that the weights were trained with.",
        )
    return {name: taken[name].contiguous() for name in ours}


def to_dalle_pytorch(model: TextToImageTransformer) -> dict[str, Tensor]:
    """Converts a model to dalle-pytorch 1.6.6's state dictionary, with shared weights under the name of every layer."""
    config, ours = model.config, model.state_dict()
    state: dict[str, Tensor] = {}
    if config.rotary:
        angles = rotary_angles(model.layout, config.head_dim)
        state[_ANGLES] = angles.repeat_interleave(2, dim=-1)[None]
    else:
        width = config.hidden_size
        state["text_pos_emb.weight"] = ours["text_positions"]
        state["image_pos_emb.weights_0"] = ours["row_positions"].view(1, -1, 1, width)
        state["image_pos_emb.weights_1"] = ours["column_positions"].view(1, 1, -1, width)
    for layer, group in enumerate(model.group_of_layer):
        for part, own, shared, names in (
            (0, "attention_branches", "attention", _SHARED_ATTENTION),
            (1, "feed_forward_branches", "feed_forward", _SHARED_FEED_FORWARD),
        ):
            stem = f"blocks.{layer}.{'fg'[part]}.net" if config.reversible else f"layers.{layer}.{part}"
            wrappers = "fn." * (2 + (part == 0) + 2 * config.shift_tokens)
            stem = f"transformer.layers.{stem}."
            state[stem + "scale"] = ours[f"{own}.{layer}.scale"].view(1, 1, -1)
            state[stem + "fn.norm.weight"] = ours[f"{own}.{layer}.norm.weight"]
            state[stem + "fn.norm.bias"] = ours[f"{own}.{layer}.norm.bias"]
            for theirs, name in names.items():
                state[stem + wrappers + theirs] = ours[f"{shared}.{group}.{name}"]
    state.update({theirs: ours[name] for theirs, name in _OUTPUT.items()})
    state.update({theirs: ours[name] for theirs, name in _embedding_names(config).items()})
    return state


def _oddity(tensor: Tensor) -> str:
    return "infinite numbers or none" if tensor.is_floating_point() else f"values of the type {tensor.dtype}"


def _our_name(name: str, model: TextToImageTransformer) -> str:
    """This project's name for one of dalle-pytorch's, or the name itself if there is no other."""
    config = model.config
    name = re.sub(r"^image_pos_emb\.weights\.(\d)$", r"image_pos_emb.weights_\1", name)  # since its library 0.3
    outer = _OUTPUT | _embedding_names(config) | ({} if config.rotary else _LEARNED_POSITIONS)
    if name in outer:
        return outer[name]
    match = _LAYER_NAME.fullmatch(name)
    if match is None or (match["block"] is not None) != config.reversible:
        return name
    layer = int(match["block"] or match["layer"])
    if layer >= config.num_layers:
        return name
    attention = match["fg"] == "f" or match["number"] == "0"
    rest = match["rest"]
    part = "attention" if attention else "feed_forward"
    if rest in _OWN:
        return f"{part}_branches.{layer}.{_OWN[rest]}"
    shared = (_SHARED_ATTENTION if attention else _SHARED_FEED_FORWARD).get(rest)
    return f"{part}.{model.group_of_layer[layer]}.{shared}" if shared else name


def _embedding_names(config: ModelConfig) -> dict[str, str]:
    return _TIED_COPIES if config.tied_embeddings else _UNTIED


def _without_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Removes the prefix before `to_logits` from all names, such as `module.`."""
    for name in state:
        prefix, found, _ = name.partition("to_logits.1.weight")
        if found:
            return {key.removeprefix(prefix): tensor for key, tensor in state.items()}
    raise BadInput(
        "No to_logits.1.weight among the names: this is no state dictionary of dalle-pytorch's DALLE.",
        cure="Give the file of weights that dalle-pytorch has saved.",
    )
