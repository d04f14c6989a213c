"""The dashboard, home and join pages against a live API whose documents the test writes."""

from __future__ import annotations

import re
import struct
import time
import zlib

import pytest
from playwright.sync_api import expect

from builder.join.choices import DEMOS
from tests.site.pages.test_every_page import violations
from training.publish.invitation import MEMBERS_FLAGS, join_command

pytestmark = pytest.mark.browser

JOIN = join_command("http://127.0.0.1:9", program=["python", "-m", "training"])
PROMPTS = ["a red circle", "a blue square"]


def volunteer(place: int, name: str, *, now: float, epochs: int, gone: bool, over: bool) -> dict:
    """A row of the leaderboard."""
    return {
        "name": name,
        "peer_id": f"Qm{name}",
        "samples": 3000 - 1000 * place,
        "seconds": 3725.0,
        "share": (3 - place) / 6,
        "active": not gone and not over,
        "last_seen": now - (60 if gone else 0),
        "samples_per_second": None if gone else 50.0,
        "epochs": epochs,
    }


def snapshot(epoch: int, now: float) -> dict:
    """The pictures of an epoch."""
    pictures = [
        {"prompt": prompt, "file": f"/live/pictures/{epoch:06d}/{n}.png", "shape": n == 0, "colour": True}
        for n, prompt in enumerate(PROMPTS)
    ]
    return {"epoch": epoch, "time": now, "pictures": pictures}


def live_run(*, epochs: int, gone: tuple[str, ...] = (), status: str = "running") -> dict[str, dict]:
    """Documents of a run with three volunteers that has finished `epochs`; the loss at epoch e is 5 - e / 10."""
    now = time.time()
    names = ["ada", "<b>bob</b>", "cy"]
    rates = {"active_peers": 3 - len(gone), "samples": 300, "samples_per_second": 150.0}
    rows = [
        {"epoch": epoch, "time": now - 2 * (epochs - epoch), "loss": 5 - epoch / 10, **rates}
        for epoch in range(1, epochs + 1)
    ]
    return {
        "run": {
            "run_id": "shapes",
            "title": "Shapes & co",
            "description": "A test.",
            "recipe_digest": "0123",
            "initial_peers": ["/ip4/127.0.0.1/tcp/9/p2p/12D3KooW"],
            "join_command": JOIN,
            "started_at": now - 100,
            "target_batch_size": 300,
            "total_epochs": 40,
            "parameters": 1_234_567,
            "prompts": PROMPTS,
        },
        "state": {
            "time": now,
            "status": status,
            "epoch": epochs,
            "loss": 5 - epochs / 10,
            "samples_per_second": None if status != "running" else 150.0,
            "active_peers": 0 if status != "running" else 3 - len(gone),
            "total_samples": 300 * epochs,
            "last_epoch_at": now,
            "updated_every_seconds": 0.3,
        },
        "history": {"epochs": rows},
        "losses": {"peers": {name: [[row["epoch"], row["loss"] + 0.1] for row in rows] for name in names}},
        "leaderboard": {
            "volunteers": [
                volunteer(place, name, now=now, epochs=epochs, gone=name in gone, over=status != "running")
                for place, name in enumerate(names)
            ]
        },
        "pictures": {
            "snapshots": [snapshot(epoch, now) for epoch in (10, 20) if epoch <= epochs],
        },
        "events": {
            "events": [
                {"time": now - 90, "kind": "started", "name": "", "text": "the monitor started"},
                *({"time": now - 80, "kind": "joined", "name": name, "text": "joined the run"} for name in names),
                *(
                    {"time": now - 70 + e, "kind": "checkpoint", "name": "monitor", "text": f"checkpoint of epoch {e}"}
                    for e in (10, 20)
                ),
                *({"time": now, "kind": "left", "name": name, "text": "left: no word for 60 s"} for name in gone),
            ]
        },
    }


@pytest.fixture
def live(server):
    """A server with a run at epoch 20 and its pictures."""
    for epoch in (10, 20):
        for number in range(len(PROMPTS)):
            server.files[f"/live/pictures/{epoch:06d}/{number}.png"] = red_picture()
    server.live = live_run(epochs=20)
    return server


