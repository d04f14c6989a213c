"""Recipes: the paper's figures, and one sentence for each way to get one wrong."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from threading import Thread
from typing import get_args

import pytest

from tests.support.programs import run_program
from tests.support.serving import serving
from training.checkpoints.serve import site
from training.errors import BadInput, TrainingError
from training.recipe import RECIPES, RUNS, load_recipe, parse_recipe, recipe_names
from training.section import Section
from training.swarm.epoch.strategies.momentum import optimizer_of_averages, peer_momentum

DEMO = (RECIPES / "demo.toml").read_text(encoding="utf-8")
KEY = "A" * 43
MEMBERS = f'[membership]\nkey = "{KEY}"\nurl = "https://run.example/membership"\n'


def keys_of(section: type[Section], table: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        inner = [kind for kind in kinds if issubclass(kind, Section)]
        yield from keys_of(inner[0], f"{name}.") if inner else [table + name]


def test_a_recipe_has_few_keys():
    """To add one, remove another that no recipe needs, or that follows from the rest."""
    assert len({key for run in RUNS.values() for key in keys_of(run)}) <= 76


def test_the_2021_recipe_says_what_the_paper_says():
    run = load_recipe("dalle-2021")
    # arXiv:2207.03481, sections 3.1 and 3.3
    assert (run.model.hidden_size, run.model.num_layers, run.model.num_heads, run.model.head_dim) == (1024, 64, 16, 64)
    assert run.model.attention_cycle == ("row", "column", "row", "row")
    assert run.model.last_attention == "conv"
    assert run.model.reversible and run.model.rotary and run.model.tied_embeddings
    assert (run.codec.downsampling, run.codec.codebook_size) == (8, 8192)
    assert run.schedule.peak_learning_rate == 2.5e-3
    assert (run.schedule.warmup_epochs, run.schedule.total_epochs) == (3_125, 31_250)
    assert run.optimizer.name == "lamb8bit"
    assert run.swarm.compression_threshold == 2**16


def test_digest_changes_with_what_peers_must_agree_on_and_with_nothing_else():
    digest = parse_recipe(DEMO).digest
    assert parse_recipe(DEMO.replace('"runs/demo/shards"', '"https://example.org/shards"')).digest == digest
    rarer = re.sub(r"(?m)^checkpoint_every_epochs = \d+$", "checkpoint_every_epochs = 7", DEMO)
    assert rarer != DEMO
    assert parse_recipe(rarer).digest == digest  # only the monitor reads it
    patient = DEMO.replace("max_epochs_alone = 10", "max_epochs_alone = 3")
    assert patient != DEMO
    assert parse_recipe(patient).digest == digest
    assert parse_recipe(DEMO + MEMBERS).digest == digest  # a run that is attacked may be closed to strangers
    assert parse_recipe(DEMO.replace("hidden_size = 128", "hidden_size = 256")).digest != digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hidden_size = 128", "hidden_size = -1", "model.hidden_size"),
        ("hidden_size = 128", "", "model.hidden_size"),
        ("hidden_size = 128", "hidden_size = 128\nwidth = 3", "model.width"),
        ('attention_cycle = ["row", "column", "row", "row"]', "attention_cycle = []", "model.attention_cycle"),
        ("image_grid = 8", "image_grid = 9", "image_grid is 9"),
        ("codebook_size = 256", "codebook_size = 512", "codebook_size"),
        (
            "next_chunk_timeout_seconds = 5.0",
            "next_chunk_timeout_seconds = 15.0",
            "next_chunk_timeout_seconds is 15: a silent peer would not be given up",
        ),
        ('run_id = "demo"', 'run_id = "My run!"', "run_id"),
        ('run_id = "demo"', "run_id = demo", "TOML"),
        ("matchmaking_seconds = 1.5", "matchmaking_seconds = inf", "matchmaking_seconds"),
        ('aggregation = "mean"', 'aggregation = "median"', "swarm.aggregation"),
        ('name = "lamb8bit"', "betas = [0.9, 1.0]", "optimizer.betas.1"),
        ('"lamb8bit"', '"lion"', "optimizer.name"),
    ],
)
def test_a_wrong_recipe_is_refused_in_words(old, new, said):
    assert old in DEMO
    with pytest.raises(BadInput) as refused:
        parse_recipe(DEMO.replace(old, new, 1))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("a = " + "[" * 16_000, "nested more than"),
        ("seed = " + "9" * 5000, "is not valid TOML"),
        ("a" + ".a" * 500_000 + " = 1", "more than 16384 characters"),
        ("a" + ".a" * 8_000 + " = 1", "nested more than"),
        ("[[a" + ".a" * 8_000 + "]]", "nested more than"),
    ],
    ids=["lists", "number", "long key", "key", "table"],
)
def test_a_recipe_that_would_take_python_long_is_refused_soon(text, said):
    """tomllib takes half an hour for the long key."""
    began = time.process_time()
    with pytest.raises(BadInput, match=said):
        parse_recipe(text)
    assert time.process_time() - began < 4


@pytest.mark.parametrize(
    "line", [r'description = "\u001b[2J"', r'description = "\u202eevil"', r'"\u001b[2J" = 1', r'data = ["\u0007"]']
)
def test_no_text_of_a_recipe_commands_a_terminal(line):
    text = "\n".join(one for one in DEMO.splitlines() if not one.startswith("description"))
    with pytest.raises(BadInput) as refused:
        parse_recipe(f"{line}\n{text}")
    assert refused.value.args[0].isprintable()
    assert parse_recipe(f'description = "\U0001f468\u200d\U0001f469 \u0645\u06cc\u200c"\n{text}').description


def test_a_recipe_without_membership_is_open():
    assert parse_recipe(DEMO).membership.open and not parse_recipe(DEMO + MEMBERS).membership.open
    assert parse_recipe(DEMO + MEMBERS).membership.key == KEY


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (f'key = "{KEY}"', "", "needs both key and url"),
        ('url = "https://run.example/membership"', "", "needs both key and url"),
        (KEY, "A" * 42, "membership.key"),
        ("https://", "http://", "volunteers send credentials there"),
        ("https://run.example", "http://127.0.0.1.run.example", "volunteers send credentials there"),
        ("https://run.example/", "https://ada:secret@run.example/", "volunteers send credentials there"),
        ("https://run.example/membership", "https://[::1", "membership"),
        ("https://run.example/membership", "https://", "volunteers send credentials there"),
        ("https://run.example/membership", "https://run.example/?next=", "volunteers send credentials there"),
        ("https://run.example/membership", "file:///etc/passwd", "volunteers send credentials there"),
    ],
)
def test_a_membership_that_is_not_clear_or_not_safe_is_refused_in_words(old, new, said):
    with pytest.raises(BadInput) as refused:
        parse_recipe(DEMO + MEMBERS.replace(old, new, 1))
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "aggregation"),
    [
        (DEMO, "mean"),
        (DEMO.replace('aggregation = "mean"', ""), "mean"),
        (DEMO.replace('aggregation = "mean"', "") + MEMBERS, "mean"),
        (DEMO.replace('aggregation = "mean"', "") + MEMBERS + "unvouched = true\n", "centered-clip"),
    ],
)
def test_members_that_nobody_vouches_for_are_averaged_by_centered_clip_unless_the_recipe_chooses(text, aggregation):
    assert parse_recipe(text).swarm.aggregation == aggregation


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DEMO + MEMBERS + "unvouched = true\n", "membership.unvouched does not go with swarm.aggregation mean"),
        (DEMO + "[membership]\nunvouched = true\n", "needs both key and url"),
        (DEMO.replace('"mean"', '"centered-clip"').replace("synchronous", "diloco"), "were not tried with it"),
        (
            DEMO.replace('aggregation = "mean"', "").replace("synchronous", "diloco") + MEMBERS + "unvouched = true\n",
            "centered-clip does not go with mode diloco",
        ),
    ],
)
def test_a_run_that_members_whom_nobody_vouches_for_could_spoil_is_refused(text, said):
    with pytest.raises(BadInput) as refused:
        parse_recipe(text)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_membership_server_on_the_same_machine_needs_no_tls():
    for url in ("http://127.0.0.1:8001", "http://localhost:8001", "http://[::1]:8001"):
        parse_recipe(DEMO + MEMBERS.replace("https://run.example/membership", url))


def test_centered_clip_does_not_go_with_thin_matrices():
    clipped = DEMO.replace('aggregation = "mean"', 'aggregation = "centered-clip"')
    with pytest.raises(BadInput, match="whose thin matrices one peer can spoil"):
        parse_recipe(clipped.replace("powersgd_rank = 0", "powersgd_rank = 4"))


def test_with_centered_clip_momentum_moves_from_the_optimizer_to_the_peers():
    mean = parse_recipe(DEMO)
    clipped = parse_recipe(DEMO.replace('aggregation = "mean"', 'aggregation = "centered-clip"'))
    assert (peer_momentum(mean), optimizer_of_averages(mean)) == (0.0, mean.optimizer)
    assert peer_momentum(clipped) == clipped.optimizer.betas[0] == 0.9
    assert optimizer_of_averages(clipped).betas == (0.0, clipped.optimizer.betas[1])


@pytest.mark.programs
@pytest.mark.parametrize("command", ["bootstrap", "monitor", "join"])
def test_no_role_starts_a_run_that_nobody_can_join(tmp_path, command):
    """The rules hold where the recipe is read: by all roles, before anything is started."""
    (tmp_path / "run.toml").write_text(
        DEMO.replace("next_chunk_timeout_seconds = 5.0", "next_chunk_timeout_seconds = 99.0")
    )
    program = [sys.executable, "-m", "training", command, "--recipe", str(tmp_path / "run.toml")]
    peers = [] if command == "bootstrap" else ["--initial-peers", "/ip4/127.0.0.1/tcp/1/p2p/none"]
    done = run_program([*program, *peers])
    assert done.returncode == 2 and "next_chunk_timeout_seconds is 99: a silent peer" in done.stdout + done.stderr


@pytest.mark.parametrize("answer", [b"\xff\xfe is no text", None])
def test_an_address_without_a_recipe_is_refused_in_words(answer):
    """What it answers is no text, or no HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if answer is None:
                self.wfile.write(b"what?\r\n\r\n")
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(BadInput, match="Check address and network"):
            load_recipe(f"http://127.0.0.1:{server.server_port}/recipe.toml")


