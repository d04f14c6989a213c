"""The folder that `new` makes: its recipe, what its servers are told, and its answers to questions."""

from __future__ import annotations

import re
import socket
import tomllib

import pytest
from typer.testing import CliRunner

from calculator.swarm.recipe_file import COMMENTS
from calculator.units import show_count
from training.cli import build_app
from training.data.demo.draw import draw_set
from training.data.store.shards import read_manifest, read_shard
from training.data.store.text_tokenizer import TextTokenizer
from training.errors import BadInput
from training.new.begin import free_ports
from training.new.folder import Servers, held_out_words, read_servers, write_servers
from training.new.questions import ask, days_of
from training.recipe import load_recipe, read_recipe
from training.tasks.known import task_of

SENTENCES = "Ada has a red key and goes to the library. Max has a black kite and sees a small house by the sea. "


def write_texts(folder, count=60):
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"This is story {number}. {SENTENCES * 4}")


def begin(*words):
    ended = CliRunner().invoke(build_app(), ["new", *map(str, words), "--yes", "--no-serve"])
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return ended.output


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder of a run of text that `new` has made, and what it printed."""
    folder = tmp_path_factory.mktemp("made")
    write_texts(folder / "texts")
    return folder / "run", begin(folder / "texts", "--run-dir", folder / "run", "--volunteers", "2:cpu", "--port", 8123)


def test_the_recipe_has_what_the_data_decide(made):
    folder, _ = made
    run, manifest = load_recipe(str(folder / "recipe.toml")), read_manifest(folder / "shards")
    task_of(run).check_fit(manifest, source="shards")
    architecture = run.model.architecture
    assert architecture["vocab_size"] == manifest.vocab_size == task_of(run).vocab_size
    assert architecture["eos_token_id"] == manifest.end_of_text
    assert run.model.block_length == manifest.block_length
    assert run.data.shards == str(folder / "shards")
    assert run.monitor.prompts and all(prompt.startswith("This is story") for prompt in run.monitor.prompts)


def test_each_value_that_a_person_may_change_has_a_comment(made):
    folder, _ = made
    text = (folder / "recipe.toml").read_text()
    table = ""
    for line in text.splitlines():
        if found := re.fullmatch(r"\[(.+)\]", line):
            table = f"{found[1]}."
        elif found := re.match(r"(\w+) = .*?(?:  # (.+))?$", line):
            assert found[2] == COMMENTS.get(table + found[1]), line
    fields = tomllib.loads(text)
    told = [f"{name}.{key}" for name in ("schedule", "swarm", "monitor") for key in fields[name]]
    assert [name for name in told if name not in COMMENTS] == []


def test_what_is_printed_names_data_forecast_and_the_next_command(made):
    folder, printed = made
    assert "60 files of text" in printed and "  2 × computer without a GPU: 114 GFLOP/s" in printed
    assert re.search(r"whole .* epochs, \d+ min", printed)
    splits = read_manifest(folder / "shards").splits
    run = load_recipe(str(folder / "recipe.toml"))
    passes = run.schedule.total_epochs * run.swarm.target_batch_size / splits["train"].samples
    assert passes > 4 and f"trained on about {show_count(round(passes))} times" in printed
    held_out = splits["held-out"].samples
    assert held_out > 1 and f"{held_out} more are held out of training" in printed
    assert held_out_words(read_manifest(folder / "shards")) in printed
    assert f"new {folder}" in printed


def test_a_clip_model_for_texts_is_refused_before_it_is_kept_for_each_later_start(tmp_path):
    write_texts(tmp_path / "texts", count=1)
    there, new = tmp_path / "there", tmp_path / "new"
    there.mkdir()
    (there / "recipe.toml").write_text(read_recipe("stories"))
    write_servers(there, Servers(shards="shards", port=8123, dht_port=31337))
    for words in ([there], [tmp_path / "texts", "--run-dir", there], [tmp_path / "texts", "--run-dir", new]):
        ended = CliRunner().invoke(build_app(), ["new", *map(str, words), "--clip", "clip", "--yes", "--no-serve"])
        assert isinstance(ended.exception, BadInput), ended.output
    assert read_servers(there).clip is None and not new.exists()


def test_a_second_call_makes_nothing_anew_and_keeps_the_servers(made):
    folder, _ = made
    before = (folder / "recipe.toml").stat().st_mtime_ns
    for words in ([folder], [folder.parent / "texts", "--run-dir", folder]):
        assert "Prepared" not in begin(*words)
    assert (folder / "recipe.toml").stat().st_mtime_ns == before
    servers = read_servers(folder)
    assert servers.port == 8123 and servers.dht_port >= 31337
    assert servers.shards == "shards", "so that it is right wherever the folder lies"
    begin(folder, "--address", "run.example")
    changed = read_servers(folder)
    assert (changed.public_url, changed.announce_host) == ("http://run.example:8123", "run.example")
    begin(folder, "--address", "https://run.example/")
    changed = read_servers(folder)
    assert (changed.public_url, changed.announce_host) == ("https://run.example/", "run.example")


def test_shards_that_are_prepared_stay_where_they_are(made, tmp_path):
    folder, _ = made
    begin(folder / "shards", "--run-dir", tmp_path / "run")
    assert load_recipe(str(tmp_path / "run" / "recipe.toml")).data.shards == str(folder / "shards")
    assert not (tmp_path / "run" / "shards").exists()
    assert read_servers(tmp_path / "run").shards == str(folder / "shards")


def test_further_servers_are_kept(made, tmp_path):
    folder, _ = made
    begin(folder / "shards", "--run-dir", tmp_path / "run")
    assert list(read_servers(tmp_path / "run").initial_peers) == []
    peers = ["/ip4/203.0.113.7/tcp/31337/p2p/Qm1", "/ip4/203.0.113.8/tcp/31337/p2p/Qm2"]
    begin(tmp_path / "run", "--initial-peers", peers[0], "--initial-peers", peers[1])
    begin(tmp_path / "run", "--port", 8124)
    assert read_servers(tmp_path / "run").initial_peers == peers


def test_a_broken_file_of_servers_is_named(tmp_path):
    write_servers(tmp_path, Servers(shards="shards", port=8000, dht_port=31337))
    assert read_servers(tmp_path).address is None
    (tmp_path / "servers.toml").write_text("prot = 8000\n")
    with pytest.raises(BadInput, match="prot"):
        read_servers(tmp_path)


def test_ports_in_use_are_left_out():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_ports(port, 1, "127.0.0.1") > port
        assert free_ports(port - 1, 2, "127.0.0.1") > port


def test_a_question_is_asked_until_the_answer_can_be_read(monkeypatch, capsys):
    answers = iter(["soon", "-1", "0,5"])
    monkeypatch.setattr("builtins.input", lambda *_: next(answers))
    assert ask("How long?", "1", days_of) == 0.5
    printed = capsys.readouterr().out
    assert "'soon' is no number" in printed and "Give more than 0 days" in printed


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with a small published model and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("base")
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config = LlamaConfig(vocab_size=300, max_position_embeddings=64, eos_token_id=0, initializer_range=1 / 24, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    TextTokenizer.train([SENTENCES], 300).save(folder / "tokenizer.json")
    return folder


def test_a_models_architecture_and_digest_are_read_from_its_folder(made, base, tmp_path):
    texts = made[0].parent / "texts"
    printed = begin(texts, "--run-dir", tmp_path / "run", "--from", base, "--volunteers", "2:cpu")
    run = load_recipe(str(tmp_path / "run" / "recipe.toml"))
    model = task_of(run).build_model()  # refuses another digest, and an architecture that the weights do not have
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert re.search(rf"model +{trained:,} weights of adapters".replace(",", "."), printed), printed
    assert run.adapter.frozen_bits == 32 and run.model.block_length == 64
    assert read_manifest(tmp_path / "run" / "shards").end_of_text == 0
    task_of(run).check_fit(read_manifest(tmp_path / "run" / "shards"), source="shards")


def test_a_model_to_fine_tune_needs_text_and_a_tokenizer(made, base, tmp_path):
    for change, said in ((base / "tokenizer.json", "has no tokenizer.json"), (None, "has pictures")):
        data = made[0].parent / "texts"
        if change is None:
            data = tmp_path / "pictures"
            data.mkdir()
            (data / "1.png").write_bytes(b"")
        else:
            change.unlink()
        words = ["new", str(data), "--from", str(base), "--run-dir", str(tmp_path / "run"), "--yes", "--no-serve"]
        ended = CliRunner().invoke(build_app(), words)
        assert isinstance(ended.exception, BadInput) and said in str(ended.exception)


def test_pictures_get_a_model_for_their_captions(monkeypatch, tmp_path):
    monkeypatch.setattr("training.new.make.FEW_STEPS", 5)
    monkeypatch.setattr("training.new.make.STEPS_PER_PICTURE", 0)
    draw_set(tmp_path / "pictures", count=200, seed=0)
    captions = tmp_path / "pictures" / "captions.jsonl"
    captions.write_text(re.sub(r', "split": "[^"]*"', "", captions.read_text()))
    printed = begin(tmp_path / "pictures", "--run-dir", tmp_path / "run", "--volunteers", "2:cpu", "--title", "Shapes")
    run, manifest = load_recipe(str(tmp_path / "run" / "recipe.toml")), read_manifest(tmp_path / "run" / "shards")
    task_of(run).check_fit(manifest, source="shards")
    assert run.title == "Shapes" and "200 pictures" in printed
    assert run.model.text_vocab_size == manifest.text_vocab_size
    captions = [sample.caption for sample in read_shard(tmp_path / "run" / "shards" / "train-00000.parquet")]
    longest = max(len(caption.split()) for caption in captions)
    assert longest <= run.model.text_seq_len < longest + 8
    assert run.monitor.prompts and run.monitor.top_p == 0.5
    assert manifest.splits["held-out"].samples == 10