def test_a_live_run_is_shown_and_grows(open_page, live):
    page = open_page("dashboard/")
    expect(page.get_by_role("heading", name="Shapes & co")).to_be_visible()
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
    expect(page.locator("[data-slot=epoch]")).to_have_text("20 of 40")
    chart = page.get_by_role("img", name=re.compile("^Loss per epoch: 4.9 at epoch 1, 3 at epoch 20"))
    expect(chart).to_have_attribute("data-drawn", "true")
    assert _drawn_points(page, "loss-chart", "all") == 20
    assert set(_drawn_names(page)) == {"ada", "<b>bob</b>", "cy", "all"}

    live.live = live_run(epochs=21)
    expect(page.locator("[data-slot=epoch]")).to_have_text("21 of 40")
    expect(chart).to_have_count(0)
    _wait_for_points(page, "all", 21)
    assert _drawn_points(page, "loss-chart", "ada") == 21

    page.get_by_text("The numbers as a table").first.click()
    first = page.get_by_role("region", name="Loss per epoch, table").get_by_role("row").nth(1)
    expect(first.get_by_role("cell")).to_have_text(["21", "2.9", "3", "3", "3"])
    board = page.get_by_role("region", name="Leaderboard").get_by_role("row")
    ada = ["ada", "1", "3\u202f000", "50 %", "1 h 2 min", "50 samples/s"]
    expect(board.nth(1).locator("th, td")).to_have_text(ada)
    expect(board.nth(2)).to_contain_text("<b>bob</b>")
    pictures = page.get_by_role("region", name="Pictures per prompt and epoch").get_by_role("img")
    expect(pictures).to_have_count(4)
    expect(pictures.first).to_have_attribute("alt", "“a red circle” as drawn at epoch 20; shape right; colour right")
    assert page.evaluate("document.querySelector('.gallery img').naturalWidth") == 2
    assert violations(page) == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_losses_on_held_out_samples_are_points_beside_the_loss_of_training(open_page, live, width, dark):
    page = open_page("dashboard/", width=width, dark=dark)
    assert _drawn_points(page, "loss-chart", "all") == 20
    text = page.locator("[data-slot=held-out]")
    expect(text).to_be_hidden()
    measured = {"time": 0.0, "samples": 64, "tokens": 8128}
    live.live["history"]["held_out"] = [{"epoch": epoch, "loss": 5.2 - epoch / 10, **measured} for epoch in (10, 20)]
    live.live["run"]["kind"] = "text"
    page.reload()
    expect(text).to_contain_text("3.2 at epoch 20, perplexity 24.5, over 64 held-out samples (8\u202f128 tokens)")
    _wait_for_points(page, "held out", 2)
    assert set(_drawn_names(page)) == {"ada", "<b>bob</b>", "cy", "held out", "all"}
    legend = page.get_by_role("group", name="Lines: Loss")
    expect(legend.get_by_role("button", name="held out")).to_be_visible()
    live.live["history"]["held_out"].append({"epoch": 18, "loss": 3.3, **measured})  # without a new epoch
    live.live["state"]["status"] = "waiting"
    _wait_for_points(page, "held out", 3)
    assert violations(page) == []


def test_a_volunteer_who_leaves_is_shown_as_gone(open_page, live):
    page = open_page("dashboard/")
    expect(page.locator("[data-slot=active]")).to_have_text("3")
    live.live = live_run(epochs=22, gone=("cy",))
    expect(page.locator("[data-slot=active]")).to_have_text("2")
    row = page.get_by_role("row", name=re.compile("^cy"))
    expect(row).to_contain_text(re.compile(r"gone \d+ s ago"))
    events = page.locator("[data-slot=events] li")
    expect(events.first).to_contain_text("cy left: no word for 60 s")
    expect(events.filter(has_text="checkpoint")).to_have_text([re.compile("epoch 20$")])  # the last of many


def test_silence_is_said_and_never_filled(open_page, live):
    page = open_page("dashboard/")
    expect(page.locator("[data-slot=age]")).to_have_text(re.compile(r"^Last update \d s ago$"))
    live.silent = True
    expect(page.locator("[data-slot=status-label]")).to_have_text("No news")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("has not answered for")
    expect(page.locator("[data-slot=epoch]")).to_have_text("20 of 40")
    live.silent = False
    live.live = live_run(epochs=23)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
    expect(page.locator("[data-slot=epoch]")).to_have_text("23 of 40")
    page.complaints.clear()  # The browser reports each 503.


