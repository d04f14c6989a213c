"""Bootstrap and volunteers as the programs that people start, on a tiny model and tiny shards."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager

import psutil
import pytest

from tests.chaos.volunteer import Control
from tests.support.programs import Programs, are_gone, run_program, until
from tests.support.random_shards import SAMPLES, write_shards
from training.checkpoints.checkpoint import save_checkpoint
from training.checkpoints.folders import KEPT_FOLDER, checkpoint_epoch
from training.demo.children import read_events
from training.errors import BadInput, TrainingError
from training.model.transformer import build_model
from training.optim.build import build_optimizer
from training.optim.groups import parameter_groups
from training.optim.saved import optimizer_tensors
from training.processes.priority import LOW, SERVING
from training.recipe import RECIPES, load_recipe, parse_recipe
from training.swarm.node.dht import start_dht
from training.swarm.node.identity import Identity
from training.tasks.known import task_of
from training.volunteer.preparation import model_on_device

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]

RESUMED_EPOCH = 7


def tiny_recipe(**changes):
    """The demo's recipe with a model of some ten thousand parameters and short epochs."""
    text = (RECIPES / "demo.toml").read_text()
    for before, after in {
        "hidden_size = 128": "hidden_size = 32",
        "num_heads = 4": "num_heads = 1",
        "target_batch_size = 256": "target_batch_size = 120",
        "metrics_every_seconds = 3.0": "metrics_every_seconds = 1.0",
        # A demo that was run here has left other shards there, whose tokens a monitor would announce.
        'shards = "runs/demo/shards"': 'shards = "runs/nowhere/shards"',
        **changes,
    }.items():
        assert before in text
        text = text.replace(before, after)
    assert tomllib.loads(text)["model"]["hidden_size"] == 32
    return text


def test_weights_for_which_there_is_no_memory_are_one_sentence():
    run = parse_recipe(tiny_recipe())
    run = run.model_copy(update={"model": run.model.model_copy(update={"text_vocab_size": 10**13})})
    with pytest.raises(TrainingError, match="cpu has not enough memory for the model's weights"):
        model_on_device(task_of(run), "cpu")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Prepared shards of 64 samples with random codes."""
    return write_shards(tmp_path_factory.mktemp("shards"), load_recipe("demo"))


class Run:
    """A run's files and its bootstrap peer."""

    def __init__(self, folder, shards, programs):
        self.folder, self.shards, self.programs = folder, shards, programs
        self.recipe = folder / "recipe.toml"
        self.recipe.write_text(tiny_recipe())
        self.address, self.first, self.starts = "", None, 0

    def bootstrap(self):
        """Starts the run's first peer, or starts it again."""
        local = ("--host-maddrs", "/ip4/127.0.0.1/tcp/0")
        state = ("--state-dir", str(self.folder / "bootstrap"))
        self.first = self.start("bootstrap", "bootstrap", "--recipe", str(self.recipe), *state, *local)
        self.starts += 1
        self.address = self.event("bootstrap", "ready", number=self.starts)["addresses"][0]

    def start(self, name, *arguments, program=("-m", "training")):
        with (self.folder / f"{name}.log").open("w") as log:
            command = [sys.executable, *program, *arguments, "--log-json", self.folder / f"{name}.jsonl"]
            return self.programs.start(command, stdout=log, stderr=subprocess.STDOUT)

    def join(self, name, *arguments, recipe=None, address=None, **options):
        return self.start(
            name,
            *("join", "--recipe", str(recipe or self.recipe), "--initial-peers", address or self.address),
            *("--name", name, "--shards", str(self.shards), "--threads", "1", "--micro-batch-size", "4"),
            *("--device", "cpu", "--precision", "float32", "--verbose"),
            *("--state-dir", str(self.folder / name), "--host-maddrs", "/ip4/127.0.0.1/tcp/0", *arguments),
            **options,
        )

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def events(self, name, kind):
        path = self.folder / f"{name}.jsonl"
        return [event for event in read_events(path) if event["event"] == kind]

    def event(self, name, kind, number=1, **fields):
        """The event of that number among those with these fields, when it comes."""

        def found():
            of_this_kind = [event for event in self.events(name, kind) if fields.items() <= event.items()]
            return of_this_kind[number - 1 : number]

        return until(found, within=240, said=lambda: f"no {kind} of {name}:\n{self.log(name)}")[0]


