"""The calculator page: in the HTML, in the browser's Python and on CPython stand the same digits."""

from __future__ import annotations

import csv
import json
import re
import sys
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import expect

from builder.assets.exercise import exercise_setups
from builder.calculator.form import DEFAULT, DEFAULT_GPU
from builder.calculator.measured_errors import measured_errors
from calculator.browser import advise, answer, generate, gpus, read_config, sweep
from calculator.choose.devices import DEVICES
from calculator.models.architectures import PRESETS
from calculator.units import show_bytes
from tests.site.live.test_dashboard_page import live_run
from tests.site.pages.test_every_page import ROOT, violations
from tests.support.programs import run_program, until
from training.recipe import load_recipe

pytestmark = pytest.mark.browser

ASK_ALL = """async ([worker, runtime, asked]) => {
    const folder = new URL(runtime.folder, location.href).href;
    const python = new Worker(worker, { type: "module", name: JSON.stringify({ ...runtime, folder }) });
    const answers = [];
    for (const [ask, request] of asked) {
        const next = new Promise((resolve) => (python.onmessage = ({ data }) => data.started || resolve(data)));
        python.postMessage({ id: 1, ask, input: JSON.stringify(request) });
        const data = await next;
        answers.push(data.failed ? { failed: data.failed } : JSON.parse(data.answer));
    }
    python.terminate();
    return answers;
}"""

WATCH_WORKER = """() => {
    const post = Worker.prototype.postMessage;
    window.asked = []; // by the reader
    window.ahead = null; // what Python has still to work out
    Worker.prototype.postMessage = function (data) {
        if (!this.watched) this.addEventListener("message", ({ data }) => {
            for (const [input] of data.ahead ?? []) window.ahead?.delete(input);
        });
        this.watched = true;
        if (data.ask === "answer") window.asked.push(data.input);
        if (data.ahead) window.ahead = new Set(data.ahead);
        return post.call(this, data);
    };
}"""

GPT2 = {"model_type": "gpt2", "n_embd": 320, "n_layer": 4, "n_head": 5, "vocab_size": 999, "torch_dtype": "float32"}


def on_cpython(setup: object, gpu: object = DEFAULT_GPU) -> dict:
    """What the page shows for a setup, computed here."""
    return json.loads(answer(json.dumps({"setup": setup, "gpu": gpu})))


def total(page):
    """The big number."""
    return page.locator("[data-slot=total]")


def message(page):
    """The one live region."""
    return page.get_by_role("status")


def choose_model(page, name: str) -> None:
    """As a reader does: types a part of the name and takes the first proposal."""
    page.get_by_role("combobox", name="Model").fill(name)
    page.keyboard.press("Enter")


def shows(page, setup: dict, gpu: object = DEFAULT_GPU) -> None:
    """Waits until the page shows a setup: total, every part, verdict and command."""
    texts = on_cpython(setup, gpu)["texts"]
    expect(page.locator("[data-slot=command]")).to_have_text(texts["command"])
    for name in ("total", "verdict", "gpu-weights", "gpu-activations", "gpu-temporary", "host-total", "plain-total"):
        expect(page.locator(f"[data-slot={name}]")).to_have_text(texts[name])


def comes_to(page, query: dict[str, str]) -> None:
    """Waits until the address has this query: it follows what is shown."""
    page.wait_for_url(lambda url: dict(parse_qsl(urlsplit(url).query)) == query)


@pytest.mark.parametrize(
    "count, shown",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1.0 KiB"),
        (1 << 30, "1.00 GiB"),
        (129 << 23, "1.01 GiB"),
        (5 << 40, "5.00 TiB"),
    ],
)
def test_bytes_are_rounded_half_up(count, shown):
    assert show_bytes(count) == shown


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "Paste the text"),
        ('{"model_type": "gpt2",', "not JSON: .* line 1, column"),
        ("[1, 2]", "an object in braces"),
        ('{"model_type": "olmo"}', "'olmo' is not supported"),
        ('{"model_type": "gpt2", "n_embd": 1000000000000}', "n_embd in config is a whole number"),
        ('{"model_type": "gpt2", "n_layer": 9999999}', "n_layer in config is a whole number from 1 to 10000"),
        ('{"model_type": "gpt2", "n_layer": 9999}', "9999 layers"),
        ('{"model_type": "gpt2", "n_embd": -3}', "n_embd in config is a whole number"),
        ('{"a":' * 100_000, "too long"),
        ("[" * 100_000, "nested too deeply|not JSON"),
    ],
)
def test_bad_configs_get_a_sentence(text, said):
    refused = json.loads(read_config(json.dumps({"text": text})))["error"]
    assert re.search(said, refused), refused
    assert len(refused) < 300


def test_of_a_config_only_what_counts_is_kept():
    kept = json.loads(json.loads(read_config(json.dumps({"text": json.dumps(GPT2)})))["config"])
    assert kept == {key: value for key, value in GPT2.items() if key != "torch_dtype"}
    assert on_cpython({"config": kept})["texts"] == on_cpython({"config": GPT2})["texts"] | {
        "command": on_cpython({"config": kept})["texts"]["command"]
    }


def test_default_answer_stands_in_the_html_without_scripts(open_page):
    page = open_page("calculator/", scripts=False)
    expected = on_cpython(DEFAULT)
    for name, text in expected["texts"].items():
        expect(page.locator(f"[data-slot='{name}']")).to_have_text(text)
    assert page.locator("[data-bar]").first.locator("span").count() == len(expected["bars"][0])
    page.locator("summary", has_text="Weights").click()
    expect(page.locator("[data-slot=why-gpu-weights]")).to_be_visible()
    expect(page.get_by_role("button", name="Save as JSON")).to_be_hidden()