@pytest.mark.parametrize(
    "status, label, text",
    [
        ("waiting", "Waiting", "No volunteer is active now"),
        ("stopped", "Stopped", "after epoch 20"),
        ("finished", "Recorded", "after epoch 20"),
    ],
)
def test_a_run_that_does_not_move_says_why(open_page, live, status, label, text):
    live.live = live_run(epochs=20, status=status)
    page = open_page("dashboard/")
    expect(page.locator("[data-slot=status-label]")).to_have_text(label)
    expect(page.locator("[data-slot=status-text]")).to_contain_text(text)
    assert _drawn_points(page, "loss-chart", "all") == 20


def test_a_run_before_its_first_epoch(open_page, server):
    server.live = live_run(epochs=0)
    server.live["state"].update(epoch=None, loss=None, last_epoch_at=None)
    page = open_page("dashboard/")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("the first epoch has not finished yet")
    expect(page.locator("[data-slot=pictures-text]")).to_contain_text("No pictures yet")


def test_the_pointer_tells_the_values_of_an_epoch(open_page, live):
    page = open_page("dashboard/")
    assert _drawn_points(page, "loss-chart", "all") == 20
    plot = page.locator("[data-slot=loss-chart] .chart__overlay").bounding_box()
    tip = page.locator("[data-slot=loss-chart] .chart__tip")
    expect(tip).to_be_hidden()
    page.mouse.move(plot["x"] + plot["width"] * 9 / 19, plot["y"] + 50)
    told = tip.locator("p")
    expect(told).to_have_text(["Epoch 10", "all: 4", "ada: 4.1", "<b>bob</b>: 4.1", "cy: 4.1"])
    page.mouse.move(plot["x"] + plot["width"] - 3, plot["y"] + 50)
    expect(told.first).to_have_text("Epoch 20")
    news = live_run(epochs=20, status="waiting")
    news["losses"]["peers"]["cy"][19][1] = 1.5
    live.live = news
    expect(tip).to_contain_text("cy: 1.5")  # while the pointer rests
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_a_part_of_the_run_is_enlarged_and_a_double_click_shows_it_whole(open_page, server):
    server.live = live_run(epochs=400)
    server.live["pictures"]["snapshots"] = []
    page = open_page("dashboard/")
    assert _drawn_points(page, "loss-chart", "all") == 400
    shown = page.locator("[data-slot=loss-chart] .chart__texts span")
    assert {"200", "400", "Epoch", "Loss"} <= set(shown.all_text_contents())
    plot = page.locator("[data-slot=loss-chart] .chart__overlay").bounding_box()
    page.mouse.move(plot["x"] + 199 / 399 * plot["width"], plot["y"] + 50)
    page.mouse.down()
    page.mouse.move(plot["x"] + 279 / 399 * plot["width"], plot["y"] + 60, steps=3)
    expect(page.locator("[data-slot=loss-chart] .chart__chosen")).to_be_visible()
    page.mouse.up()
    _wait_for_points(page, "all", 81)  # from epoch 200 to 280
    labels = page.locator("[data-slot=speed-chart] .chart__texts span")
    expect(labels.filter(has_text="220")).to_have_count(1)
    expect(labels.filter(has_text="400")).to_have_count(0)
    whole = page.get_by_role("button", name="Whole run")
    expect(whole).to_have_attribute("aria-pressed", "false")
    page.mouse.dblclick(plot["x"] + 100, plot["y"] + 50)
    _wait_for_points(page, "all", 400)
    expect(whole).to_have_attribute("aria-pressed", "true")


def test_the_last_epochs_are_chosen_by_a_button(open_page, server):
    server.live = live_run(epochs=400)
    server.live["pictures"]["snapshots"] = []
    page = open_page("dashboard/")
    button = page.get_by_role("button", name="Last 100 epochs")
    button.press("Enter")
    _wait_for_points(page, "all", 101)  # from epoch 300 to 400
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="Last 1\u202f000 epochs")).to_have_count(0)
    assert violations(page) == []