def test_a_monitor_that_starts_is_no_fault_of_the_recipes_address(tmp_path):
    app = site.create_app(tmp_path)  # what answers meanwhile
    with serving(app) as url, pytest.raises(TrainingError, match="the run's monitor is probably starting") as refusal:
        load_recipe(f"{url}/recipe.toml")
    assert not isinstance(refusal.value, BadInput) and refusal.value.cure == "Try again in a minute."


class Misleading(BaseHTTPRequestHandler):
    """What a hostile site may do instead of sending a recipe."""

    def do_GET(self):
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "ftp://127.0.0.1/recipe.toml")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while self.path == "/long":
                self.wfile.write(b"#" * 10_000)
            while True:
                self.wfile.write(b"#")
                time.sleep(0.1)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    "path, said",
    [
        ("long", "it has more than 16384 bytes"),
        ("slow", "it has not arrived within 0 s"),
        ("elsewhere", "which is less safe"),
    ],
)
def test_a_site_cannot_keep_who_asks_for_a_recipe_nor_send_them_elsewhere(monkeypatch, path, said):
    """Redirects from the Internet into a private network have their own tests, of what reads checkpoints."""
    monkeypatch.setattr("training.recipe.RECIPE_SECONDS", 0.3)
    with ThreadingHTTPServer(("127.0.0.1", 0), Misleading) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(BadInput, match=said):
            load_recipe(f"http://127.0.0.1:{server.server_port}/{path}")
        server.shutdown()


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(BadInput, match=", ".join(recipe_names())):
        load_recipe("nonesuch")
