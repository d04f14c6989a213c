"""The loss on held-out samples, against PyTorch's cross entropy in float64 over the same samples."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from tests.support.random_shards import hold_out, write_shards
from tests.training.data.text_shards import LENGTH, WORDS, blocks_in, prepare_documents, write_documents
from training.data.store.sets import open_shards
from training.data.store.shards import read_shard
from training.errors import BadInput, TrainingError
from training.recipe import parse_recipe, read_recipe
from training.tasks import held_out
from training.tasks.held_out import held_out_part, measure
from training.tasks.known import task_of


def changed(recipe, **values):
    """A recipe of the project with other values of some keys."""
    lines = read_recipe(recipe).splitlines()
    for key, value in values.items():
        (at,) = (number for number, line in enumerate(lines) if line.startswith(f"{key} = "))
        lines[at] = f"{key} = {value}"
    return parse_recipe("\n".join(lines) + "\n")


STORIES = changed(
    "stories",
    block_length=LENGTH,
    vocab_size=len(WORDS) + 2,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    initializer_range=0.5,
)
SHAPES = changed(
    "demo",
    hidden_size=24,
    num_layers=3,
    num_heads=2,
    head_dim=16,
    image_grid=4,
    image_size=32,
    codebook_size=32,
    image_vocab_size=32,
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Shards of text, with 28 held-out blocks, each with the beginnings of documents."""
    folder = tmp_path_factory.mktemp("texts")
    prepare_documents(folder / "shards", write_documents(folder / "documents.jsonl", 300))
    return folder / "shards"


@pytest.fixture
def pictures(tmp_path):
    """Shards of pictures, of which ten in two files are held out."""
    folder = write_shards(tmp_path / "shards", SHAPES)
    hold_out(folder, SHAPES, (7, 3))
    return folder


def text_model():
    return task_of(STORIES).build_model().eval()


def sums_of_documents(model, blocks):
    """(Sum of the cross entropies, predicted tokens) of each block, by the library's class as it is: each document of a
    block alone, in float64."""
    network = AutoModelForCausalLM.from_config(model.network.config).double().eval()
    network.load_state_dict(model.network.state_dict())
    found = []
    for tokens, starts in blocks:
        borders = [0, *(at for at in range(1, len(tokens)) if starts[at]), len(tokens)]
        total, count = 0.0, 0
        for begin, end in pairwise(borders):
            if end - begin > 1:
                ids = torch.tensor([tokens[begin:end]])
                with torch.no_grad():
                    logits = network(input_ids=ids).logits[0, :-1]
                total += float(functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
                count += end - begin - 1
        found.append((total, count))
    return found


def test_the_loss_of_text_is_that_of_its_documents(texts):
    part, model = held_out_part(open_shards(texts, kind="text")), text_model()
    blocks = blocks_in(texts, "held-out")
    sums = sums_of_documents(model, blocks)
    tokens = sum(count for _, count in sums)
    told = []
    found = measure(model, task_of(STORIES), part, progress=lambda *done: told.append(done))
    assert found.samples == len(blocks) == part.samples > 20 and found.tokens == tokens < len(blocks) * (LENGTH - 1)
    assert found.loss == pytest.approx(sum(total for total, _ in sums) / tokens, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(found.loss)) and found.image_loss is None
    assert told[-1] == (len(blocks), len(blocks)) and measure(model, task_of(STORIES), part) == found


def test_of_many_samples_it_takes_the_same_few(texts, monkeypatch):
    """Its five blocks are five of the set's, from its whole length."""
    monkeypatch.setattr(held_out, "MOST_SAMPLES", 5)
    part, model, task = held_out_part(open_shards(texts, kind="text")), text_model(), task_of(STORIES)
    seen = []
    model.register_forward_pre_hook(lambda _, given: seen.extend(map(tuple, given[0].tolist())))
    found = measure(model, task, part)
    blocks = blocks_in(texts, "held-out")
    places = [[tokens for tokens, _ in blocks].index(one) for one in seen]
    assert found.samples == len(seen) == len(set(places)) == 5 and max(places) - min(places) > len(blocks) / 3
    sums = [sums_of_documents(model, [blocks[place]])[0] for place in places]
    assert found.loss == pytest.approx(sum(total for total, _ in sums) / sum(count for _, count in sums), rel=1e-6)
    before, seen[:] = [*seen], []
    assert measure(model, task, part) == found and seen == before


def test_a_large_model_is_measured_on_fewer_samples_but_on_one_at_least(texts, monkeypatch):
    part, model, task = held_out_part(open_shards(texts, kind="text")), text_model(), task_of(STORIES)
    of_one = 2 * sum(weight.numel() for weight in model.parameters()) * LENGTH
    for operations, samples in ((3 * of_one, 3), (1, 1)):
        monkeypatch.setattr(held_out, "MOST_OPERATIONS", operations)
        assert measure(model, task, part).samples == samples


def test_the_loss_of_pictures_is_that_of_their_tokens(pictures):
    """The samples are from both files; the model's logits are compared with a slow model's elsewhere."""
    part, task = held_out_part(open_shards(pictures)), task_of(SHAPES)
    model = task.build_model().eval()
    found = measure(model, task, part)
    samples = [sample for name in part.names for sample in read_shard(part.file(name))]
    text = part.tokenizer.encode([sample.caption for sample in samples], SHAPES.model.text_seq_len)
    codes = torch.from_numpy(np.stack([sample.codes for sample in samples]).astype(np.int64))
    precise = copy.deepcopy(model).double()
    with torch.no_grad():
        logits = precise.logits(text, codes)
    ids, border, rows = precise.text_ids(text), SHAPES.model.text_seq_len, precise.text_rows
    of_text = functional.cross_entropy(logits[:, :border, :rows].flatten(0, 1), ids.flatten())
    of_images = functional.cross_entropy(logits[:, border:, rows:].flatten(0, 1), codes.flatten())
    assert found.samples == 10 and found.tokens == codes.numel() and found.perplexity is None
    assert found.image_loss == pytest.approx(float(of_images), rel=1e-5)
    # The paper, section 3.1: the loss of image tokens has seven times the weight.
    assert found.loss == pytest.approx(float(of_text + 7 * of_images) / 8, rel=1e-5)


def test_without_held_out_samples_there_is_no_part(tmp_path):
    assert held_out_part(open_shards(write_shards(tmp_path / "shards", SHAPES))) is None


def test_spoiled_weights_and_damaged_shards_are_faults(pictures):
    part, task = held_out_part(open_shards(pictures)), task_of(SHAPES)
    model = task.build_model().eval()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(TrainingError, match="nan"):
        measure(model, task, part)
    file = pictures / "held-out-00001.parquet"
    content = bytearray(file.read_bytes())
    content[10:20] = bytes(10)
    file.write_bytes(content)
    with pytest.raises(BadInput, match="row group 0 of held-out-00001"):
        measure(task.build_model().eval(), task, part)