def test_a_line_is_switched_off_by_its_name(open_page, live):
    page = open_page("dashboard/")
    name = page.get_by_role("group", name="Lines: Loss").get_by_role("button", name="<b>bob</b>")
    expect(name).to_have_attribute("aria-pressed", "true")
    name.press("Enter")
    expect(name).to_have_attribute("aria-pressed", "false")
    line = page.locator("[data-slot=loss-chart] [data-name]").nth(2)
    expect(line).to_have_attribute("data-name", "all")
    live.live = live_run(epochs=21)
    _wait_for_points(page, "all", 21)
    assert set(_drawn_names(page)) == {"ada", "cy", "all"}
    name.click()
    expect(page.locator("[data-slot=loss-chart] [data-name]")).to_have_count(4)


def test_the_dashboard_loads_no_library_for_charts(open_page, live):
    """Plotly's script alone keeps a page from answering for a tenth of a second."""
    page = open_page("dashboard/")
    page.locator("[data-slot=speed-chart]").scroll_into_view_if_needed()
    expect(page.locator(".chart[data-drawn]")).to_have_count(3)
    assert [path for path in live.requests if path.startswith("/vendor/")] == []


@pytest.mark.parametrize("width", [1280, 360])
def test_the_first_pictures_stand_beside_the_newest(open_page, server, width):
    server.live = live_run(epochs=400)
    snapshot = server.live["pictures"]["snapshots"][0]
    server.live["pictures"]["snapshots"] = [{**snapshot, "epoch": epoch} for epoch in range(20, 401, 20)]
    for number in range(len(PROMPTS)):
        server.files[f"/live/pictures/000020/{number}.png"] = red_picture()
    page = open_page("dashboard/", width=width)
    table = page.get_by_role("region", name="Pictures per prompt and epoch")
    every = page.get_by_role("button", name="Pictures of all 20 epochs")
    expect(every).to_be_visible()
    columns = table.locator("thead th")
    expect(columns.nth(1)).to_have_text("epoch 400")
    expect(columns.last).to_have_text("epoch 20")
    assert table.evaluate("box => box.scrollWidth <= box.clientWidth")
    every.click()
    expect(every).to_have_attribute("aria-pressed", "true")
    expect(columns).to_have_count(21)


COUNT_BY_TASK = """
window.tasks = [];
let current = null;
new MutationObserver((records) => {
    if (!current) {
        tasks.push(current = { rows: 0, charts: 0 });
        // Runs before whatever else waits for its turn, but not before this task ends.
        scheduler.postTask(() => (current = null), { priority: "user-blocking" });
    }
    for (const { attributeName, addedNodes } of records) {
        current.charts += attributeName === "data-drawn";
        current.rows += [...addedNodes].filter((node) => node.matches?.("main [data-key]")).length;
    }
}).observe(document, { subtree: true, childList: true, attributeFilter: ["data-drawn"] });
"""
"""Counts for each of the page's tasks how many rows of tables it adds and how many charts it draws."""


