"""The site's claims, each with its tests and measurements. The build fails if one that is named does not exist."""

from __future__ import annotations

import ast
import html
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from builder.folders import PAGES, RESULTS, ROOT
from builder.markup.links import site_link
from builder.markup.tables import stacked


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of the site, and what shows that it is true."""

    page: str
    """The page that makes the claim, as a path below site/."""
    sentence: str
    tests: tuple[str, ...] = ()
    """`FILE::TEST` or `FILE`, below tests/."""
    records: tuple[str, ...] = ()
    """Names of files in benchmarks/results, without `.json`."""
    not_known: str = ""
    """The part of the claim that neither tests nor records show."""


CLAIMS = (
    Claim(
        page="challenges/security.md",
        sentence="The weights that one peer sends are taken only if most of the others have them.",
        tests=("training/swarm/test_witnesses.py", "training/swarm/test_download.py::test_download"),
        not_known="A change of all weights by a few percent is not noticed.",
    ),
    Claim(
        page="challenges/security.md",
        sentence="A peer that spoils averages is left out after the second time, for growing times.",
        tests=(
            "training/swarm/test_standing.py",
            "training/swarm/test_rounds.py",
            "training/swarm/test_agreement.py",
            "training/swarm/test_matchmaking.py",
            "training/swarm/test_gathering.py",
        ),
    ),
    Claim(
        page="challenges/security.md",
        sentence="An average waits for a peer that is much slower than the others no longer than one is worth.",
        tests=("training/swarm/test_patience.py", "training/swarm/test_standing.py"),
        not_known="In a pair nobody can tell who is slow: there only the time-outs of silent peers count.",
    ),
    Claim(
        page="challenges/security.md",
        sentence="A flood of large records does not hide the peers of a run.",
        tests=("training/swarm/test_stored.py",),
        not_known="A flood of small ones, signed with thousands of keys, may do so in a run without tickets.",
    ),
    Claim(
        page="challenges/security.md",
        sentence="In each epoch, a volunteer is credited with twice the samples of the epoch at most.",
        tests=("training/publish/test_history.py",),
        not_known="Within this limit, what a program says counts.",
    ),
    Claim(
        page="challenges/security.md",
        sentence="A slow peer that costs the others more time than it brings samples is left out.",
        tests=("training/swarm/test_standing.py",),
        not_known="What it brings is what it says, up to twice an average peer's work.",
    ),
    Claim(
        page="challenges/security.md",
        sentence="One peer among several cannot end the run by claiming to be at its last epoch.",
        tests=("training/swarm/test_progress.py", "training/volunteer/test_arrival.py"),
        not_known="One that claims to have ended an epoch ends it for the others too early.",
    ),
    Claim(
        page="index.md",
        sentence="Volunteers average their gradients directly with each other, compressed to 8 bits.",
        tests=("training/swarm/test_averaging.py", "training/swarm/test_codecs.py"),
        records=("codecs",),
    ),
    Claim(
        page="index.md",
        sentence="The run continues when a volunteer leaves; a newcomer downloads the current weights from a peer.",
        tests=(
            "training/roles/test_peer.py",
            "training/swarm/test_download.py",
            "training/swarm/test_agreement.py",
            "training/swarm/test_allreduce.py",
            "training/swarm/test_averaging.py::test_the_survivors_of_a_death_in_mid_average_average_again",
        ),
        records=("swarm",),
    ),
    Claim(
        page="index.md",
        sentence="The home page shows the live run, or the recorded run if none is live.",
        tests=("site/test_dashboard_page.py::test_home_shows_the_run_at_a_glance", "site/test_trainers_run.py"),
    ),
    Claim(
        page="calculator.md",
        sentence="On training steps of real model code, the calculator's figures are exact to the byte.",
        tests=("calculator/test_reference_steps.py", "calculator/test_saved_activations.py"),
        records=("memory_accuracy",),
        not_known="The steps used tensors without content; how a GPU's memory fragments was not measured.",
    ),
    Claim(
        page="calculator.md",
        sentence="If the optimizer is offloaded, the predicted host memory is within 3 % of the measured one.",
        tests=("calculator/test_memory_measured.py",),
        records=("memory_on_host",),
    ),
    Claim(
        page="calculator.md",
        sentence="The calculator page gives the same answers as the calculator's command.",
        tests=("site/test_calculator_page.py",),
        records=("page", "estimate_speed"),
    ),
    Claim(
        page="join.md",
        sentence="Every command that the join page can show runs.",
        tests=(
            "site/test_join_commands.py::test_every_command_runs_dry",
            "site/test_join_page.py::test_every_choice_gives_the_builders_command_or_its_reason",
        ),
        not_known="Tested on Linux, with a bootstrap peer and shards of random codes; not on macOS, in WSL or with a "
        "GPU.",
    ),
    Claim(
        page="join.md",
        sentence="The whole demo, with three volunteers, runs in 4 GB of memory.",
        tests=("training/demo/test_run.py::test_the_whole_demo_has_run_in_the_memory_that_the_pages_name",),
        records=("demo_memory",),
        not_known="Measured on Linux with the build of PyTorch for CPUs; a GPU's driver takes memory of its own.",
    ),
    Claim(
        page="join.md",
        sentence="The command's micro-batch is the largest power of two that fits in memory with a margin.",
        tests=("site/test_join_commands.py::test_the_micro_batch_is_the_plans", "training/compute/test_plan.py"),
    ),
    Claim(
        page="join.md",
        sentence="The traffic shown for an epoch follows from the size of the compressed gradients.",
        tests=("site/test_join_commands.py::test_bytes_on_the_way_are_those_of_the_codec",),
        records=("swarm",),
    ),
    Claim(
        page="join.md",
        sentence="The table of messages lists every message with which a command can end.",
        tests=(
            "site/test_join_page.py::test_no_message_is_missing",
            "site/test_join_page.py::test_what_the_program_prints_is_in_the_table",
        ),
    ),
    Claim(
        page="join.md",
        sentence="Ctrl-C stops a volunteer's program, which leaves no processes and no temporary files behind.",
        tests=("training/processes/test_role.py", "training/roles/test_peer.py"),
    ),
    Claim(
        page="dashboard.md",
        sentence="If the monitor does not answer, the dashboard says so and keeps the last numbers; it invents none.",
        tests=("site/test_dashboard_page.py::test_silence_is_said_and_never_filled",),
    ),
    Claim(
        page="dashboard.md",
        sentence="The epochs, losses, volunteers and pictures that the dashboard shows are those of the run.",
        tests=("training/publish/test_history.py", "training/publish/test_live.py", "site/test_trainers_run.py"),
    ),
    Claim(
        page="challenges/communication.md",
        sentence="The figures show the same numbers in the browser as in CPython, and follow a slider as it is "
        "dragged.",
        tests=("site/test_challenge_pages.py::test_every_figure_answers_the_same_in_the_browser",),
        records=("figures",),
    ),
    Claim(
        page="challenges/communication.md",
        sentence="In an all-reduce of n peers, in a ring or directly, each peer sends and receives 2 (n - 1) / n "
        "times the size of the vector, and all get the sum.",
        tests=(
            "calculator/figures/test_all_reduce.py",
            "calculator/figures/test_models.py::test_traffic_of_a_peer_is_that_of_the_run_designer",
        ),
    ),
    Claim(
        page="challenges/communication.md",
        sentence="The savings through larger batches, shared layers and fewer bits multiply; the figure counts as "
        "many parameters as the calculator.",
        tests=(
            "calculator/figures/test_models.py::test_the_factors_multiply_to_the_whole",
            "calculator/figures/test_models.py::test_gradients_are_as_many_as_the_estimate_counts",
        ),
        not_known="The figure assumes full use of each link; the page on performance shows what swarms reach.",
    ),
    Claim(
        page="challenges/uneven-devices.md",
        sentence="The averaged gradient is exactly the gradient of one large batch.",
        tests=("training/swarm/test_same_run.py", "training/compute/test_micro_batches.py"),
        records=("same_run", "same_run_text", "same_run_adapters", "swarm_speeds"),
        not_known="Gradients in 32 bit differ only by the order of additions; with gradients in 8 bit, the measured "
        "loss differs by up to 0.1 %.",
    ),
    Claim(
        page="challenges/uneven-devices.md",
        sentence="An average weighted by samples is the gradient of the large batch, and no peer waits for the "
        "slowest.",
        tests=(
            "calculator/figures/test_averaging.py::test_weighted_accumulation_is_the_gradient_of_the_large_batch",
            "calculator/figures/test_models.py::test_counting_samples_equals_a_simulation_event_by_event",
        ),
    ),
    Claim(
        page="challenges/memory.md",
        sentence="The figure quantizes values as bitsandbytes does; an outlier makes only its own block less precise.",
        tests=("calculator/figures/test_eight_bit.py", "training/optim/test_blockwise.py"),
    ),
    Claim(
        page="challenges/data-streaming.md",
        sentence="The figure's buffer shuffles samples as that of `datasets` does.",
        tests=("calculator/figures/test_models.py::test_buffers_mix_as_those_of_datasets",),
        not_known="The paper on the 2021 run (section 3.2) says that codes take 18 times less bandwidth; we did not "
        "measure it.",
    ),
    Claim(
        page="challenges/data-streaming.md",
        sentence="A volunteer who is killed at any sample goes on with the next one after a restart: nothing is "
        "repeated, and nothing is left out.",
        tests=(
            "training/data/test_stream.py::test_a_peer_killed_at_any_sample_repeats_and_skips_nothing",
            "training/volunteer/test_samples.py::test_with_whole_batches_nothing_is_repeated_or_skipped",
            "training/data/test_order.py::test_a_place_is_kept_in_less_than_64_bytes",
        ),
    ),
    Claim(
        page="challenges/data-streaming.md",
        sentence="The page shows how this trainer's stream does beside `datasets` and the 2021 pipeline.",
        records=("streaming",),
        not_known="Random codes and captions of random words; a simulated link. Other work ran on the machine.",
    ),
    Claim(
        page="challenges/data-streaming.md",
        sentence="The first batch needs one row group. While the server does not answer, training goes on with samples "
        "from the cache; damaged row groups are left out and counted.",
        tests=(
            "training/data/test_stream.py::test_the_first_batch_needs_one_row_group",
            "training/data/test_stream.py::test_training_goes_on_while_the_server_is_away",
            "training/data/test_stream.py::test_damage_is_skipped_and_counted",
        ),
    ),
    Claim(
        page="challenges/data-streaming.md",
        sentence="What a server claims to send is compared with bounds before memory is allocated for it.",
        tests=(
            "training/data/test_blocks.py::test_a_page_that_would_inflate_is_refused_before_it_does",
            "training/data/test_pages.py",
            "training/data/test_stream.py::test_a_file_of_ten_terabytes_is_not_believed",
        ),
    ),
    Claim(
        page="join.md",
        sentence="At most as much of the shards is kept on disk as `--cache-size` says; what was used least recently "
        "goes first.",
        tests=(
            "training/data/test_stream.py::test_the_disk_is_bounded_by_the_caches_limit",
            "training/data/test_stream.py::test_the_cache_lets_go_of_what_was_used_least_recently",
        ),
    ),
    Claim(
        page="challenges/security.md",
        sentence="The figure computes CenteredClip as published: in one iteration, each gradient moves the result by "
        "at most tau / n.",
        tests=("calculator/figures/test_averaging.py",),
    ),
    Claim(
        page="challenges/security.md",
        sentence="With CenteredClip, a minority of hostile peers in a group can neither steer nor stop the training, "
        "also if tensors travel in 8 bit.",
        tests=(
            "training/swarm/test_clipping.py",
            "training/swarm/test_reducer.py",
            "training/swarm/test_gradients.py",
            "training/swarm/test_hostile.py",
        ),
        records=("byzantine",),
        not_known="The measured model is small; real peers were tried in a group of four, for single averages.",
    ),
    Claim(
        page="challenges/security.md",
        sentence="A peer that answers with wrong averages is named by all members of its group, by proof that each "
        "verifies; an accusation without proof has no effect.",
        tests=(
            "training/swarm/test_auditing.py",
            "training/swarm/test_auditor.py",
            "training/swarm/test_checks.py",
            "training/swarm/test_in_process.py",
            "training/swarm/test_standing.py",
        ),
        records=("audits", "byzantine"),
        not_known="Real peers were tried in groups of three and four on one machine. Peers on processors that round "
        "otherwise were not tried; the limit is far above such differences.",
    ),
    Claim(
        page="challenges/security.md",
        sentence="A validator finds a peer that does not compute the samples that it declares, and the membership "
        "server suspends it; a moderator sees the checks.",
        tests=(
            "training/volunteer/test_validator.py",
            "training/roles/test_checks_of_work.py",
            "training/trust/test_reports.py",
        ),
        records=("work_checks",),
        not_known="The measured run is small and healthy. Where gradients change much from update to update, a check "
        "says little.",
    ),
    Claim(
        page="challenges/security.md",
        sentence="Each attack on a ticket fails at the check that the figure names; hivemind refuses the same "
        "requests.",
        tests=("calculator/figures/test_admission.py",),
    ),
    Claim(
        page="challenges/security.md",
        sentence="The membership server gives nobody a ticket for another's peer, run or lineage, and none without a "
        "valid credential; a ticket that was changed anywhere is none.",
        tests=("training/trust/test_ticket.py", "training/trust/test_server.py", "training/trust/test_keys.py"),
    ),
    Claim(
        page="challenges/security.md",
        sentence="In a run for members, whoever is uninvited gets no weights, is in no group, and nobody believes what "
        "they announce; a ban reaches all peers within ten seconds, and ends the averages and downloads that run.",
        tests=(
            "training/swarm/test_members_only.py",
            "training/swarm/test_bans.py",
            "training/swarm/test_doors.py",
            "training/swarm/test_admission.py",
            "training/roles/test_membership.py",
        ),
        not_known="A stranger's node may withhold records that others have stored with it.",
    ),
    Claim(
        page="operate.md",
        sentence="A banned member's program hears of it within ten seconds, and ends; while the membership server is "
        "away, members go on.",
        tests=("training/volunteer/test_membership.py", "training/roles/test_membership.py"),
    ),
    Claim(
        page="operate.md",
        sentence="The membership server neither keeps nor logs a Hugging Face token, and sends it to the Hub only.",
        tests=("training/trust/test_server.py::test_the_token_goes_to_the_hub_only_and_is_nowhere_kept",),
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="Every command on this site accepts the flags that are shown with it.",
        tests=("site/test_commands.py",),
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="The command prepare omits unsuitable pairs of picture and caption, and says how many and why.",
        tests=("training/data/test_prepare.py",),
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="Shards of text hold every usable document once, packed into blocks that say where documents begin, "
        "whenever prepare was killed and started again; its memory does not grow with the set.",
        tests=("training/data/test_prepare_text.py", "training/data/test_packing.py"),
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="The page that the command data writes shows pictures with their own captions, and counts that are "
        "those of the set; what strangers wrote is never taken for markup.",
        tests=("training/data/test_show.py",),
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="prepare --push goes on wherever it was killed, and a set that is not whole at its target is read by "
        "nobody.",
        tests=("training/publish/test_sets.py",),
        not_known="Tried with a small server that speaks as much of S3 as an upload needs, not with Amazon's.",
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="Pictures of a list are never fetched from inside the network, nor from hosts that do not want it; "
        "a small file of a huge picture is not decoded.",
        tests=(
            "training/data/test_fetch.py",
            "training/data/test_prepare.py::test_a_small_file_of_a_huge_picture_is_left_out_unread",
        ),
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="The recipe that the run designer offers for download starts a run without any change.",
        tests=(
            "site/test_run_designer.py::test_a_downloaded_recipe_starts_a_run",
            "training/simulate/test_designer.py",
        ),
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="The memory and the micro-batch that the run designer shows are those of the command plan, for models "
        "of pictures and of text; a language model takes the learning rate of a published one with as many weights.",
        tests=(
            "training/simulate/test_designer.py::test_memory_and_micro_batch_are_the_plans",
            "training/simulate/test_designer.py"
            "::test_language_models_have_as_many_weights_as_those_whose_learning_rate_they_take",
        ),
        not_known="No language model of these sizes was trained with a designed recipe.",
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="The run designer predicts what the simulator reaches, and the simulator is within 15 % of measured "
        "swarms.",
        tests=(
            "training/simulate/test_simulation.py::test_measured_swarms_are_predicted_within_the_bound",
            "training/simulate/test_designer.py::test_a_designed_run_reaches_in_simulation_what_was_promised",
        ),
        records=("simulation", "swarm", "swarm_awaited", "swarm_speeds", "swarm_minute", "swarm_local"),
        not_known="The measured swarms had two to four peers on links of 100 Mbit/s; no swarm of hundreds was "
        "measured.",
    ),
    Claim(
        page="make-your-own-run.md",
        sentence="With several thousand peers, the record of their progress is too long for one answer of the DHT.",
        tests=("training/simulate/test_closed_form.py::test_a_peers_progress_takes_as_much_of_the_record",),
        records=("progress_record",),
    ),
    Claim(
        page="recipe.md",
        sentence="The recipe of the 2021 run has the settings that the paper states.",
        tests=("test_recipes.py::test_the_2021_recipe_says_what_the_paper_says",),
    ),
    Claim(
        page="about-2021.md",
        sentence="With the same weights, our model computes the same as dalle-pytorch, the code of the 2021 run.",
        tests=("training/model/test_parity.py", "training/model/test_vqgan.py"),
        records=("model_step", "sampling"),
        not_known="Compared with random weights, because we do not have the weights of the 2021 run.",
    ),
    Claim(
        page="about-2021.md",
        sentence="The 8-bit LAMB optimizer computes what its papers describe.",
        tests=("training/optim/test_lamb.py", "training/optim/test_blockwise.py"),
        records=("optimizer_step",),
    ),
    Claim(
        page="glossary.md",
        sentence="The explanation of a term opens by mouse, keyboard and touch; without JavaScript, the term is a "
        "link to the glossary.",
        tests=(
            "site/test_whole_site.py::test_words_open_by_keyboard_and_pointer",
            "site/test_whole_site.py::test_words_open_by_touch_and_lead_on_when_tapped_again",
            "site/test_whole_site.py::test_words_of_the_glossary_explain_themselves",
        ),
    ),
    Claim(
        page="results.md",
        sentence="The page shows the recorded pictures and verdicts, including the wrong pictures.",
        tests=("site/test_results_page.py",),
    ),
    Claim(
        page="results.md",
        sentence="The rule that judges pictures accepts right ones and rejects wrong ones.",
        tests=("training/generate/test_judge.py",),
    ),
    Claim(
        page="results.md",
        sentence="The shares of right pictures are those of 400 pictures for each kind of caption.",
        not_known="The shares were copied by hand from the output of evaluate after one run; the demo's test checks "
        "only that the loss falls.",
        tests=("training/demo/test_whole_run.py", "training/generate/test_evaluate.py"),
    ),
    Claim(
        page="reference/performance.md",
        sentence="Every number on the page is from the recorded files.",
        tests=("site/test_reference_pages.py::test_performance_tables_are_the_records",),
        not_known="The times were measured on a shared machine with two cores.",
    ),
    Claim(
        page="index.md",
        sentence="The site requests nothing from other origins, and works without a network after a visit.",
        tests=(
            "site/test_built_site.py::test_nothing_is_asked_of_another_origin",
            "site/test_calculator_page.py",
        ),
    ),
    Claim(
        page="index.md",
        sentence="Every page can be used with a keyboard and a screen reader, at a width of 360 pixels, in light and "
        "dark colours.",
        tests=("site/test_every_page.py::test_small_still_accessible_and_not_too_wide",),
        records=("lighthouse",),
        not_known="Checked by axe-core and Lighthouse, which find many faults but not all; no person with a "
        "disability has tested the site.",
    ),
)
"""The table shows them in this order."""


def claims_table() -> str:
    """Markdown: for each page a table of its claims, with the tests and records of each.

    Raises:
        ValueError: If a test, a record or a page that is named does not exist.
    """
    titles = _titles()
    parts = []
    for page in dict.fromkeys(claim.page for claim in CLAIMS):
        rows = [_row(claim) for claim in CLAIMS if claim.page == page]
        address = page if not page.startswith("reference/") else page.removeprefix("reference/")
        link = address if page.startswith("reference/") else f"../{page}"
        parts.append(
            f"## [{titles[page]}]({link}) {{ #{Path(page).stem} }}\n\n"
            + stacked(f"{titles[page]}: claims", ("Claim", "Test or measurement", "Not known"), rows)
        )
    return "\n\n".join(parts)


def _row(claim: Claim) -> tuple[str, str, str]:
    evidence = [test_link(name) for name in claim.tests] + [_record_link(name) for name in claim.records]
    return html.escape(claim.sentence), "<br>".join(evidence), html.escape(claim.not_known)


def test_link(name: str) -> str:
    """HTML: the name of a test, after a check that the test exists.

    Args:
        name: `FILE::TEST` below tests/, or a whole file.

    Raises:
        ValueError: If there is no such test.
    """
    file, _, test = name.partition("::")
    path = ROOT / "tests" / file
    if not path.is_file() or (test and test not in _tests_of(path)):
        raise ValueError(f"A page names the test tests/{name}, which does not exist.")
    # Without these places to break, a long name would make the table wider than a phone.
    breakable = re.sub("([/_])", r"\1<wbr>", f"tests/{name}")
    return f"<code>{breakable.replace('::', '</code> <code>')}</code>"


def _record_link(name: str) -> str:
    if not (RESULTS / f"{name}.json").is_file():
        raise ValueError(f"A claim names the record benchmarks/results/{name}.json, which does not exist.")
    address = f"{site_link('reference/performance/')}#{name.replace('_', '-')}"
    return f'<a href="{address}">measured: {name.replace("_", " ")}</a>'


@cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _titles() -> dict[str, str]:
    """Title of each page that makes a claim."""
    found = {}
    for page in {claim.page for claim in CLAIMS}:
        lines = (PAGES / page).read_text(encoding="utf-8").splitlines()
        found[page] = next(line.removeprefix("title: ") for line in lines if line.startswith("title: "))
    return found