@contextmanager
def begun(kind, folder, shards):
    """A run whose bootstrap peer runs; its programs end with it."""
    with Programs() as programs:
        run = kind(folder, shards, programs)
        run.bootstrap()
        yield run


@pytest.fixture(scope="module")
def run(tmp_path_factory, shards):
    with begun(Run, tmp_path_factory.mktemp("run"), shards) as run:
        yield run


def family_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def checkpoint_of(run):
    """A checkpoint of epoch 7 with moments that are not zero."""
    text = run.recipe.read_text()
    config = parse_recipe(text)
    model = build_model(config.model, seed=5)
    optimizer = build_optimizer(config.optimizer, parameter_groups(model, config.optimizer), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    return save_checkpoint(
        run.folder / "checkpoints",
        model=model,
        recipe_toml=text,
        epoch=RESUMED_EPOCH,
        metrics={},
        shards=str(run.shards),
        codec_digest="b" * 64,
        extra_tensors=optimizer_tensors(optimizer),
    )


def with_other_tokens(run):
    """The same shards, of another codec."""
    folder = run.folder / "other-shards"
    shutil.copytree(run.shards, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"codec_digest": "c" * 64}))
    return folder


def test_dry_run_checks_everything_and_trains_nothing(run):
    flags = ("--dry-run", "--precision", "bfloat16", "--checkpointing", "--device", "cpu")
    assert run.join("dry", *flags).wait(240) == 0, run.log("dry")
    assert "All checks passed" in run.log("dry") and run.events("dry", "epoch") == []
    chosen = {choice["name"]: choice for choice in run.event("dry", "chosen")["choices"]}
    assert chosen["micro-batch"]["value"] == "4 samples" and chosen["precision"]["value"] == "bfloat16"
    assert chosen["activations"]["value"] == "kept for 0 layers, recomputed for 5"
    for name, choice in chosen.items():
        assert f"{choice['value']}: {choice['reason']}." in run.log("dry")
        said = name in ("device", "precision", "micro-batch", "activations")
        assert choice["reason"].startswith("as you said") == said
    assert "an initial peer answers in" in run.log("dry")


def test_a_volunteer_keeps_its_port(run):
    addresses = []
    for number in (1, 2):
        volunteer = run.join("kept")
        addresses.append(run.event("kept", "ready", number)["addresses"])
        volunteer.kill()
        volunteer.wait()
    assert addresses[0] == addresses[1]


def test_a_device_that_is_not_there_is_refused(run):
    assert run.join("nowhere", "--device", "cuda:9").wait(240) == 2
    assert "finds no device 'cuda:9'" in run.log("nowhere") and "Traceback" not in run.log("nowhere")


def test_another_recipe_and_a_run_that_nobody_knows_are_refused(run):
    refused = {}
    for name, changes in {
        "unknown": {'run_id = "demo"': 'run_id = "unknown"'},  # which is asked for again and again before it is said
        "other": {"warmup_epochs = 25": "warmup_epochs = 26"},
    }.items():
        recipe = run.folder / f"{name}.toml"
        recipe.write_text(tiny_recipe(**changes))
        refused[name] = run.join(name, recipe=recipe)
    assert [process.wait(240) for process in refused.values()] == [3, 3]
    assert "no run named 'unknown'" in run.log("unknown")
    assert "trains another recipe" in run.log("other") and "Traceback" not in run.log("other")


ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


def test_initial_peers_that_do_not_answer_are_one_sentence(run):
    assert run.join("lost", address=ADDRESS).wait(240) == 1
    _, began, *lines = [line for line in run.log("lost").splitlines() if line]
    assert began.startswith("Joining demo") and len(lines) == 1 and "No initial peer answers" in lines[0]


@pytest.mark.parametrize("ahead, words", [(300.0, "5 min ahead of"), (-300.0, "5 min behind")])
def test_a_wrong_clock_is_one_sentence(run, ahead, words):
    name = f"wrong-{ahead}"
    control = run.folder / f"{name}.control"
    Control(control).set(clock_seconds=ahead)
    program = ("-m", "tests.chaos.volunteer", control, run.folder / f"{name}.notes")
    assert run.join(name, program=program).wait(240) == 1
    _, began, *lines = [line for line in run.log(name).splitlines() if line]
    assert began.startswith("Joining demo") and len(lines) == 1
    assert f"The clock of this machine is {words} the clocks of the run's peers" in lines[0]
    assert "Set the clock" in lines[0]


