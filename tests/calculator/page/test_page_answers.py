"""What the calculator's page shows besides the estimate itself: all GPUs for a setup, and a picture of it."""

import json
import re
from xml.etree import ElementTree

import pytest

from calculator import PRESETS, Setup, estimate
from calculator.browser import advise, export, generate, gpus, models, sweep
from calculator.choose.devices import DEVICES, device_named
from calculator.choose.fit import verdict
from calculator.choose.flops import UTILISATION, forward_flops
from calculator.choose.inference import inference_memory, largest_batch, longest_context
from calculator.page.models import own_values
from calculator.units import show_bytes, show_count

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("model", ["gpt2-large", "t5-3b", "llama-3.1-8b", "dalle-2021", "mixtral-8x7b"])
def test_each_gpu_has_its_verdict_and_its_speed(model):
    asked = {"model": model, "micro_batch_size": 2, "optimizer": "sgd"}
    setup = Setup(**asked)
    rows = json.loads(gpus(json.dumps({"setup": asked})))["rows"]
    assert sorted(row["name"] for row in rows) == sorted(DEVICES)
    order = [("fits", "tight", "does not fit").index(row["standing"]) for row in rows]
    usable = [device_named(row["name"]).usable_bytes for row in rows]
    assert list(zip(order, usable, strict=True)) == sorted(zip(order, usable, strict=True))
    for row in rows:
        judged = verdict(setup, device_named(row["name"]))
        assert row["standing"] == judged.standing
        assert row["left"].lstrip("\u2212") == show_bytes(abs(judged.margin_bytes))
        assert row["left"].startswith("\u2212") == (not judged.fits)
    assert (model == "t5-3b") == all(row["speed"] == "–" for row in rows)


def test_a_large_model_trains_at_the_assumed_share_of_the_peak():
    row = next(row for row in json.loads(gpus('{"setup": {"model": "llama-3.1-70b"}}'))["rows"] if row["name"] == "t4")
    architecture = PRESETS["llama-3.1-70b"]
    seconds = 3 * forward_flops(architecture) / (UTILISATION * device_named("t4").teraflops * 1e12)
    assert float(row["speed"]) == pytest.approx(1 / seconds, rel=0.1)
    years = 1e9 / architecture.sequence_length * seconds / (365 * 86_400)
    assert row["time"].endswith(" days" if years < 1 else " years")
    assert float(row["time"].split()[0]) == pytest.approx(years * (365 if years < 1 else 1), rel=0.1)


@pytest.mark.parametrize("sharding", ["none", "zero-1", "zero-3"])
def test_several_gpus_train_faster_together(sharding):
    """An eighth of one GPU's time; for that, 6 operations for each of 8.03e9 weights and token at 30 % of 312e12."""
    asked = {"model": "llama-3.1-8b", "gpus": 8, "sharding": sharding}
    found = json.loads(gpus(json.dumps({"setup": asked})))
    row = next(row for row in found["rows"] if row["name"] == "a100-80gb")
    hours, minutes = re.fullmatch(r"(\d+) h(?: (\d+) min)?", row["time"]).groups(default="0")
    amount = int(hours) + int(minutes) / 60
    assert amount / 24 == pytest.approx(6 * 8.03e18 / (0.3 * 312e12) / 86_400 / 8, rel=0.1)
    assert float(row["speed"]) == pytest.approx(1e9 / 4096 / (amount * 3600), rel=0.05)
    assert found["note"].startswith("Each row is for 8 such GPUs") and "at most" not in found["note"]
    assert json.loads(gpus('{"setup": {"model": "llama-3.1-8b"}}'))["note"] == ""


