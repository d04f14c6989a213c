"""The closed form's figures beside the code that they describe: hivemind's balance, codecs, a newcomer's state."""

import numpy as np
import pytest
import torch
from hivemind.averaging.load_balancing import load_balance_peers
from hivemind.averaging.partition import DEFAULT_PART_SIZE_BYTES, TensorPartContainer
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.optim.progress_tracker import LocalTrainingProgress
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey

from calculator.choose.flops import forward_flops
from calculator.models.architectures import text_to_image
from calculator.swarm import exchange
from calculator.swarm.collaboration import Kind
from calculator.swarm.exchange import CODECS, Link, balanced_parts, load, vector_bytes
from calculator.swarm.forecast import PROGRESS_RECORD_BYTES, ExchangedVectors
from calculator.swarm.settings import MODES
from training.errors import BadInput
from training.model.attention import allowed_pairs
from training.model.layout import Layout
from training.optim.build import build_optimizer
from training.optim.config import OptimizerConfig
from training.optim.groups import parameter_groups
from training.recipe import load_recipe, parse_recipe, read_recipe
from training.simulate.forecast import collaboration_of
from training.swarm.engine.codecs import BLOCK_SIZE, exchange_codec
from training.tasks.known import task_of


@pytest.mark.parametrize(
    "rates", [[10, 20, 40, 5], [100, 100, 100], [10, 20, 0, 5], [1000, 10, 10, 10, 10], [50, 20, 0, 0, 20, 30, 90]]
)
def test_parts_are_as_good_as_those_of_hivemind(rates):
    links = [Link(up_bytes_per_second=rate or 1, down_bytes_per_second=1e9, client_mode=not rate) for rate in rates]
    theirs = np.array(load_balance_peers(10**6, rates)) / 10**6

    def slowest(parts) -> float:
        return max(load(part, len(rates)) / rate for part, rate in zip(parts, rates, strict=True) if rate)

    assert slowest(balanced_parts(links)) == pytest.approx(slowest(theirs), rel=1e-3)


def test_parts_that_leave_no_slack_are_those_of_hivemind():
    rates = [10, 11, 12, 13]
    links = [Link(up_bytes_per_second=rate, down_bytes_per_second=rate) for rate in rates]
    assert balanced_parts(links) == pytest.approx(np.array(load_balance_peers(10**6, rates)) / 10**6, abs=2e-3)


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_are_those_that_travel(codec):
    sizes = [(1000, 1000), (700, 1000), (300,)]
    tensors, total = [torch.randn(size) for size in sizes], 1_700_300
    container = TensorPartContainer(
        tensors, (1.0,), compression=exchange_codec(65_536, codec), part_size_bytes=exchange.part_bytes(total)
    )
    parts = [container.compression.compress(part, info) for part, info in container._input_parts_by_peer[0]]
    sent = sum(len(part.buffer) for part in parts)
    assert vector_bytes(total, 300, codec) == pytest.approx(sent, rel=2e-3)


def test_what_the_calculator_cannot_import_is_as_the_trainer_has_it():
    assert exchange.BLOCK_SIZE == BLOCK_SIZE
    assert exchange.LARGEST_PART_BYTES == DEFAULT_PART_SIZE_BYTES


def test_the_recipe_says_which_tensors_are_large():
    run = load_recipe("demo")
    everything = run.model_copy(update={"swarm": run.swarm.model_copy(update={"compression_threshold": 1})})
    assert collaboration_of(run, ()).exchange().small_parameters > 0
    assert collaboration_of(everything, ()).exchange().small_parameters == 0


def test_what_the_recipe_says_of_the_exchange_is_simulated():
    run = load_recipe("demo")
    changes = dict(
        target_batch_size=300, gradient_codec="uniform8", state_bits=8, average_state_every=7,
        matchmaking_seconds=2.5, allreduce_timeout_seconds=16.0, next_chunk_timeout_seconds=6.0, max_group_size=30,
    )  # fmt: skip
    assert not any(value == getattr(run.swarm, name) for name, value in changes.items())

    def exchange(**more):
        swarm = run.swarm.model_copy(update=changes | more)
        return collaboration_of(run.model_copy(update={"swarm": swarm}), ()).exchange()

    assert {name: getattr(exchange(), name) for name in changes} == changes
    assert [exchange(mode=mode).mode for mode in MODES] == list(MODES)
    with pytest.raises(BadInput, match="PowerSGD is not simulated"):
        exchange(powersgd_rank=4)