def test_every_model_and_choice_gives_the_same_in_the_browser(open_page, server):
    """Guards the snapshot and the trimmed runtime too: an import that they lack would end as `failed`."""
    hostile = [("micro_batch_size", -1), ("sequence_length", 10**15), ("optimizer", "magic"), ("model", 3), ("x", None)]
    setups = [*exercise_setups(), *({**DEFAULT, key: value} for key, value in hostile)]
    setups += [{**DEFAULT, "micro_batch_size": 7, "sequence_length": 333}, {"config": GPT2}, "no object", []]
    asked = [("answer", {"setup": setup, "gpu": DEFAULT_GPU}) for setup in setups]
    asked += [("answer", {"setup": DEFAULT, "gpu": gpu}) for gpu in ("h200", "apple-16gb", "", "<b>", 7)]
    asked += [("sweep", {"setup": DEFAULT, "along": along}) for along in ("sequence_length", "shared_groups", "x")]
    asked += [("advise", {"setup": {**DEFAULT, "micro_batch_size": 20}, "gpu": "t4"})]
    here = {"answer": answer, "sweep": sweep, "advise": advise}
    page = open_page("calculator/")
    runtime = json.loads(page.locator("[data-runtime]").get_attribute("data-runtime"))
    worker = server.url + "javascripts/python/worker.mjs"
    for way in (runtime, {**runtime, "snapshot": "sha256-AAAA"}):
        if way is not runtime:  # the library's way: each model, and what is refused
            asked = [case for case in asked if case[0] != "answer" or len(case[1]["setup"]) == 1]
        answers = page.evaluate(ASK_ALL, [worker, way, asked])
        for (ask, request), computed in zip(asked, answers, strict=True):
            assert computed == json.loads(here[ask](json.dumps(request))), request
    page.complaints[:] = [said for said in page.complaints if "integrity" not in said and "digest" not in said]