def test_a_run_costs_the_price_of_all_gpus_for_its_time():
    asked = {"setup": {"model": "llama-3.1-8b", "gpus": 4}, "billions": "20", "price": "2.5"}
    row = next(row for row in json.loads(gpus(json.dumps(asked)))["rows"] if row["name"] == "h100-80gb")
    days = 6 * 8.03e9 * 20e9 / (UTILISATION * device_named("h100-80gb").teraflops * 1e12) / 86_400 / 4
    assert float(row["time"].removesuffix(" days")) == pytest.approx(days, rel=0.1)
    assert float(row["cost"].replace("\u202f", "")) == pytest.approx(4 * 2.5 * 24 * days, rel=0.1)
    no_price = json.loads(gpus(json.dumps(asked | {"price": ""})))["rows"]
    assert {row["cost"] for row in no_price} == {"–"}
    unknown = json.loads(gpus(json.dumps(asked | {"setup": {"model": "t5-3b"}})))["rows"]
    assert {row["cost"] for row in unknown} == {"–"}


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"billions": "many"}, "The tokens to train on, in billions, must be a number above 0"),
        ({"billions": "0"}, "not '0'"),
        ({"billions": "nan"}, "not 'nan'"),
        ({"price": "-1"}, "The price of one GPU for an hour must be a number above 0"),
        ({"price": "1e99"}, "at most 1,000,000,000"),
        ({"price": ["1"]}, "must be a number"),
    ],
)
def test_what_is_no_amount_is_refused_in_a_sentence(fields, said):
    error = json.loads(gpus(json.dumps({"setup": {"model": "gpt2"}, **fields})))["error"]
    assert said in error and len(error) < 200


def test_each_gpu_has_the_longest_context_and_the_largest_batch_that_fit():
    asked = {"setup": {"model": "llama-3.1-8b"}, "batch": "4", "length": "8192", "weights": "nf4", "cache": "bf16"}
    found = json.loads(generate(json.dumps(asked)))
    assert sorted(row["name"] for row in found["rows"]) == sorted(DEVICES)
    model, options = PRESETS["llama-3.1-8b"], {"weights": "nf4", "cache": "bf16"}
    memory = inference_memory(model, batch=4, length=8192, **options)
    assert show_bytes(memory.total) in found["note"] and show_bytes(memory.cache) in found["note"]
    assert f"Unpacking the largest layer takes {show_bytes(2 * 14_336 * 4096)} more" in found["note"]
    for row in found["rows"]:
        device = device_named(row["name"])
        assert (row["standing"] == "fits") == (memory.total_on(device) <= device.usable_bytes)
        longest = longest_context(model, device, batch=4, **options)
        assert row["context"] == (show_count(longest) if longest else "–")
        most = largest_batch(model, device, length=8192, **options)
        assert row["batch"] == (show_count(most) if most else "–")
    fitting = [row["standing"] == "fits" for row in found["rows"]]
    assert fitting == sorted(fitting, reverse=True) and len(set(fitting)) == 2
    usual = json.loads(generate(json.dumps({"setup": {"model": "gpt2"}, "length": ""})))
    assert usual["note"].startswith("1 sequence of 1\u202f024 tokens:")


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"setup": {"model": "bert-base"}, "length": "8192"}, "does not generate text token by token"),
        ({"setup": {"model": "gpt2"}, "weights": "fp8"}, "choose bf16 or nf4"),
        ({"setup": {"model": "gpt2"}, "length": "long"}, "length is a whole number, not 'long'"),
        ({"setup": {"model": "gpt2"}, "batch": "0"}, "batch is a whole number from 1"),
        ({"setup": {"model": "gpt2"}, "cache": "nf4"}, "cache is one of fp32, bf16"),
        ({"setup": {"model": "gpt2"}, "weights": ["bf16"]}, "weights is one of fp32, bf16"),
    ],
)
def test_what_generates_nothing_is_refused_in_a_sentence(asked, said):
    assert said in json.loads(generate(json.dumps(asked)))["error"]


def test_the_chosen_gpu_has_a_row_even_if_it_is_not_listed():
    for ask in (gpus, generate):
        rows = json.loads(ask(json.dumps({"setup": {"model": "gpt2"}, "gpu": "cuda-20gb"})))["rows"]
        assert sorted(row["name"] for row in rows) == sorted([*DEVICES, "cuda-20gb"])
        rows = json.loads(ask(json.dumps({"setup": {"model": "gpt2"}, "gpu": "t4"})))["rows"]
        assert sorted(row["name"] for row in rows) == sorted(DEVICES)