def test_a_newcomer_downloads_as_much_as_the_optimizer_keeps():
    weight = torch.nn.Parameter(torch.randn(1000, 1000))
    optimizer = build_optimizer(load_recipe("dalle-2021").optimizer, [weight], lr=1e-3)
    weight.grad = torch.randn(1000, 1000)
    optimizer.step()
    kept = sum(t.numel() * t.element_size() for t in optimizer.state[weight].values() if isinstance(t, torch.Tensor))
    expected = ExchangedVectors(parameters=10**6, target_batch_size=1).newcomer_bytes
    assert 2 * weight.numel() + kept == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", ["lamb8bit", "adamw8bit", "adamw", "muon"])
@pytest.mark.parametrize("recipe", ["demo", "stories"])
def test_a_newcomer_downloads_the_state_of_the_recipes_optimizer(recipe, name):
    """Small tensors have moments in 32 bits, and Muon one momentum for a hidden matrix: not two of 8 bits for all."""
    run = load_recipe(recipe)
    run = run.model_copy(update={"optimizer": OptimizerConfig(name=name)})
    model = task_of(run).build_model()
    optimizer = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    state = [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, torch.Tensor)]
    sent = sum(tensor.numel() * tensor.element_size() for tensor in state)
    sent += sum(2 * parameter.numel() for parameter in model.parameters())
    assert collaboration_of(run, ()).exchange().newcomer_bytes == pytest.approx(sent, rel=0.03)


def test_speeds_are_for_samples_of_the_recipes_length():
    """A model that could read 2048 tokens is faster with blocks of 128."""
    text = read_recipe("stories").replace("max_position_embeddings = 128", "max_position_embeddings = 2048")
    kind = Kind(count=1, gpu="t4", micro_batch_size=8)
    (longer,), (own,) = (collaboration_of(run, [kind]).kinds() for run in (parse_recipe(text), load_recipe("stories")))
    assert longer.samples_per_second == own.samples_per_second


def test_a_peers_progress_takes_as_much_of_the_record():
    record, sizes = DictionaryDHTValue(), []
    for _ in range(2):
        validator = RSASignatureValidator(RSAPrivateKey())
        progress = LocalTrainingProgress(
            peer_id=bytes(34), epoch=1000, samples_accumulated=123, samples_per_second=1.5, time=get_dht_time(),
            client_mode=False,
        )  # fmt: skip
        key = validator.local_public_key
        value, until = MSGPackSerializer.dumps(progress.dict()), get_dht_time() + 60
        signed = validator.sign_value(DHTRecord(bytes(20), MSGPackSerializer.dumps(key), value, until))
        record.store(key, signed, until)
        sizes.append(len(MSGPackSerializer.dumps(record)))
    assert sizes[1] - sizes[0] == pytest.approx(PROGRESS_RECORD_BYTES, abs=10)


@pytest.mark.parametrize("recipe", ["demo", "dalle-2021"])
def test_operations_count_the_pairs_that_the_masks_allow(recipe):
    config = load_recipe(recipe).model
    layout = Layout(text_len=config.text_seq_len + 1, grid=config.image_grid)
    pairs = {
        kind: int(allowed_pairs(kind, layout)[: config.seq_len, : config.seq_len].sum())
        for kind in ("row", "column", "conv")
    }
    inner, width, tokens = config.num_heads * config.head_dim, config.hidden_size, config.seq_len
    kinds = [config.attention_cycle[i % 4] for i in range(config.num_layers - 1)] + ["conv"]
    weights = 4 * width * inner + 3 * width * 4 * width
    layers = sum(2 * weights * tokens + 4 * inner * pairs[kind] for kind in kinds)
    text = config.text_seq_len * (config.text_vocab_size + config.text_seq_len)
    head = 2 * width * (text + config.image_seq_len * config.image_vocab_size)
    sizes = ("hidden_size", "num_layers", "num_heads", "head_dim", "text_vocab_size", "text_seq_len", "image_grid")
    named = {name: getattr(config, name) for name in (*sizes, "image_vocab_size")}
    assert forward_flops(text_to_image(name="own", **named)) == layers + head
