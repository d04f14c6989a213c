"""A loss in pieces: what it saves, what is refused, what a reader may type, and the code that `fit` prints for it.

The steps of `benchmarks/memory/steps/liger.json` were traced and are in test_reference_steps.py.
"""

from dataclasses import replace

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.choose.devices import device_named
from calculator.choose.fit import suggestions, verdict
from calculator.models.architectures import PRESETS

LLAMA = "llama-3.2-1b"
LONG = Setup(model=LLAMA, sequence_length=8192, checkpointing=True, lora_rank=16, base_bits=4)


def test_there_are_never_all_logits_at_once():
    whole, fused = (estimate(replace(LONG, loss=loss)) for loss in ("whole", "liger"))
    logits = 8192 * PRESETS[LLAMA].vocab_size
    # Those in 16 bits, and in 32 bits their copy, its log-softmax and the gradient of that.
    assert whole.gpu.total - fused.gpu.total > 10 * logits
    assert fused.parameters == whole.parameters and fused.gradient_bytes == whole.gradient_bytes
    assert any("Liger's fused linear cross-entropy" in note for note in fused.notes)
    assert not any("Liger" in note for note in whole.notes)


def test_logits_in_32_bits_are_in_the_peak():
    """NeMo Automodel #2603, which ran out of memory in the loss on them; its cure is a loss in pieces."""
    config = {"model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    setup = Setup(config=config, lora_rank=8, precision="bf16", checkpointing=True, sequence_length=8192)
    vocabularies = (151_936, 248_320)  # of Qwen3 and of the report's model
    whole, pieces = (
        [estimate(replace(setup, config=config | {"vocab_size": size}, loss=loss)) for size in vocabularies]
        for loss in ("whole", "liger")
    )
    more = vocabularies[1] - vocabularies[0]
    # In 32 bits: the log-softmax of the logits, its gradient and theirs. The weights are two matrices in 16 bits.
    assert whole[1].gpu.total - whole[0].gpu.total == 12 * 8192 * more + 2 * 2 * 256 * more
    assert all("output head and loss" in one.peak.instant for one in whole)
    assert pieces[1].gpu.total < whole[1].gpu.total / 5


@pytest.mark.parametrize("model", ["gpt2", "gpt-j-6b", "llama-3.2-1b", "gemma-2-2b", "mixtral-8x7b", "deepseek-v3"])
def test_the_trainers_own_loss_takes_less_than_all_logits(model):
    """tests/training/compute/test_language_steps.py compares the estimate with the trainer's real steps."""
    setup = Setup(model=model, micro_batch_size=4, checkpointing=True, offload_optimizer=True)
    answers = [estimate(replace(setup, loss=loss)) for loss in ("whole", "trainer")]
    heads = [[i.bytes for i in one.timeline if i.place == "output head and loss"] for one in answers]
    assert max(heads[1]) < max(heads[0]) and answers[0].gradient_bytes == answers[1].gradient_bytes


def test_a_trained_head_has_its_gradient_from_forward_on():
    setup = Setup(model="llama-3.1-8b", sequence_length=512, precision="bf16", checkpointing=True, loss="liger")
    llama = PRESETS["llama-3.1-8b"]
    head = 2 * llama.vocab_size * llama.hidden_size
    trained, frozen = estimate(setup), estimate(replace(setup, lora_rank=8, base_bits=16))
    assert trained.saved_activations > head > frozen.saved_activations


def test_a_model_in_4_bits_has_the_head_of_one_in_16():
    """The traced steps have adapters beside weights of 16 and of 32 bits; head and loss do not read the others."""
    heads = []
    for bits in (16, 4):
        answer = estimate(replace(LONG, base_bits=bits, loss="liger"))
        stretch = next(i for i in answer.timeline if (i.phase, i.place) == ("forward", "output head and loss"))
        heads.append((stretch.temporary, stretch.instant))
    assert heads[0] == heads[1]


REFUSED = {
    "loss is one of whole, liger, trainer, not True": {"loss": True},
    "gpt2 is of another family, so choose the loss whole": {"model": "gpt2"},
    "bert-base is another model, so choose the loss whole": {"model": "bert-base", "loss": "trainer"},
    "not counted with offload_activations": {"offload_activations": True},
    "loss trainer is not counted with sharding zero-3": {"gpus": 2, "sharding": "zero-3", "loss": "trainer"},
    "not counted with sharding tensor,": {"gpus": 2, "sharding": "tensor", "precision": "bf16", "model": "qwen3-8b"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_counted_is_refused(message):
    with pytest.raises(BadSetup, match=message):
        estimate(Setup(**{"model": LLAMA, "loss": "liger", **REFUSED[message]}))


def test_it_is_advised_where_logits_take_most_and_costs_no_other_training():
    setup, device = replace(LONG, sequence_length=16384), device_named("cuda-20gb")
    assert verdict(setup, device).standing == "does not fit"
    first = suggestions(setup, device)[0]
    assert first.techniques == ("a loss in pieces",) and first.changes == {"loss": "liger"}
    assert "liger-kernel" in first.sentence and first.extra_computation == 0
    # Its products are counted as those of newer GPUs, so that it is not advised for a T4, and the verdict says more.
    assert all("loss" not in one.changes for one in suggestions(setup, device_named("t4")))
    whole = Setup(model=LLAMA, precision="fp16", loss="liger")
    notes = [verdict(whole, device_named(name)).notes for name in ("t4", "rtx-4090")]
    assert ["a piece of the loss takes up to 1.47 GiB more" in " ".join(one) for one in notes] == [True, False]