def test_a_large_run_is_shown_piece_by_piece(open_page, server):
    """A task that adds all rows or draws all charts would keep the browser from answering the reader."""
    server.live = live_run(epochs=600)
    first, *_ = server.live["leaderboard"]["volunteers"]
    members = [{**first, "name": f"member {number}", "samples": 900 - number} for number in range(220)]
    server.live["leaderboard"] = {"volunteers": members, "total": len(members)}
    page = open_page("join/")
    page.add_init_script(COUNT_BY_TASK)
    page.goto(server.url + "dashboard/")
    board = page.locator("[data-slot=board] tr")
    expect(board).to_have_count(220)
    # Not the inner texts: the browser does not lay out what is far from the window.
    assert board.locator("th").all_text_contents() == [member["name"] for member in members]
    page.locator("[data-slot=speed-chart]").scroll_into_view_if_needed()
    expect(page.locator(".chart[data-drawn]")).to_have_count(3)
    tasks = page.evaluate("tasks")
    assert sum(task["rows"] for task in tasks) == 220
    assert max(task["rows"] for task in tasks) <= 25
    # A chart may be drawn a second time, for example when it comes into view.
    assert {task["charts"] for task in tasks if task["charts"]} == {1}

    page.evaluate("tasks.length = 0")
    page.get_by_text("The numbers as a table").first.click()
    rows = page.get_by_role("region", name="Loss per epoch, table").locator("tbody tr")
    expect(rows).to_have_count(500 // 5)
    page.get_by_role("button", name="More rows").first.click()
    expect(rows).to_have_count(2 * 500 // 5)
    tasks = page.evaluate("tasks")
    assert sum(task["rows"] for task in tasks) == 2 * 500 // 5
    assert max(task["rows"] for task in tasks) <= 25


def test_home_shows_the_run_at_a_glance(open_page, live):
    page = open_page()
    glance = page.get_by_role("region", name="Shapes & co")
    expect(glance.get_by_role("img", name=re.compile("^Loss from 4.9 at epoch 1 to 3 at epoch 20"))).to_be_visible()
    expect(glance.get_by_role("img", name="Drawn by the model: “a red circle”")).to_be_visible()
    expect(page.locator("[data-slot=now]")).to_contain_text("Shapes & co. Training now: epoch 20")
    expect(page.get_by_role("link", name=re.compile("Run the demo"))).to_be_hidden()
    for door in ("Join a run", "Try the calculator"):
        box = page.get_by_role("link", name=re.compile(door)).bounding_box()
        assert box["y"] + box["height"] <= 800


def test_without_a_live_run_home_leads_to_the_demo(open_page, live):
    live.live = live_run(epochs=20, status="finished")
    page = open_page()
    expect(page.locator("[data-slot=status-label]")).to_have_text("Recorded")
    expect(page.locator("[data-slot=now]")).to_contain_text("Nobody trains here now")
    page.locator(".door:visible").first.click()
    expect(page.get_by_text("nox -s demo").last).to_be_in_viewport()


def test_join_command_is_the_runs_own(open_page, live):
    page = open_page("join/")
    command = page.locator("[data-slot=command]")
    expect(command).to_have_text(f"{JOIN} --device cpu")
    expect(page.get_by_text("works only on the run's own computer")).to_be_visible()
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"{JOIN} --device cpu"
    expect(page.locator("[data-slot=members]")).to_be_hidden()


def test_newcomers_of_a_run_for_members_are_asked_for_their_invitation(open_page, live):
    live.live["run"]["join_command"] = f"{JOIN} {MEMBERS_FLAGS}"
    page = open_page("join/")
    expect(page.locator("[data-slot=command]")).to_have_text(f"{JOIN} {MEMBERS_FLAGS} --device cpu")
    expect(page.locator("[data-slot=members]")).to_contain_text("the command asks for your invitation")


def test_join_command_of_a_run_that_is_over_is_not_offered(open_page, live):
    live.live = live_run(epochs=20, status="finished")
    page = open_page("join/")
    page.wait_for_load_state("networkidle")
    expect(page.locator("[data-slot=command]")).to_have_text(DEMOS["demo"])


def test_join_steps_stand_without_scripts(open_page):
    page = open_page("join/", scripts=False)
    expect(page.locator("[data-slot=command]")).to_have_text(DEMOS["demo"])
    expect(page.get_by_role("heading", name="How to stop")).to_be_visible()


def _drawn_names(page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('[data-slot=loss-chart] [data-name]')].map((one) => one.dataset.name)"
    )


POINTS_OF = """([slot, name]) => [...document.querySelectorAll(`[data-slot=${slot}] [data-name]`)]
    .find((line) => line.dataset.name === name)?.getAttribute("d").match(/[MLV]/g).length"""
"""Points of a line as it is drawn."""


def _drawn_points(page, slot: str, name: str) -> int:
    """Points of a line of a chart, once it is drawn."""
    expect(page.locator(f"[data-slot={slot}][data-drawn]")).to_be_visible()
    return page.evaluate(POINTS_OF, [slot, name])


def _wait_for_points(page, name: str, points: int) -> None:
    """Waits until a line of the losses has so many."""
    page.wait_for_function(f"(asked) => ({POINTS_OF})(asked) === {points}", arg=["loss-chart", name])


def red_picture() -> bytes:
    """A red picture of 2 x 2 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + bytes([200, 30, 30]) * 2 for _ in range(2)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
