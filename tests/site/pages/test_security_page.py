"""The table of security in detail is the benchmark's record, and the record keeps what the page says."""

from __future__ import annotations

import json
import statistics

import pytest
from playwright.sync_api import expect

from tests.support.programs import ROOT
from training.swarm.engine.calls import MOST_MESSAGE_BYTES, OPENING_SECONDS
from training.swarm.node.protocol import MOST_KEYS

pytestmark = pytest.mark.browser

RECORD = json.loads((ROOT / "benchmarks" / "results" / "byzantine.json").read_text(encoding="utf-8"))

CHECKS = json.loads((ROOT / "benchmarks" / "results" / "audits.json").read_text(encoding="utf-8"))["results"]


def last_losses(**wanted) -> dict[int, float]:
    """The last loss of each such run, by its seed."""
    runs = [run for run in RECORD["courses"] if all(run[name] == value for name, value in wanted.items())]
    return {run["seed"]: run["losses"][-1] for run in runs}


def over_clean(attack: str, aggregation: str, peers: int) -> list[float]:
    """In percent, of each seed."""
    clean = last_losses(attack=None, aggregation="mean", peers=peers)
    runs = last_losses(attack=attack, aggregation=aggregation, peers=peers)
    return [100 * (loss / clean[seed] - 1) for seed, loss in runs.items()]


def shown(cell: str) -> float:
    """In percent."""
    number = float(cell.replace("\u2212", "-").split("\u00a0")[0])
    return 100 * (number - 1) if cell.endswith("times") else number


def test_the_table_shows_the_recorded_runs(open_page):
    page = open_page("reference/security/", scripts=False)
    rows = page.get_by_role("region", name="Loss with hostile peers, compared with a run without").locator("tbody tr")
    attacks = {run["attack"] for run in RECORD["courses"]} - {None}
    assert rows.count() == len(attacks) == 18
    for row in rows.all():
        name = row.locator("th").text_content().strip()
        attack = next(one for one in sorted(attacks, key=len, reverse=True) if name.startswith(one))
        mean, clip, worst, twelve, back = (shown(cell.strip()) for cell in row.locator("td").all_text_contents())
        seeds = over_clean(attack, "centered-clip", 25)
        assert len(seeds) == 3
        expected = [over_clean(attack, "mean", 25)[0], statistics.median(seeds), max(seeds)]
        expected += over_clean(attack, "centered-clip", 53)
        assert [mean, clip, worst, twelve] == pytest.approx(expected, abs=0.06, rel=0.005), attack
        assert back >= 0


ATTACKED_FROM = 10
"""The update from which seven of 16 attack."""
HARD_TO_CATCH = "reducer, silent"
"""Nobody can prove that these have lied."""
SELDOM = "reducer, every other time"


def test_the_record_keeps_what_is_asked_of_centered_clip():
    """5 of 25 cost at most 3 %, 12 of 53 at most 5 %; 7 of 16 never undo the training, which recovers afterwards."""
    attacks = {run["attack"] for run in RECORD["courses"]} - {None}
    for attack in attacks:
        assert statistics.median(over_clean(attack, "centered-clip", 25)) <= 3, attack
        assert over_clean(attack, "centered-clip", 53)[0] <= 5, attack
    for result in RECORD["results"]:
        if result["metric"].startswith("updates until back"):
            assert result["ours"] <= 200, result["metric"]
    attacked = [run["losses"] for run in RECORD["courses"] if run["peers"] == 16 and run["attack"]]
    begun = ATTACKED_FROM // RECORD["look_every"]
    assert len(attacked) == len(attacks) and all(max(losses[begun:]) < losses[0] for losses in attacked)


def recorded(metric: str) -> dict:
    (found,) = [one for one in RECORD["results"] if one["metric"] == metric]
    return found


def test_the_page_says_how_soon_lying_reducers_were_left_out(open_page):
    text = " ".join(open_page("reference/security/", scripts=False).locator("main").text_content().split())
    last = {}
    for attack in ("reducer", "reducer, hidden", HARD_TO_CATCH):
        runs = recorded(f"loss over clean, 5 of 25 hostile: {attack}")["left_out_after"]
        assert [len(run) for run in runs] == [5, 5, 5], attack
        last[attack] = max(run[-1] for run in runs)
    assert max(last["reducer"], last["reducer, hidden"]) <= 10 < last[HARD_TO_CATCH] <= 20
    assert f"left out after {max(last['reducer'], last['reducer, hidden'])} updates at the latest" in text
    assert f"hidden that twice: after {last[HARD_TO_CATCH]} updates" in text
    seldom = recorded(f"loss over clean, 5 of 25 hostile: {SELDOM}")["left_out_after"]
    assert [len(run) for run in seldom] == [5, 5, 5]
    assert f"average only was left out after {max(run[-1] for run in seldom)} updates at the latest" in text
    seldom_of_53 = recorded(f"loss over clean, 12 of 53 hostile: {SELDOM}")["left_out_after"][0]
    assert f"average only, {len(seldom_of_53)} were left out when the run ended after 40" in text
    of_53 = recorded(f"loss over clean, 12 of 53 hostile: {HARD_TO_CATCH}")["left_out_after"][0]
    assert len(of_53) == 12 and f"of 12 among 53, the last was left out after {of_53[-1]} updates" in text


