"""A recipe as a TOML file, with a comment beside each value that a person may change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

COMMENTS = {
    "run_id": "peers find each other by it: a new name for each run",
    "title": "shown on the dashboard, as is the description; change both at any time",
    "seed": "draws the first weights",
    "model.block_length": "tokens of a sample, as in the shards",
    "model.from": "a folder with config.json and model.safetensors, or an id of the Hugging Face Hub",
    "model.hidden_size": "width; a larger model learns more, and takes more memory: see `plan`",
    "model.num_layers": "layers in all, also those that share weights",
    "model.text_vocab_size": "ids of the captions' tokenizer, as in the shards",
    "model.text_seq_len": "tokens of a caption; longer captions are cut off",
    "model.image_grid": "codes along a side of a picture: the codec's image_size / downsampling",
    "model.image_vocab_size": "the codec's codebook_size",
    "model.shared_groups": "groups of layers that share weights",
    "model.reversible": "layers whose activations are computed again instead of kept",
    "model.architecture.model_type": "as in a config.json of the Hugging Face Hub",
    "model.architecture.vocab_size": "ids of the tokenizer, as in the shards",
    "model.architecture.hidden_size": "width; a larger model learns more, and takes more memory: see `plan`",
    "model.architecture.max_position_embeddings": "longest text, in tokens; at least block_length",
    "model.architecture.eos_token_id": "ends a text, as in the shards",
    "codec.kind": "`small` is trained by `prepare`, `vqgan` is published",
    "codec.image_size": "side of a picture, in pixels; for another size, prepare the shards again",
    "adapter.rank": "larger adapters learn more, and more has to be sent",
    "adapter.alpha": "scale of the adapters; usually one or two times the rank",
    "adapter.targets": 'layers beside which adapters stand, or "all-linear"',
    "adapter.freeze_a": "true: only the second of an adapter's two matrices is trained and sent",
    "adapter.frozen_bits": "bits of each of the model's own weights: 32, 16, or 4 on NVIDIA GPUs",
    "adapter.base_digest": "digest of the model's own weights; volunteers with other weights are refused",
    "data.shards": "folder or address of the prepared shards; change it when they move",
    "optimizer.name": "lamb8bit, lamb, adamw8bit, adamw or muon, each with its own learning rates",
    "schedule.peak_learning_rate": "lower if the loss jumps",
    "schedule.warmup_epochs": "epochs until the learning rate is at its peak",
    "schedule.total_epochs": "epochs in all; the learning rate falls to zero until then",
    "swarm.target_batch_size": "samples of all peers together for one epoch, that is one update",
    "swarm.matchmaking_seconds": "how long peers look for a group; longer if links are slow to answer",
    "swarm.allreduce_timeout_seconds": "longest average; longer if links are slow",
    "swarm.next_chunk_timeout_seconds": "silence after which an average goes on without a peer",
    "swarm.gradient_codec": "8 bits with a scale for each 512 values; float16 sends twice as much",
    "swarm.average_state_every": "epochs between two averages of the weights themselves",
    "swarm.state_bits": "bits of each of these weights when it is sent: 8 or 16",
    "swarm.mode": "synchronous; delayed hides the exchange; diloco and sparse exchange rarely, for slow links",
    "swarm.inner_batch_size": "samples of a volunteer's own update between two exchanges",
    "swarm.delay_outer_step": "volunteers train on during the exchange; false: they wait, and have newer weights",
    "swarm.max_epochs_alone": "epochs alone before a volunteer waits for others; 0: never waits; change at any time",
    "swarm.metrics_every_seconds": "how often volunteers report to the dashboard",
    "monitor.checkpoint_every_epochs": "change this and all below at any time",
    "monitor.pictures_every_epochs": "how often the prompts are drawn or continued",
    "monitor.prompts": "what is drawn, or how the texts begin that are continued",
    "monitor.top_k": "likeliest tokens or codes among which each next one is drawn",
    "monitor.top_p": "the likeliest of these, which together have this probability",
    "monitor.continuation_tokens": "tokens of a text that continues a prompt",
}  # fmt: skip
"""Table and key -> the comment beside its value."""

LONGEST_LIST = 60
"""Most characters of a list in one line."""
Tables = Mapping[str, Mapping[str, object]]
"""Name of a table -> its keys and values; the name of the first is empty."""


def recipe_text(head: Iterable[str], tables: Tables) -> str:
    """Writes a recipe.

    Args:
        head: Lines of the comment at its beginning.
        tables: The recipe's tables in their order.

    >>> print(recipe_text(["A run."], {"": {"seed": 0}, "data": {"shards": "shards"}}), end="")
    # A run.
    <BLANKLINE>
    seed = 0  # draws the first weights
    <BLANKLINE>
    [data]
    shards = "shards"  # folder or address of the prepared shards; change it when they move
    """
    lines = [f"# {line}".rstrip() for line in head]
    for name, table in tables.items():
        lines += ["", f"[{name}]"] if name else [""]
        for key, value in table.items():
            comment = COMMENTS.get(f"{name}.{key}" if name else key)
            after = f"  # {comment}" if comment else ""
            if isinstance(value, (list, tuple)) and len(toml(value)) > LONGEST_LIST:
                lines += [f"{key} = [{after}", *[f"  {toml(one)}," for one in value], "]"]
            else:
                lines.append(f"{key} = {toml(value)}{after}")
    return "\n".join(lines) + "\n"


def toml(value: object) -> str:
    """Writes a value of a recipe in TOML, with all digits.

    >>> [toml(value) for value in (True, 2.5e-3, 16384, ["a", 'say "b"'])]
    ['true', '0.0025', '16384', '["a", "say \\\\"b\\\\""]']
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(one)}' for key, one in value.items())} }}"
    return repr(value)