def test_nothing_is_fetched_before_the_reader_shows_interest(open_page, server):
    page = open_page("calculator/")
    page.wait_for_load_state("networkidle")
    assert not [path for path in server.requests if path.startswith(("/runtime/", "/vendor/"))]
    page.get_by_label("Micro-batch").first.click()
    expect(page.get_by_text("Computed in your browser")).to_be_visible()
    shows(page, DEFAULT)
    fetched = {path.rsplit("/", 1)[1] for path in server.requests if path.startswith("/runtime/")}
    assert fetched == {"pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "snapshot.wasm"}
    assert not [path for path in server.requests if path.startswith("/vendor/")]


def test_a_setup_in_own_words(open_page):
    page = open_page("calculator/")
    words = page.get_by_role("searchbox", name="In your own words")
    words.fill("llama 8b lora 24 gb, quickly")
    words.press("Enter")
    expect(page.locator("[data-slot=search-said]")).to_have_text(
        "Understood: llama-3.1-8b, LoRA of rank 16, GPU cuda-24gb. Not understood: quickly. Not named, so as this page "
        "begins: micro-batch of 1, 4\u202f096 tokens, AdamW, 8-bit, checkpointing."
    )
    shows(page, {**DEFAULT, "model": "llama-3.1-8b", "lora_rank": 16, "base_bits": 16}, "cuda-24gb")
    comes_to(page, {"model": "llama-3.1-8b", "gpu": "cuda-24gb", "lora_rank": "16", "base_bits": "16"})
    words.fill("the cat")
    page.get_by_role("button", name="Show it").click()
    expect(message(page)).to_contain_text("The nearest models to 'the cat' are")
    expect(page.locator("[data-slot=standing]")).to_be_hidden()
    expect(page.locator("[data-slot=search-said]")).to_be_empty()
    expect(words).to_be_focused()
    assert words.get_attribute("aria-invalid") == "true"
    words.fill("gpt2 t4")
    words.press("Enter")
    expect(message(page)).to_be_empty()
    shows(page, {**DEFAULT, "model": "gpt2", "precision": "amp-fp16"})
    expect(page.locator("[data-slot=standing]")).to_be_visible()
    assert words.get_attribute("aria-invalid") is None
    page.go_back()
    shows(page, {**DEFAULT, "model": "llama-3.1-8b", "lora_rank": 16, "base_bits": 16}, "cuda-24gb")


def test_a_question_about_generating_opens_its_answer_filled_in(open_page):
    page = open_page("calculator/")
    words = page.get_by_role("searchbox", name="Ask in your own words")
    words.fill("gemma 3 27b inference on 24gb, 16k context")
    words.press("Enter")
    expect(page.locator("[data-slot=search-answer]")).to_contain_text("With weights in 4 bits (NF4) it fits")
    expect(page.get_by_label("Tokens of each, prompt and answer")).to_have_value("16384")
    asked = {"setup": {"model": "gemma-3-27b"}, "gpu": "cuda-24gb", "length": "16384"}
    expected = json.loads(generate(json.dumps(asked)))
    expect(page.get_by_text(expected["note"])).to_be_visible()
    rows = page.get_by_role("region", name="GPUs that generate text, table").locator("tbody tr")
    expect(rows.first.locator("td").first).to_have_text("fits")
    expect(page.get_by_role("button", name="CUDA card with 24 GB")).to_be_visible()
    for hidden in (".total-bar", ".total", "[data-slot=standing]", ".bars", ".advice", ".tables", ".step"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.get_by_text("Generating text with this model")).to_have_count(1)
    assert violations(page) == []
    comes_to(page, {"model": "gemma-3-27b", "gpu": "cuda-24gb"})
    page.get_by_label("GPU to fit").select_option("rtx-3090")
    shows(page, {**DEFAULT, "model": "gemma-3-27b"}, "rtx-3090")
    expect(page.locator("[data-slot=standing]")).to_be_visible()


def test_a_question_about_models_opens_their_table(open_page):
    page = open_page("calculator/", width=360)
    words = page.get_by_role("searchbox", name="Ask in your own words")
    words.fill("which models fit my 24 GB?")
    words.press("Enter")
    rows = page.get_by_role("region", name="Models, table").locator("tbody tr")
    expect(rows).to_have_count(len(PRESETS))
    expect(page.locator("[data-slot=search-answer]")).to_contain_text("QLoRA: qwen3-14b")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert violations(page) == []
    page.get_by_role("button", name="qwen3-14b").click()
    shows(page, {**DEFAULT, "model": "qwen3-14b"}, "cuda-24gb")


TEXTS = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"


def test_generating_text_on_each_gpu(open_page):
    page = open_page("calculator/?model=llama-3.1-8b")
    page.get_by_text("Generating text with this model").click()
    table = page.get_by_role("region", name="GPUs that generate text, table")
    rows = table.locator("tbody tr")
    expect(rows).to_have_count(len(DEVICES))
    page.get_by_label("Sequences at once").fill("4")
    page.get_by_label("Tokens of each, prompt and answer").fill("8192")
    page.get_by_label("Weights", exact=True).select_option("nf4")
    fields = {"batch": "4", "length": "8192", "weights": "nf4", "cache": "bf16"}
    expected = json.loads(generate(json.dumps({"setup": {"model": "llama-3.1-8b"}, **fields})))
    expect(page.get_by_text(expected["note"])).to_be_visible()
    columns = ["title", "standing", "left", "context", "batch"]
    assert rows.evaluate_all(TEXTS) == [[row[column] for column in columns] for row in expected["rows"]]
    assert violations(page) == []
    page.get_by_role("combobox", name="Model").fill("bert-base")
    page.get_by_role("combobox", name="Model").press("Enter")
    expect(page.get_by_text("does not generate text token by token")).to_be_visible()
    expect(table).to_be_hidden()


def test_the_gpus_that_a_setup_fits(open_page):
    page = open_page("calculator/")
    page.get_by_text("Which GPU do I need?").click()
    rows = page.locator("[data-slot=gpus] tbody tr")
    expect(rows).to_have_count(len(DEVICES))
    setup = {**DEFAULT, "micro_batch_size": 8}
    page.get_by_label("Micro-batch").first.fill("8")
    expected = json.loads(gpus(json.dumps({"setup": setup})))["rows"]
    assert {row["standing"] for row in expected} >= {"fits", "does not fit"}
    columns = ["title", "standing", "left", "speed", "time", "cost"]
    texts = [[row[column] for column in columns] for row in expected]
    expect(rows.nth(0).locator("td").nth(1)).to_have_text(texts[0][2])
    assert rows.evaluate_all(TEXTS) == texts
    assert violations(page) == []
    page.get_by_label("Tokens to train on, in billions").fill("15")
    page.get_by_label("Price of one GPU for an hour").fill("0.4")
    priced = json.loads(gpus(json.dumps({"setup": setup, "billions": "15", "price": "0.4"})))["rows"]
    expect(rows.last.locator("td").last).to_have_text(priced[-1]["cost"])
    assert rows.evaluate_all(TEXTS) == [[row[column] for column in columns] for row in priced]
    page.get_by_label("Price of one GPU for an hour").fill("dear")
    expect(page.get_by_text("The price of one GPU for an hour must be a number above 0")).to_be_visible()
    page.get_by_label("Price of one GPU for an hour").fill("")
    page.get_by_role("button", name="A100, 80 GB").click()
    shows(page, setup, "a100-80gb")


def test_in_a_frame_the_page_is_the_calculator_alone(open_page):
    page = open_page("calculator/?embed=1&model=gpt2")
    shows(page, {**DEFAULT, "model": "gpt2"})
    for hidden in (".md-header", ".md-footer", ".lead"):
        expect(page.locator(hidden).first).to_be_hidden()
    page.get_by_label("Micro-batch").first.fill("3")
    comes_to(page, {"embed": "1", "model": "gpt2", "micro_batch_size": "3"})
    assert violations(page) == []


def test_every_change_is_in_the_address_and_the_history(open_page):
    page = open_page("calculator/")
    choose_model(page, "gpt2")
    first = {**DEFAULT, "model": "gpt2"}
    shows(page, first)
    page.get_by_label("Micro-batch").first.press("End")
    page.get_by_label("Micro-batch").first.press_sequentially("6")
    second = {**first, "micro_batch_size": 16}
    shows(page, second)
    page.get_by_label("GPU to fit").select_option("rtx-2060")
    page.get_by_label("Offload the optimizer").check()
    third = {**second, "offload_optimizer": True}
    shows(page, third, "rtx-2060")
    comes_to(page, {"model": "gpt2", "micro_batch_size": "16", "gpu": "rtx-2060", "offload_optimizer": "true"})
    page.go_back()
    shows(page, second, "rtx-2060")
    page.go_back()
    shows(page, second)
    page.go_back()
    shows(page, first)
    expect(page.get_by_label("Micro-batch").first).to_have_value("1")
    page.go_forward()
    page.go_forward()
    page.go_forward()
    shows(page, third, "rtx-2060")
    address = page.url
    page.reload()
    shows(page, third, "rtx-2060")
    page.get_by_role("button", name="Copy a link").click()
    expect(page.get_by_role("button", name="Link copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == address
    page.get_by_role("button", name="Start over").click()
    shows(page, DEFAULT)
    comes_to(page, {})


def test_what_is_one_change_away_is_there_before_it_is_asked(open_page):
    page = open_page("calculator/")
    page.evaluate(WATCH_WORKER)

    def works_ahead() -> None:
        page.wait_for_function("() => window.ahead && !window.ahead.size")
        page.evaluate("window.ahead = null")

    page.get_by_label("Micro-batch").first.fill("2")
    shows(page, {**DEFAULT, "micro_batch_size": 2})
    works_ahead()
    asked = page.evaluate("window.asked.length")
    page.get_by_label("Offload the optimizer").check()
    shows(page, {**DEFAULT, "micro_batch_size": 2, "offload_optimizer": True})
    works_ahead()
    page.get_by_label("GPU to fit").select_option("rtx-3090")
    shows(page, {**DEFAULT, "micro_batch_size": 2, "offload_optimizer": True}, "rtx-3090")
    assert page.evaluate("window.asked.length") == asked > 0
    page.get_by_label("Micro-batch").first.fill("777")
    shows(page, {**DEFAULT, "micro_batch_size": 777, "offload_optimizer": True}, "rtx-3090")
    assert page.evaluate("window.asked.length") > asked


def test_every_number_opens_its_formula_its_source_and_its_measured_error(open_page):
    page = open_page("calculator/?offload_optimizer=true&delta_rule=true")
    shows(page, {**DEFAULT, "offload_optimizer": True, "delta_rule": True})
    opened = page.locator(".why")
    tables = page.locator(".tables")
    assert opened.count() == tables.locator("tbody th, tfoot th").count() == 15
    for details in opened.all():
        details.locator("summary").click()
        formula, measured = details.locator("p").all_inner_texts()
        assert "Source" in formula, formula
        assert re.match(
            r"Measured error: (none|at most [\d.]+ %) in |Measured only as a part of |Not measured: ", measured
        ), measured
    whys = {place: text for place, text in measured_errors().items() if text.startswith("Not measured:")}
    assert set(whys) == {"overhead", "usable", "host-activations", "host-delta_rule", "transfer"}
    steps = json.loads((ROOT / "benchmarks" / "memory" / "steps" / "reference.json").read_text())
    assert not any(step["setup"].get("delta_rule") for kind in steps.values() for step in kind), (
        "the delta rule is measured by now: say so"
    )


def test_measured_errors_are_those_recorded():
    def worst(name: str, metric: str) -> float:
        rows = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["results"]
        found = [row.get("error_percent", row["ours"]) for row in rows if row["metric"].startswith(metric)]
        return max(map(abs, found))

    said = measured_errors()
    for place, metric in (("gpu-total", "peak on the GPU: worst"), ("gpu-weights", "parameter count: worst")):
        error = worst("memory_accuracy", metric)
        assert ("none in" in said[place]) == (error == 0)
    assert f"at most {worst('memory_on_host', 'host memory'):.2g} % off" in said["host-total"]


def test_host_memory_is_a_sentence_until_something_is_on_the_host(open_page):
    page = open_page("calculator/")
    expect(page.get_by_text("Only the program itself")).to_be_visible()
    expect(page.locator("[data-slot=on-host]")).to_be_hidden()
    page.get_by_label("Offload the optimizer").check()
    expect(page.locator("[data-slot=on-host]")).to_be_visible()
    expect(page.get_by_text("Only the program itself")).to_be_hidden()


def test_what_has_the_focus_is_not_under_the_bars(open_page):
    """Backwards through the page, where the browser scrolls just so far that the focus comes into sight."""
    page = open_page("calculator/?micro_batch_size=2", width=360)
    expect(page.get_by_text("Computed in your browser")).to_be_visible()
    page.get_by_role("link", name="How to join a run").focus()
    hidden = """() => {
        const element = document.activeElement;
        const { left, top, width, height } = element.getBoundingClientRect();
        const above = document.elementFromPoint(left + Math.min(width, 20) / 2, top + height / 2);
        return !element.closest(".calculator") || above?.closest(".total-bar, .md-header") === null
            ? null : element.outerHTML.slice(0, 120);
    }"""
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        assert page.evaluate(hidden) is None
        if page.evaluate("document.activeElement.name === 'model'"):
            return
    pytest.fail("Shift+Tab never reached the model")


def test_models_take_only_what_applies_to_them(open_page):
    page = open_page("calculator/")
    for model in ("bert-base", "t5-small", "gpt3-175b", "gpt-j-6b", "dalle-12b", "dalle-2021"):
        choose_model(page, model)
        setup = {**DEFAULT, "model": model}
        if model == "dalle-2021":
            del setup["checkpointing"]
        shows(page, setup)
        expect(page.locator("[data-part=calculator]")).to_have_attribute("data-state", "shown")
        expect(page.get_by_label("Target length")).to_be_visible(visible=model == "t5-small")
    expect(page.get_by_label("Gradient checkpointing")).to_be_disabled()
    expect(page.get_by_label("Gradient checkpointing")).to_have_accessible_description(re.compile("nothing is left"))
    page.get_by_text("More choices").click()
    page.get_by_label("Reversible layers").select_option("false")
    expect(page.get_by_label("Gradient checkpointing")).to_be_enabled()
    page.get_by_label("Offload the optimizer").check()
    page.get_by_label("Delta rule", exact=True).check()
    shows(page, {**DEFAULT, "model": "dalle-2021", "reversible": False, "offload_optimizer": True, "delta_rule": True})
    expect(page.locator("[data-slot=command]")).to_contain_text("--no-reversible")
    assert violations(page) == []


def test_gpus_compute_a_sample_together(open_page):
    """Tensor parallelism; what it is not counted with is said in the answer's place."""
    page = open_page("calculator/")
    choose_model(page, "llama-3.1-8b")
    expect(page.get_by_label("Divided among GPUs")).to_be_hidden()
    page.get_by_label("GPUs", exact=True).fill("4")
    page.get_by_label("Optimizer", exact=True).select_option("adamw")
    page.get_by_label("Divided among GPUs").select_option("tensor-sequence")
    expect(page.locator("[data-part=calculator]")).to_have_attribute("data-state", "refused")
    expect(page.get_by_text("Tensor parallelism is counted without autocast")).to_be_visible()
    page.get_by_text("More choices").click()
    page.get_by_label("Precision", exact=True).select_option("bf16")
    setup = {"model": "llama-3.1-8b", "gpus": 4, "optimizer": "adamw", "sharding": "tensor-sequence"}
    shows(page, {**DEFAULT, **setup, "precision": "bf16"})
    expect(page.locator("[data-slot=command]")).to_contain_text("--sharding tensor-sequence")
    expect(page.get_by_text("cannot divide")).to_have_count(0)
    assert violations(page) == []


def test_a_model_is_frozen_beside_adapters(open_page):
    page = open_page("calculator/?model=dalle-2021")
    expect(page.get_by_label("LoRA, rank")).to_be_hidden()
    choose_model(page, "llama-3.2-1b")
    expect(page.get_by_label("Frozen weights")).to_be_hidden()
    page.get_by_label("LoRA, rank").fill("16")
    page.get_by_label("Frozen weights").select_option("4")
    shows(page, {**DEFAULT, "model": "llama-3.2-1b", "lora_rank": 16, "base_bits": 4})
    expect(page.locator("[data-slot=command]")).to_contain_text("--lora-rank 16 --base-bits 4")
    choose_model(page, "dalle-2021")
    expect(page.get_by_label("LoRA, rank")).to_be_hidden()


@pytest.mark.parametrize(
    "query, said",
    [
        ("micro_batch_size=1e999&sequence_length=-5", "“Micro-batch” is"),
        (
            "model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&pin=%3Cscript%3Ealert(1)%3C/script%3E",
            "The nearest to the model",
        ),
        ("config=%7B%22model_type%22:%22gpt2%22,%22n_layer%22:9999%7D", "9999 layers"),
        ("micro_batch_size=999999999999999999999999", "“Micro-batch” is a whole number"),
        ("model=constructor", "The nearest to the model"),
        ("model=__proto__&pin=model%3DtoString", "The nearest to the model"),
        ("micro_batch_size=-7&precision=javascript:alert(1)", "“Precision” is one of"),
        ("dropout=many&gpu=voodoo2", "“Dropout” is empty or a number"),
        ("delta_rule=true&offload_optimizer=true&pcie_generation=9", "“Bus to the host” is one of"),
        ("gpu=%3Cscript%3Ealert(1)%3C/script%3E", "“GPU to fit” is one of those in its list, not"),
    ],
)
def test_hostile_addresses_get_a_sentence(open_page, query, said):
    """No script of theirs runs: a dialog would be a complaint of the page."""
    page = open_page(f"calculator/?{query}")
    expect(page.locator("[data-part=calculator]")).to_have_attribute("data-state", "refused")
    expect(message(page)).to_contain_text(said)
    assert not page.locator("img[src=x]").count()


def test_a_card_that_is_not_listed_is_told_by_its_memory(open_page, tmp_path):
    page = open_page("calculator/", width=360)
    memory = page.get_by_label("Its memory, GiB")
    expect(memory).to_be_hidden()
    page.get_by_label("GPU to fit").select_option("Another card …")
    page.get_by_label("GPU to fit").focus()  # it is enabled now; before, that did nothing
    shows(page, DEFAULT, "cuda-20gb")
    comes_to(page, {"gpu": "cuda-20gb"})
    page.keyboard.press("Tab")
    expect(memory).to_be_focused()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.keyboard.type("60")
    shows(page, DEFAULT, "cuda-60gb")
    comes_to(page, {"gpu": "cuda-60gb"})
    page.get_by_role("button", name="Pin this setup").click()
    for bad in ("0", "1e3", "x", "", "99999999", "<b>"):
        memory.fill(bad)
        expect(message(page)).to_have_text(f"“Its memory, GiB” is a whole number of GiB from 1 to 1024, not '{bad}'.")
        expect(memory).to_have_attribute("aria-invalid", "true")
    comes_to(page, {"gpu": "cuda-<b>gb", "pin": "gpu=cuda-60gb"})
    page.reload()
    expect(memory).to_have_value("<b>")
    expect(message(page)).to_contain_text("from 1 to 1024, not '<b>'")
    expect(page.get_by_role("region", name="Pinned setups")).to_contain_text("CUDA card, 60 GB")
    page.get_by_label("GPU to fit").select_option("rtx-3060")
    shows(page, DEFAULT, "rtx-3060")
    expect(memory).to_be_hidden()
    page.get_by_role("button", name=re.compile("^Open ")).click()
    shows(page, DEFAULT, "cuda-60gb")
    expect(memory).to_have_value("60")
    expect(memory).not_to_have_attribute("aria-invalid", "true")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as JSON").click()
    saved.value.save_as(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["command"].endswith("--gpu cuda-60gb")
    page.get_by_role("link", name="How to join a run").click()
    expect(page.locator("input[name=gpu]:checked")).to_have_value("48")
    assert page.locator("input[name=device]:checked").get_attribute("value") == "nvidia"


def test_what_comes_late_is_said_once_and_moves_nothing(open_page):
    page = open_page("calculator/")
    batch = page.get_by_label("Micro-batch").first
    batch.fill("2")
    expect(message(page)).to_have_text(on_cpython({**DEFAULT, "micro_batch_size": 2})["spoken"])
    page.evaluate("""() => {
        const region = document.querySelector("[role=status]");
        window.said = [];
        new MutationObserver(() => window.said.push(region.textContent))
            .observe(region, { childList: true, characterData: true, subtree: true });
    }""")
    below = "document.querySelector('.tables').getBoundingClientRect().top + scrollY"
    batch.evaluate("""field => ["", "1", "10"].forEach((typed) => {
        field.value = typed;
        field.dispatchEvent(new Event("input", { bubbles: true }));
    })""")
    shows(page, {**DEFAULT, "micro_batch_size": 10})
    top = page.evaluate(below)
    spoken = on_cpython({**DEFAULT, "micro_batch_size": 10})["spoken"]
    page.wait_for_function("spoken => window.said.includes(spoken)", arg=spoken)
    expect(page.locator(".advice")).not_to_have_attribute("inert", "")
    assert page.evaluate(below) == top
    assert page.evaluate("window.said") == [spoken]


def test_a_script_that_cannot_be_had_is_said_to_be_missing(open_page):
    page = open_page("404.html")
    page.expected_complaint = "ERR_FAILED"
    page.route("**/javascripts/calculator/page.mjs", lambda route: route.abort())
    page.clock.install()
    page.goto(page.url.replace("404.html", "calculator/"))
    again = page.get_by_role("alert").get_by_role("button", name="Reload the page")
    for _ in range(4):
        page.wait_for_load_state("networkidle")
        page.clock.run_for(5000)
    expect(again).to_be_visible()
    page.unroute_all()
    again.click()
    expect(page.get_by_label("Offload the optimizer")).to_be_enabled()


def test_a_pasted_config_is_a_model_like_any_other(open_page):
    page = open_page("calculator/")
    page.get_by_text("Paste a config.json").click()
    text = page.get_by_label("of a model on Hugging Face")
    text.fill('{"model_type": "gpt2",')
    page.get_by_role("button", name="Use it").click()
    expect(message(page)).to_contain_text("not JSON")
    expect(text).to_be_focused()
    expect(page.locator("[data-slot=standing]")).to_be_hidden()
    for refused, said in (
        ({"model_type": "olmo", "hidden_size": 4096}, "is not supported"),
        ({"model_type": "gpt2", "n_embd": 10**15}, "n_embd in config is a whole number"),
        ({"model_type": "gpt2", "n_layer": -4}, "n_layer in config is a whole number"),
        ({"model_type": "gpt2", "n_layer": 9000}, "9000 layers"),
    ):
        text.fill(json.dumps(refused))
        page.get_by_role("button", name="Use it").click()
        expect(message(page)).to_contain_text(said)
        expect(page.locator("[data-slot=standing]")).to_be_hidden()
        expect(page.locator(".total")).to_be_hidden()
    text.fill(json.dumps({"model_type": "t5", "d_model": 256, "num_layers": 3, "num_heads": 4}))
    page.get_by_role("button", name="Use it").click()
    config = {"model_type": "t5", "d_model": 256, "num_layers": 3, "num_heads": 4}
    setup = {key: value for key, value in DEFAULT.items() if key != "model"}
    expect(page.get_by_label("Target length")).to_be_visible()
    expect(page.get_by_role("combobox", name="Model")).to_be_disabled()
    expect(total(page)).to_have_text(on_cpython({"config": config, **setup})["texts"]["total"])
    page.get_by_label("Target length").fill("64")
    expected = on_cpython({"config": config, **setup, "target_length": 64})["texts"]
    expect(total(page)).to_have_text(expected["total"])
    page.wait_for_url("**target_length=64*")  # the address follows what is shown
    page.reload()
    expect(total(page)).to_have_text(expected["total"])
    expect(page.locator("[data-slot=host-total]")).to_have_text(expected["host-total"])
    command = page.locator("[data-slot=command]").inner_text()
    page.get_by_role("button", name="Use a listed model again").click()
    shows(page, {**DEFAULT})
    ended = run_program(["bash", "-c", command.replace("python -m", f"{sys.executable} -m") + " --json"])
    assert ended.returncode == 0, ended.stderr
    assert show_bytes(json.loads(ended.stdout)["gpu"]["total"]) == expected["total"]


def test_a_length_beyond_what_the_next_model_accepts_is_shortened_and_that_is_said(open_page):
    page = open_page("calculator/?sequence_length=1000")
    shows(page, {**DEFAULT, "sequence_length": 1000})
    choose_model(page, "bert-base")
    shows(page, {**DEFAULT, "model": "bert-base", "sequence_length": 512})
    said = "“Sequence length” is 512 now, the most that this model accepts, not 1000."
    expect(message(page)).to_contain_text(said)
    page.get_by_label("Micro-batch").first.fill("2")
    shows(page, {**DEFAULT, "model": "bert-base", "sequence_length": 512, "micro_batch_size": 2})
    expect(message(page)).not_to_contain_text(said)
    page.get_by_text("Paste a config.json").click()
    page.get_by_label("of a model on Hugging Face").fill(json.dumps({**GPT2, "n_positions": 256}))
    page.get_by_role("button", name="Use it").click()
    expect(message(page)).to_contain_text("is 256 now, the most that this model accepts, not 512.")
    expect(page.get_by_label("Sequence length")).to_have_value("256")
    expect(page.locator("[data-part=calculator]")).to_have_attribute("data-state", "shown")


def test_while_python_starts_the_old_verdict_and_advice_are_grey(open_page):
    page = open_page("404.html")
    held = []
    page.route("**/runtime/**", lambda route: held.append(route))
    page.goto(page.url.replace("404.html", "calculator/?model=gpt2"))
    expect(page.locator("[data-part=calculator]")).to_have_attribute("data-state", "computing")
    for old in (".verdict-line", ".advice", ".bars", ".tables"):
        assert page.locator(old).evaluate("part => getComputedStyle(part).filter") == "grayscale(1)"
    expect(message(page)).to_have_text("Starting Python in your browser …")
    page.unroute_all()  # what was held goes on
    shows(page, {**DEFAULT, "model": "gpt2"})
    assert page.locator(".verdict-line").evaluate("part => getComputedStyle(part).filter") == "none"


def test_the_form_does_not_scroll_within_the_page(open_page):
    page = open_page("calculator/")
    page.set_viewport_size({"width": 1280, "height": 900})
    for address in ("", "?model=llama-3.1-8b&lora_rank=16&gpus=4", "?model=t5-3b&optimizer=galore"):
        page.goto(page.url.partition("?")[0] + address)
        form = page.get_by_role("form", name="Setup", exact=True)
        assert form.evaluate("form => form.scrollHeight <= form.clientHeight"), address


def test_what_would_make_it_fit_is_one_click(open_page):
    page = open_page("calculator/?micro_batch_size=4&optimizer=adamw&checkpointing=false")
    setup = {"model": "gpt2-large", "micro_batch_size": 4}
    shows(page, setup)
    expect(page.locator(".verdict-line")).to_have_attribute("data-standing", "does not fit")
    advice = json.loads(advise(json.dumps({"setup": setup, "gpu": DEFAULT_GPU})))
    first = advice["choices"][0]
    expect(page.locator("[data-slot=choices] tr").first).to_contain_text(first["change"])
    expect(page.locator("[data-slot=choices] tr").first).to_contain_text(first["memory"])
    page.locator("[data-slot=choices]").get_by_role("button").first.click()
    expect(page.locator(".total")).to_be_focused()
    expect(page.locator(".verdict-line")).to_have_attribute("data-standing", re.compile("^(fits|tight)$"))
    asked = {"micro_batch_size": "4", "optimizer": "adamw", "checkpointing": "false"} | first["changes"]
    usual = {"micro_batch_size": "1", "optimizer": "adamw8bit", "checkpointing": "true"}
    comes_to(page, {key: value for key, value in asked.items() if value != usual.get(key)})
    page.get_by_role("button", name="Start over").click()
    shows(page, DEFAULT)
    page.get_by_role("button", name=re.compile("Micro-batch of .* the largest that leaves")).click()
    (largest,) = {
        choice["changes"]["micro_batch_size"]
        for choice in json.loads(advise(json.dumps({"setup": DEFAULT, "gpu": DEFAULT_GPU})))["choices"]
        if "micro_batch_size" in choice["changes"]
    }
    shows(page, {**DEFAULT, "micro_batch_size": int(largest)})
    expect(page.locator(".verdict-line")).to_have_attribute("data-standing", re.compile("^(fits|tight)$"))
    comes_to(page, {"micro_batch_size": largest})
    for _ in range(3):
        page.go_back()
    shows(page, setup)


def test_up_to_four_setups_side_by_side(open_page):
    page = open_page("calculator/")
    pin = page.get_by_role("button", name="Pin this setup")
    table = page.get_by_role("region", name="Pinned setups")
    pin.click()
    for batch in (2, 3, 4):
        page.get_by_label("Micro-batch").first.fill(str(batch))
        shows(page, {**DEFAULT, "micro_batch_size": batch})
        pin.click()
    expect(pin).to_be_disabled()
    names = [f"gpt2-large, batch {batch}" for batch in (1, 2, 3, 4)]
    expect(table.locator("thead strong")).to_have_text(names)
    totals = [on_cpython({**DEFAULT, "micro_batch_size": batch})["texts"]["total"] for batch in (1, 2, 3, 4)]
    expect(table.locator("tbody tr").first.locator("td")).to_have_text(totals)
    page.reload()
    expect(table.locator("tbody tr").first.locator("td")).to_have_text(totals)
    assert violations(page) == []
    table.get_by_label(f"Command of {names[1]}").click()
    command = on_cpython({**DEFAULT, "micro_batch_size": 2})["texts"]["command"]
    expect(table.locator("code").nth(1)).to_have_text(command)
    expect(table.locator("code").nth(1)).to_be_visible()
    table.get_by_role("button", name="Remove").first.click()
    expect(table.locator("tbody tr").first.locator("td")).to_have_text(totals[1:])
    table.get_by_role("button", name="Open").first.click()
    shows(page, {**DEFAULT, "micro_batch_size": 2})
    page.wait_for_url(re.compile("[?&]micro_batch_size=2&"))
    page.go_back()
    page.go_back()
    expect(table.locator("tbody tr").first.locator("td")).to_have_text(totals)


def test_the_sweep_is_fetched_when_it_is_opened_and_follows_the_palette(open_page, server):
    page = open_page("calculator/")
    page.get_by_text("How it grows").click()
    chart = page.locator(".sweep .chart")
    expect(chart).to_have_attribute("data-drawn", "true")
    assert [path for path in server.requests if path.startswith("/vendor/plotly")]
    page.get_by_label("Along").select_option("sequence_length")
    asked = {"setup": DEFAULT, "gpu": DEFAULT_GPU, "along": "sequence_length"}
    swept = json.loads(sweep(json.dumps(asked)))
    rows = page.locator(".sweep tbody tr")
    expect(rows).to_have_text([" ".join(point["row"]) for point in swept["points"]], use_inner_text=True)
    label = chart.locator(".chart__texts").get_by_text("Sequence length")
    expect(label).to_be_visible()
    before = label.evaluate("text => getComputedStyle(text).color")
    page.get_by_title("Switch to dark colours").click()
    expect(chart.locator(".main-svg").first).to_be_visible()
    page.wait_for_function(
        "before => getComputedStyle(document.querySelector('.sweep .chart__texts span')).color !== before", arg=before
    )
    assert violations(page) == []


def test_files_and_paper_say_what_the_command_line_says(open_page, tmp_path):
    page = open_page("calculator/?micro_batch_size=3&gpu=")
    shows(page, {**DEFAULT, "micro_batch_size": 3}, "")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as JSON").click()
    saved.value.save_as(tmp_path / "a.json")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV").click()
    saved.value.save_as(tmp_path / "a.csv")
    whole = json.loads((tmp_path / "a.json").read_text())
    words = whole["command"].split()
    assert words[:3] == ["python", "-m", "calculator"]
    ended = run_program([sys.executable, *words[1:], "--json"])
    assert json.loads(ended.stdout) == whole["estimate"]
    with (tmp_path / "a.csv").open() as file:
        rows = {(row["where"], row["part"]): int(row["bytes"]) for row in csv.DictReader(file)}
    for part, size in whole["estimate"]["gpu"].items():
        assert rows["gpu", part] == size
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    held = [row["bytes"] for row in on_cpython({**DEFAULT, "micro_batch_size": 3})["timeline"]]
    expect(page.locator("[data-slot=timeline] td:nth-child(3)")).to_have_text(held)


def test_by_keyboard_alone_from_landing_to_a_copied_command(open_page):
    page = open_page("")

    def tab_to(wanted: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(f"(document.activeElement.matches({wanted!r}))"):
                return
        pytest.fail(f"Tab never reached {wanted}")

    tab_to("main a[href$='calculator/']")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("calculator/"))
    expect(page.get_by_role("combobox", name="Model")).to_be_enabled()
    tab_to("[name=model]")
    page.keyboard.type("gpt-j")
    page.keyboard.press("Enter")
    tab_to("[name=micro_batch_size]")
    page.keyboard.type("3")
    tab_to("[name=offload_optimizer]")
    page.keyboard.press("Space")
    setup = {**DEFAULT, "model": "gpt-j-6b", "micro_batch_size": 3, "offload_optimizer": True}
    shows(page, setup)
    tab_to("summary:has([style*=series-1])")
    page.keyboard.press("Enter")
    expect(page.locator("[data-slot=why-gpu-weights]")).to_contain_text("6\u202f050\u202f882\u202f784")
    tab_to("button.copy")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Copied")).to_be_focused()
    assert page.evaluate("navigator.clipboard.readText()") == on_cpython(setup)["texts"]["command"]


LINES_AND_CUT = """line => {
    const words = document.createRange();
    words.selectNodeContents(line);
    const { lineHeight, webkitLineClamp } = getComputedStyle(line);
    const cut = line.scrollHeight > line.clientHeight || line.scrollWidth > line.clientWidth;
    const lines = Math.round(words.getBoundingClientRect().height / parseFloat(lineHeight));
    return [lines, cut || webkitLineClamp !== "none"];
}"""


def test_total_stays_in_sight_on_a_phone(open_page):
    page = open_page("calculator/?micro_batch_size=200&gpu=apple-16gb&pin=", width=360, dark=True)
    expect(page.get_by_text("Computed in your browser")).to_be_visible()
    expect(page.get_by_role("region", name="Pinned setups")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    verdict = page.locator("[data-slot=verdict]")
    expect(verdict).to_have_text(re.compile(r"^Does not fit the Apple M series, 16 GB unified, .* missing$"))
    assert page.locator(".verdict-line").evaluate(LINES_AND_CUT) == [2, False]
    for label in ("Layer groups", "GPU to fit"):
        page.get_by_label(label).focus()
        expect(total(page)).to_be_in_viewport()
        expect(page.locator("[data-slot=verdict]")).to_be_in_viewport()
    assert violations(page) == []


def test_bars_are_drawn_to_scale(open_page):
    page = open_page("calculator/")
    shown = on_cpython(DEFAULT)
    for index, pieces in enumerate(shown["bars"]):
        bar = page.locator("[data-bar]").nth(index)
        whole = bar.bounding_box()["width"]
        widths = bar.locator("span").evaluate_all("all => all.map((one) => one.getBoundingClientRect().width)")
        assert widths == pytest.approx([whole * percent / 100 for percent in pieces], abs=1.5)
    limit = page.locator("[data-slot=limit]").evaluate("mark => mark.offsetLeft / mark.parentElement.offsetWidth")
    assert limit == pytest.approx(shown["limit"] / 100, abs=0.01)
    heights = page.locator("[data-slot=step] span").evaluate_all("all => all.map((one) => one.clientHeight)")
    assert [max(heights) == height for height in heights] == [row["peak"] for row in shown["timeline"]]


def test_a_visit_to_another_page_keeps_that_page_and_fetches_nothing_more(open_page, server):
    page = open_page("challenges/", offline_copy=True)
    page.expected_complaint = "net::ERR_"
    page.wait_for_load_state("networkidle")
    needed = len(server.requests)
    until(lambda: page.evaluate("caches.match('/stylesheets/theme.css').then(Boolean)"), within=30)
    page.wait_for_timeout(500)
    # The search's script is asked for with a query when a page loads.
    assert set(server.requests[needed:]) <= {"/service-worker.js", "/404.html", "/javascripts/search.js"}
    page.context.set_offline(True)
    page.reload()
    expect(page.get_by_role("heading", name="Data streaming")).to_be_visible()
    position = page.locator(".md-header").evaluate("one => getComputedStyle(one).position")
    assert position == "sticky", "the style sheets are not kept"
    page.goto(server.url + "join/")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()


def test_after_one_visit_it_works_without_a_network(open_page, server):
    page = open_page("calculator/", offline_copy=True)
    # The browser's own words, or those for a request that the service worker could not answer either.
    page.expected_complaint = "net::ERR_"
    page.get_by_label("Micro-batch").first.fill("2")
    shows(page, {**DEFAULT, "micro_batch_size": 2})
    kept = "caches.open('named-by-content').then((cache) => cache.keys()).then((keys) => keys.length)"
    until(lambda: page.evaluate(kept) >= 5, within=30, said=lambda: "the runtime is not kept")
    page.wait_for_load_state("networkidle")  # what was asked before is answered
    server.close()  # the loss of network that a browser emulates spares the service worker now and then
    page.goto(server.url + "calculator/?micro_batch_size=3")
    shows(page, {**DEFAULT, "micro_batch_size": 3})
    expect(page.locator("[data-part=calculator]")).to_have_attribute("data-python", "snapshot")
    page.get_by_text("How it grows").click()
    expect(page.locator(".sweep .chart")).to_have_attribute("data-drawn", "true")
    page.goto(server.url + "join/")
    expect(page.get_by_role("heading", name="How to stop")).to_be_visible()
    page.goto(server.url + "no/such/page/")
    expect(page.get_by_role("main").get_by_role("link", name="Calculator", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    "files, way",
    [
        ({"snapshot.wasm": None}, "library"),
        ({"snapshot.wasm": b"\0asm and nothing of use"}, "library"),
        ({"snapshot.wasm": None, "stdlib.zip": b"no zip"}, ""),
        ({"pyodide.asm.wasm": None}, ""),
        ({"pyodide.mjs": None}, ""),
    ],
)
def test_without_its_runtime_the_page_falls_back(open_page, server, built_site, files, way):
    """From the snapshot to the library, and from there to the answer in the HTML and the command."""
    (runtime,) = (built_site / "runtime").iterdir()
    server.files = {f"/runtime/{runtime.name}/{name}": content for name, content in files.items()}
    page = open_page("calculator/")
    # Of what is missing here, at each try: the last ones may come when all else is done.
    page.expected_complaint = "error: Failed to fetch" if "pyodide.mjs" in files else "console: "
    page.get_by_label("Micro-batch").first.click()
    state = page.locator("[data-part=calculator]")
    if way:
        expect(state).to_have_attribute("data-python", way, timeout=60_000)
        shows(page, DEFAULT)
    else:
        expect(state).to_have_attribute("data-state", "failed", timeout=60_000)
        expect(message(page)).to_contain_text(re.compile(r"The command below works without a browser\.$"))
        shows(page, DEFAULT)
        page.get_by_label("Micro-batch").first.fill("2")
        page.get_by_label("GPU to fit").select_option("Another card …")
        page.get_by_label("Offload the optimizer").check()
        expect(message(page)).to_contain_text("for the setup in the form; the numbers shown belong to another setup")
        setup = {**DEFAULT, "micro_batch_size": 2, "offload_optimizer": True}
        words = on_cpython(setup, "cuda-20gb")["texts"]["command"].split(" --")
        told = "words => document.querySelector('[data-slot=command]').textContent.split(' --').sort().join() === words"
        page.wait_for_function(told, arg=",".join(sorted(words)))
        expect(page.locator(".verdict-line")).to_be_hidden()


def test_the_settings_go_along_to_the_join_page(open_page, server):
    server.live = live_run(epochs=20)
    server.live["run"]["recipe_digest"] = load_recipe("dalle-2021").digest
    page = open_page("calculator/?micro_batch_size=5&model=dalle-2021")
    shows(page, {"model": "dalle-2021", "micro_batch_size": 5, "optimizer": "adamw8bit"})
    page.get_by_role("link", name="Join with this micro-batch and GPU").click()
    expect(page.locator("[data-slot=command]")).to_have_text(re.compile(r"join http://\S+ --micro-batch-size 5$"))
    expect(page.locator("[data-slot=other]")).to_be_hidden()
    server.live["run"]["recipe_digest"] = load_recipe("demo").digest
    page.reload()
    expect(page.locator("[data-slot=command]")).to_have_text(re.compile(r"join http://\S+ --micro-batch-size 32$"))
    expect(page.locator("[data-slot=other]")).to_contain_text("dalle-2021, which no run here trains now")
    server.live = {}
    page.goto(server.url + "join/?micro_batch_size=5%3B%20rm%20-rf")
    expect(page.locator("[data-slot=status-label]")).to_have_text("No live run")
    assert "rm" not in page.locator("[data-slot=command]").inner_text()