@pytest.mark.parametrize("attack, most", [("mimic", 4), ("copied", 3), ("infinite", 1)])
def test_the_page_says_what_many_seeds_cost_on_average(open_page, attack, most):
    found = recorded(f"loss over clean, 5 of 25 hostile, mean of many seeds: {attack}")
    seeds = [100 * (seed - 1) for seed in found["seeds"]]
    mean, error = statistics.fmean(seeds), statistics.stdev(seeds) / len(seeds) ** 0.5
    assert len(seeds) == 10 and mean <= most
    text = open_page("reference/security/", scripts=False).locator("main").text_content()
    assert f"{mean:.1f}\u00a0±\u00a0{error:.1f}\u00a0%" in text


def checked(beginning: str) -> dict:
    """The result of the record of checks whose name begins so."""
    return next(one for one in CHECKS if one["metric"].startswith(beginning))


def test_the_record_of_checks_keeps_what_the_page_says(open_page):
    """Nobody honest is accused, also not beside a liar, and checks cost little."""
    assert checked("honest peers that were accused")["ours"] == 0
    assert checked("honest answers: distance over the limit")["ours"] < 0.5
    assert checked("bytes of checks")["ours"] <= 0.05
    for lies_to in ("all", "one"):
        assert checked(f"averages until a reducer that lies to {lies_to}")["innocent_named"] == 0
    text = open_page("reference/security/", scripts=False).locator("main").text_content()
    assert f"{checked('averages until a reducer that lies to all')['ours']:.0f}\u00a0average" in text
    assert "An average of 4\u202f000\u202f000 numbers" in text


def test_the_record_of_malformed_inputs_has_none_that_broke_a_reader(open_page):
    record = json.loads((ROOT / "benchmarks" / "results" / "malformed.json").read_text(encoding="utf-8"))
    found = {one["metric"]: one["ours"] for one in record["results"]}
    assert found["malformed inputs tried"] >= 1_000_000
    assert found["malformed inputs that broke a reader"] == 0
    text = " ".join(open_page("reference/security/", scripts=False).locator("main").text_content().split())
    tried = f"{found['malformed inputs tried']:,}".replace(",", " ")  # `split` has made every space a plain one
    assert f"Of {tried} malformed inputs, none ended a program" in text


def test_the_page_says_how_calls_are_bounded(open_page):
    text = " ".join(open_page("reference/security/", scripts=False).locator("main").text_content().split())
    assert f"ended after {OPENING_SECONDS:g} s" in text
    assert f"for at most {MOST_KEYS} keys" in text and f"at most {MOST_MESSAGE_BYTES >> 20} MiB" in text


ATTACKED = json.loads((ROOT / "benchmarks" / "results" / "attacked_runs.json").read_text(encoding="utf-8"))["courses"]


def test_the_record_of_attacked_runs_keeps_what_the_page_says():
    """The mean is lost, CenteredClip goes on learning, and the members are rid of the attack within two minutes."""
    runs = {run["run"]: run for run in ATTACKED}
    events = {event["kind"]: event for event in runs["tickets"]["events"]}
    before = {name: min(run["losses"][: events["attack"]["update"]]) for name, run in runs.items()}
    assert runs["mean"]["losses"][-1] > 10 * before["mean"]
    assert runs["centered-clip"]["losses"][-1] < before["centered-clip"]
    assert runs["tickets"]["losses"][-1] < before["tickets"] < 2 < max(runs["tickets"]["losses"][30:])
    assert events["back"]["seconds"] <= 120 and events["refused"]["exit_code"] == 3


def shown_losses(figure) -> dict[str, str]:
    return {one.get_attribute("data-run"): one.text_content() for one in figure.locator("[data-run]").all()}


def at_update(update: int) -> dict[str, str]:
    return {run["run"]: f"{run['losses'][update - 1]:.2f}" for run in ATTACKED}


def test_attacked_runs_are_replayed(open_page):
    page = open_page("challenges/security/")
    figure = page.locator("#figure-replay")
    slider, steps = figure.get_by_role("slider", name="Update"), figure.locator("[data-update]:visible")
    expect(slider).to_have_value("100")
    curves = figure.locator(".figure__wide .replay__curves")
    for update, happened in ((38, 4), (1, 1), (100, 5)):
        slider.fill(str(update))
        expect(figure.locator("[data-slot=update]")).to_have_text(f"{update} of 100")
        assert shown_losses(figure) == at_update(update)
        expect(steps.filter(visible=True)).to_have_count(happened)
        hidden = float(curves.evaluate("one => one.style.clipPath").split("0px ")[1].split("%")[0])
        left, right = (float(curves.get_attribute(f"data-{end}")) for end in ("from", "to"))
        assert 100 - hidden == pytest.approx(left + (right - left) * (update - 1) / 99, abs=0.5)
    figure.get_by_role("button", name="Play").click()
    expect(figure.get_by_role("button", name="Pause")).to_be_visible()
    expect(figure.get_by_role("button", name="Play")).to_be_visible(timeout=30_000)
    expect(slider).to_have_value("100")
    assert shown_losses(figure) == at_update(100)


def test_attacked_runs_are_shown_without_scripts(open_page):
    page = open_page("challenges/security/", scripts=False)
    expect(page.get_by_text("From update 30 on one of them, mallory, sends its gradients times −1000.")).to_be_visible()
    figure = page.locator("#figure-replay")
    assert shown_losses(figure) == at_update(100)
    assert not figure.get_by_role("button").is_visible() and figure.locator("[data-update]:visible").count() == 5


MOST_WORDS = 900


def test_the_page_is_short_and_begins_with_the_replay(open_page):
    """With all words of its figures that a reader sees."""
    article = open_page("challenges/security/").locator("article")
    assert len(article.inner_text().split()) <= MOST_WORDS
    expect(article.locator("h2").first).to_have_text("An attack to replay")
    expect(article.locator("figure").first).to_have_id("figure-replay")