@pytest.mark.parametrize(
    "address, words",
    [
        ("/ip4/127.0.0.1/tcp/9", "lacks the peer's id"),
        ("127.0.0.1:9", "is not a network address"),
        (ADDRESS.replace("/p2p", " /p2p"), "is not a network address"),
        (f"{ADDRESS} {ADDRESS}", "is not a network address"),
        (f"{ADDRESS}\n", "is not a network address"),
        ("", "is not a network address"),
    ],
)
def test_initial_peers_that_are_no_addresses_start_nothing(tmp_path, address, words):
    with pytest.raises(BadInput, match=words):
        start_dht(load_recipe("demo"), Identity(tmp_path), initial_peers=[ADDRESS, address])


def test_volunteers_resume_join_die_and_leave(run):
    """One resumes from a checkpoint, another gets its state from it and is killed, the first one goes on and leaves.

    Before the second one comes, the bootstrap peer, all that it knows of the run, is killed and started again. A third
    one, whose shards are of another codec, is not let in.
    """
    checkpoint_of(run)
    ada = run.join("ada", "--resume", str(run.folder / "checkpoints"))
    joined = run.event("ada", "joined")
    assert (joined["epoch"], joined["state"]) == (RESUMED_EPOCH, "the checkpoint epoch-000007")
    assert run.event("ada", "epoch")["epoch"] == RESUMED_EPOCH + 1
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert psutil.Process(ada.pid).nice() == max(LOW, usual)
    of_others = {process.nice() for process in family_of(ada)}
    assert min(of_others) == max(SERVING, usual) and of_others <= {min(of_others), max(LOW, usual)}

    address = run.address
    run.first.kill()
    run.bootstrap()
    assert run.address == address

    grace = run.join("grace")
    eve = run.join("eve", "--shards", str(with_other_tokens(run)))
    assert run.event("grace", "joined")["epoch"] >= RESUMED_EPOCH
    assert run.event("grace", "joined")["state"] == "the state of another peer"
    link = run.event("grace", "joined")["link"]
    assert link["download_bytes"] > 10_000 and link["download_seconds"] > 0 and len(link["answer_seconds"]) == 1
    assert link["reach"] == "direct", "in a network of their own no server tells, and nobody is called unreachable"
    together = run.event("grace", "epoch", number=2, senders=2)  # epochs of a second may miss each other
    assert together["epoch"] > RESUMED_EPOCH and 0 < together["own_share"] < 1
    assert together["bytes_sent"] > 0 and together["bytes_received"] > 0 and together["loss"] > 0

    family = family_of(grace)
    assert any(process.name().startswith("p2pd") for process in family)
    grace.kill()
    grace.wait()
    assert are_gone(family, within=3)

    assert eve.wait(240) == 3
    assert re.search(r"tokens of .*other-shards .\w{16}. are not those .* Use the shards", run.log("eve"))
    assert run.events("eve", "joined") == [] and "Traceback" not in run.log("eve")

    before = len(run.events("ada", "epoch"))
    run.event("ada", "epoch", number=before + 3)

    family = family_of(ada)
    ada.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert ada.wait(10) == 0
    assert time.monotonic() - started < 6
    assert are_gone(family, within=1)
    assert run.events("ada", "stopped")
    contribution = json.loads((run.folder / "ada" / "contribution.json").read_text())
    assert contribution["samples"] == sum(one["samples"] for one in run.events("ada", "epoch") if not one["missed"])
    _, passes, position, _ = (run.folder / "ada" / "place").read_text().split()
    assert SAMPLES * int(passes) + int(position) >= contribution["samples"] > 0  # some may have been dropped
    assert {"data_waiting_seconds", "data_skipped_samples", "data_repeated_samples"} <= run.event("ada", "epoch").keys()


@pytest.fixture
def own_run(tmp_path, shards):
    """A run in which nobody has trained yet."""
    with begun(Run, tmp_path, shards) as run:
        yield run


class UnevenRun(Run):
    """A run whose epoch has as many samples as a micro-batch of one of its peers."""

    target = 48

    def __init__(self, folder, shards, programs):
        super().__init__(folder, shards, programs)
        self.recipe.write_text(tiny_recipe(**{"target_batch_size = 256": f"target_batch_size = {self.target}"}))