def test_each_model_is_judged_on_the_chosen_gpu():
    settings = {"optimizer": "adamw8bit", "checkpointing": True}
    asked = {"setup": {"model": "gpt2-large", **settings}, "gpu": "cuda-24gb"}
    found = json.loads(models(json.dumps(asked)))
    rows = {row["name"]: row for row in found["rows"]}
    assert rows.keys() == PRESETS.keys() and "CUDA card with 24 GB" in found["note"]
    device = device_named("cuda-24gb")
    for name in ("gpt2-xl", "llama-3.1-8b", "qwen3-1.7b"):
        judged = verdict(Setup(model=name, **settings), device)
        assert rows[name]["whole"] == (judged.standing if judged.fits else "no")
        adapters = Setup(model=name, **settings, lora_rank=16, base_bits=4) if name != "gpt2-xl" else None
        assert rows[name]["qlora"] == (verdict(adapters, device).standing if adapters else "–")
    assert rows["qwen3-14b"]["nf4"] == "fits" and rows["qwen3-14b"]["bf16"] == "no"
    assert rows["t5-3b"]["bf16"] == "–" and rows["dalle-2021"]["whole"] == "fits"
    assert found["rows"][-1]["name"] in ("deepseek-v3", "gpt3-175b") or "fits" not in found["rows"][-1].values()
    unchosen = json.loads(models(json.dumps(asked | {"gpu": ""})))["error"]
    assert unchosen == "Choose a GPU to see which models fit it."


def test_advice_is_a_table_and_the_largest_setups_keep_a_margin():
    setup = {"model": "gpt2-large", "optimizer": "adamw8bit", "checkpointing": True}
    found = json.loads(advise(json.dumps({"setup": setup, "gpu": "t4"})))
    device = device_named("t4")
    assert found["room"] == show_bytes(device.usable_bytes)
    changes = {
        key: int(value) for row in found["choices"] for key, value in row["changes"].items() if value.isdecimal()
    }
    assert "micro_batch_size" in changes and any("6\u00a0% free" in row["change"] for row in found["choices"])
    for name, size in changes.items():
        assert verdict(Setup(**setup | {name: size}), device).standing == "fits"
        assert verdict(Setup(**setup | {name: size + 1}), device).standing != "fits" or name == "sequence_length"
    large = {"setup": {"model": "gpt2-xl", "micro_batch_size": 8}, "gpu": "t4"}
    for row in json.loads(advise(json.dumps(large)))["choices"]:
        assert row.keys() == {"change", "memory", "cost", "changes"} and len(row["change"]) < 160
        typed = {
            name: json.loads(value) if value[:1].isdigit() or value in ("true", "false") else value
            for name, value in row["changes"].items()
        }
        assert row["memory"] == show_bytes(verdict(Setup(**large["setup"] | typed), device).need_bytes)


def test_a_model_says_the_most_that_its_positions_allow():
    own = {name: own_values(architecture).get("most") for name, architecture in PRESETS.items()}
    assert own["gpt2"] == {"sequence_length": 1024} and own["bert-base"] == {"sequence_length": 512}
    assert own["llama-3.1-8b"] is own["t5-3b"] is None


def test_a_sweep_along_no_number_is_refused_in_a_sentence():
    for along in (["micro_batch_size"], None, "precision"):
        asked = {"setup": {"model": "gpt2"}, "along": along}
        assert "A sweep goes along one of micro_batch_size" in json.loads(sweep(json.dumps(asked)))["error"]


def test_the_picture_shows_the_parts_and_nothing_of_a_config_as_markup():
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "_name_or_path": "<script>"}
    for setup in ({"model": "gpt2-large"}, {"config": config}):
        text = json.loads(export(json.dumps({"setup": setup, "gpu": "t4"})))["svg"]
        root = ElementTree.fromstring(text)
        assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "title", "rect", "text"}
        result = estimate(Setup(**setup))
        words = [element.text for element in root.iter(f"{SVG}text")]
        assert show_bytes(result.gpu.total) in words[0] and "Tesla T4" in words[1]
        assert f"Weights {show_bytes(result.gpu.weights)}" in words
        bars = [one for one in root.iter(f"{SVG}rect") if one.get("height") == "26"]
        assert sum(float(bar.get("width")) for bar in bars) == pytest.approx(608, abs=0.5)
        assert float(bars[0].get("width")) == pytest.approx(608 * result.gpu.weights / result.gpu.total, abs=0.1)