def test_updates_of_uneven_micro_batches_beside_six_busy_programs_are_whole_or_say_why_not(tmp_path, shards, programs):
    for _ in range(6):  # of the volunteers' priority, so that these get their share of the processor
        programs.start([sys.executable, "-c", f"import os; os.nice({LOW})\nwhile True: pass"])
    with begun(UnevenRun, tmp_path, shards) as run:
        for name, size in (("ada", 48), ("grace", 4)):
            run.join(name, "--micro-batch-size", str(size))
        for name in ("ada", "grace"):
            run.event(name, "epoch", number=3)
            small = [event for event in run.events(name, "epoch") if event["update_samples"] < 0.9 * run.target]
            assert all(f"Epoch {event['epoch']}: " in run.log(name) for event in small), run.log(name)


def test_the_bootstrap_peer_keeps_its_address(run, tmp_path):
    arguments = ("bootstrap", "--recipe", str(run.recipe), "--host-maddrs", "/ip4/127.0.0.1/tcp/0")
    first = run.start("first", *arguments, "--state-dir", str(tmp_path))
    address = run.event("first", "ready")["addresses"][0]
    second = run.start("second", *arguments, "--state-dir", str(tmp_path))
    assert second.wait(240) == 2 and "Another process is using" in run.log("second")
    first.send_signal(signal.SIGTERM)
    assert first.wait(10) == 0
    run.start("third", *arguments, "--state-dir", str(tmp_path))
    assert run.event("third", "ready")["addresses"][0] == address


@pytest.fixture
def fresh_run(tmp_path, shards):
    with begun(Run, tmp_path, shards) as run:
        yield run


def tell(run, name, word):
    """What a command to a running volunteer prints."""
    command = [sys.executable, "-m", "training", "volunteer", word, "--state-dir", str(run.folder / name)]
    done = run_program(command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_volunteer_does_what_it_is_told_from_another_terminal(fresh_run):
    iris = fresh_run.join("iris", "--max-upload", "50")
    fresh_run.event("iris", "epoch")
    assert tell(fresh_run, "iris", "status").startswith("iris: Epoch ")
    assert (
        tell(fresh_run, "iris", "pause") == "iris: Paused: as you wish, until you press p again or tell it to resume.\n"
    )
    assert fresh_run.event("iris", "paused")["reason"].startswith("as you wish")
    tell(fresh_run, "iris", "resume")
    fresh_run.event("iris", "resumed")
    fresh_run.event("iris", "epoch", number=len(fresh_run.events("iris", "epoch")) + 1)
    tell(fresh_run, "iris", "finish")
    assert iris.wait(120) == 0, fresh_run.log("iris")
    last = fresh_run.events("iris", "epoch")[-1]
    assert fresh_run.event("iris", "stopped")["epoch"] == last["epoch"]
    assert not (fresh_run.folder / "iris" / "command").exists()
    folder = fresh_run.folder / "iris"
    gone = run_program([sys.executable, "-m", "training", "volunteer", "status", "--state-dir", folder])
    assert gone.returncode == 2 and "No volunteer of yours runs" in gone.stderr


def test_a_volunteer_that_is_ended_with_all_its_processes_keeps_what_it_has(fresh_run):
    """A shutdown of the machine sends SIGTERM to all of them at once."""
    sam = fresh_run.join("sam")
    fresh_run.event("sam", "epoch", number=2)
    family = family_of(sam)
    for process in (psutil.Process(sam.pid), *family):
        process.terminate()
    assert sam.wait(30) == 0, fresh_run.log("sam")
    assert are_gone(family, within=1) and "Traceback" not in fresh_run.log("sam")
    epoch = fresh_run.event("sam", "stopped")["epoch"]
    kept = max(checkpoint_epoch(path) for path in (fresh_run.folder / "sam" / KEPT_FOLDER).glob("epoch-*"))
    assert kept == epoch >= fresh_run.events("sam", "epoch")[-1]["epoch"] > 0
    assert (fresh_run.folder / "sam" / "place").exists()
    again = fresh_run.join("sam")
    assert fresh_run.event("sam", "joined", number=2)["epoch"] >= epoch
    again.send_signal(signal.SIGTERM)
    assert again.wait(30) == 0
