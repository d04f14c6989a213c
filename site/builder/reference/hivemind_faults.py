"""Faults of hivemind that the project meets, each with the test that holds it."""

from __future__ import annotations

from dataclasses import dataclass

from builder.folders import ROOT
from builder.markup.tables import code
from builder.reference.claims import test_link


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong in hivemind, and what happens here instead."""

    happens: str
    where: str
    """File in hivemind's package, and what to look for there."""
    here: str
    tests: tuple[str, ...]
    """`FILE::TEST` below tests/."""


SECTIONS: dict[str, tuple[Fault, ...]] = {
    "Averages that fail silently": (
        Fault(
            happens="With numpy 2.4 or newer, no 8-bit tensor can be read. A round still reports `group of 2`, but "
            "each peer keeps its own tensors.",
            where="`compression/quantization.py`: `np.frombuffer`",
            here="numpy stays below 2.4, gradients have a codec of this project, and a peer that cannot read its own "
            "messages does not start.",
            tests=(
                "training/swarm/test_averaging.py::test_a_codec_that_cannot_read_what_it_wrote_is_not_taken_for_averaging",
                "training/swarm/test_averaging.py::test_the_self_test_refuses_a_codec_that_cannot_read_what_it_wrote",
            ),
        ),
        Fault(
            happens="The uniform 8-bit codec errs by a third on gradients with heavy tails.",
            where="`compression/quantization.py`: six standard deviations",
            here="Block-wise 8 bit errs by 2 %.",
            tests=("training/swarm/test_codecs.py::test_hiveminds_uniform_codec_is_lost_on_heavy_tails",),
        ),
        Fault(
            happens="A peer that dies in the middle leaves the others with averages that differ, and nothing to "
            "average again.",
            where="`averaging/averager.py`: `_run_allreduce_inplace_` adds what arrives at once",
            here="Tensors change only when the group agrees that the average counts; otherwise the rest repeats it.",
            tests=(
                "training/swarm/test_averaging.py::test_the_survivors_of_a_death_in_mid_average_average_again",
                "training/swarm/test_agreement.py",
            ),
        ),
        Fault(
            happens="A broken connection cancels its handler, and with it the mean that all other senders wait for.",
            where="`averaging/partition.py`: `accumulate_part`",
            here="The mean is computed in a task that no handler can cancel.",
            tests=(
                "training/swarm/test_allreduce.py::test_a_sender_that_dies_while_its_part_is_averaged_takes_no_other_down",
            ),
        ),
        Fault(
            happens="A handler that has written its last message ends the stream, and the daemon throws away what it "
            "has not passed on. On a busy machine one stream in some hundred lacks its end.",
            where="`p2p/p2p_daemon.py`: `closing(writer)`",
            here="It waits until its reader, who knows how much is to come, hangs up.",
            tests=("training/swarm/test_streams.py",),
        ),
        Fault(
            happens="Any weight and any tensor from the wire is used, even if it is not finite: one number spoils the "
            "model of all peers.",
            where="`averaging/allreduce.py`: `rpc_aggregate_part`",
            here="A part that is not finite is left out, and its sender gets the others' mean.",
            tests=(
                "training/swarm/test_allreduce.py::test_a_part_that_is_not_finite_is_left_out_and_its_sender_gets_the_mean",
                "training/swarm/test_allreduce.py::test_a_weight_that_is_none_is_refused_with_its_part",
            ),
        ),
        Fault(
            happens="If averaging fails, a peer steps with its own gradients, or with zeros; only its log says so.",
            where="`optim/optimizer.py`: `Proceeding with local gradients`",
            here="Each epoch has a report: which peers sent, the share of the peer's own gradient, and the reason. A "
            "peer that drifts takes the others' weights.",
            tests=(
                "training/swarm/test_waiting.py::test_a_peer_stops_waiting_when_the_others_have_gone_on_or_are_gone",
                "training/swarm/test_averaging.py::test_peers_that_train_together_average_gradients_and_parameters",
            ),
        ),
        Fault(
            happens="Micro-batches of uneven size are divided by their number: the mean is too small or too large.",
            where="`optim/grad_averager.py`: `load_accumulators_into_averager_`",
            here="The sum is divided by the samples.",
            tests=("training/swarm/test_matchmaking.py::test_micro_batches_of_uneven_size_count_by_their_samples",),
        ),
    ),
    "Groups": (
        Fault(
            happens="Two peers that ask each other to lead at the same moment both wait until they give up. One of "
            "them then averages with the other, which is not in the group.",
            where="`averaging/matchmaking.py`: `lock_request_join_group`",
            here="A request that would be rejected is rejected at once, and so is one that has waited long.",
            tests=(
                "training/swarm/test_matchmaking.py::test_two_peers_that_ask_each_other_at_once_are_in_one_group_of_which_both_know",
                "training/swarm/test_matchmaking.py::test_a_peer_that_has_waited_long_for_an_answer_may_have_given_up",
            ),
        ),
        Fault(
            happens="A peer that gets a part for a group that it does not know gives no answer until it joins one.",
            where="`averaging/averager.py`: `_pending_groups_registered`",
            here="It answers BAD_GROUP_ID at once, and the others go on without it.",
            tests=(
                "training/swarm/test_matchmaking.py::test_a_peer_that_looks_for_a_group_says_at_once_that_it_is_in_no_other",
            ),
        ),
        Fault(
            happens="A group waits for the end of its window and leaves out a peer that computes for longer.",
            where="`averaging/matchmaking.py`: `leader_assemble_group`",
            here="A group starts when all peers that are known to train have come; a newcomer tells how many it knows.",
            tests=("training/swarm/test_matchmaking.py::test_a_group_waits_for_one_more_if_a_newcomer_knows_of_more",),
        ),
        Fault(
            happens="A round of parameters that finds no group keeps a peer from the next average.",
            where="`optim/state_averager.py`: `wait_for_delayed_updates`",
            here="Such a round is given up before the next average.",
            tests=(
                "training/swarm/test_updates.py::test_a_round_of_parameters_without_a_group_ends_before_the_next_gradients",
            ),
        ),
        Fault(
            happens="A peer that accepts no connections reads no answer before it has sent everything, even if the "
            "reducer is gone.",
            where="`averaging/allreduce.py`: `should_delay_results`",
            here="It notices at once.",
            tests=(
                "training/swarm/test_allreduce.py::test_a_peer_in_client_mode_hears_at_once_that_a_reducer_is_gone",
            ),
        ),
        Fault(
            happens="A peer that reads the others' progress some seconds after its start considers itself behind if "
            "they have ended the epoch meanwhile: it discards its gradients and downloads the state.",
            where="`optim/optimizer.py`: `_should_check_synchronization_on_update`",
            here="What it reads when it starts counts as its first look in the epoch.",
            tests=(
                "training/swarm/test_progress.py::test_a_peer_is_not_behind_those_who_have_just_ended_the_epoch_that_it_began_with_them",
            ),
        ),
        Fault(
            happens="A peer that finds one other record, but not its own, considers itself alone.",
            where="`optim/progress_tracker.py`: `_parse_swarm_progress_data`",
            here="It counts itself as well.",
            tests=("training/swarm/test_progress.py::test_a_peer_that_finds_one_other_and_not_itself_is_not_alone",),
        ),
    ),
    "Settings and state": (
        Fault(
            happens="While a delayed update is under way, a newcomer gets weights without it, labelled as those of the "
            "epoch that begins with it.",
            where="`optim/state_averager.py`: `get_current_state`",
            here="A state says how many updates are in it; a peer that loads an older one gets the others' weights in "
            "the next round of parameters.",
            tests=("training/swarm/test_download.py::test_download",),
        ),
        Fault(
            happens="With a node in client mode, the optimizer fails at its first epoch: a condition is inverted.",
            where="`optim/optimizer.py`: `client_mode`",
            here="The mode is always passed on.",
            tests=(
                "training/swarm/test_averaging.py::test_a_newcomer_whose_download_outlasts_epochs_takes_part_and_gets_the_weights_of_all",
            ),
        ),
        Fault(
            happens="`averager_opts` do not reach the gradients' averager, though its documentation says so.",
            where="`optim/optimizer.py`: `_make_gradient_averager`",
            here="Both averagers get their settings from one place.",
            tests=(
                "training/swarm/test_averaging.py::test_a_newcomer_whose_download_outlasts_epochs_takes_part_and_gets_the_weights_of_all",
            ),
        ),
        Fault(
            happens="Without a timeout, a download from a stalled peer never ends, and errors are retried for ever.",
            where="`averaging/averager.py`: `_load_state_from_peers`",
            here="Every wait has an end, and a state that was cut short is not taken.",
            tests=(
                "training/swarm/test_download.py::test_download",
                "training/swarm/test_download.py::test_a_state_that_was_cut_short_is_not_taken",
            ),
        ),
        Fault(
            happens="A lossy codec for the state also rounds the codes of an 8-bit optimizer, as if they were numbers.",
            where="`compression/quantization.py`: `BlockwiseQuantization`",
            here="They are sent unchanged; this project's codec refuses them.",
            tests=("training/swarm/test_codecs.py::test_an_optimizers_codes_are_refused_rather_than_rounded",),
        ),
    ),
    "Processes": (
        Fault(
            happens="A program with an averager ignores Ctrl-C.",
            where="`averaging/averager.py`: `SIG_IGN` in the parent",
            here="Ctrl-C asks the program to stop; a second one ends it.",
            tests=(
                "training/processes/test_role.py::test_ctrl_c_asks_the_role_and_spares_the_children_until_it_returns",
                "training/processes/test_role.py::test_a_second_ctrl_c_ends_it_at_once",
            ),
        ),
        Fault(
            happens="If the program is killed, its node and averagers stay.",
            where="`p2p/p2p_daemon.py`, `averaging/averager.py`",
            here="They end with it.",
            tests=("training/processes/test_role.py::test_children_and_temporary_files_go_when_the_role_is_killed",),
        ),
        Fault(
            happens="An averager is forked. If its parent has computed with several threads, it waits for threads that "
            "a fork does not copy.",
            where="`averaging/averager.py`: `mp.Process`",
            here="The child computes with one thread.",
            tests=(
                "training/processes/test_role.py::test_a_forked_child_computes_though_its_parent_has_done_so_with_threads",
            ),
        ),
    ),
}
"""Found by reading the release that is pinned, and by running it."""


def upstream_lists() -> str:
    """Markdown: a list a kind of fault.

    Raises:
        ValueError: If a test that is named does not exist.
    """
    return "\n\n".join(
        f"## {title}\n\n" + "\n".join(f"- {_told(fault)}" for fault in faults) for title, faults in SECTIONS.items()
    )


def _told(fault: Fault) -> str:
    tests = ", ".join(map(test_link, fault.tests))
    where = code(fault.where).replace("_", "&#95;")  # which Markdown takes for emphasis around a name
    words = f"**{code(fault.happens)}** {code(fault.here)}"
    return f"{words}<br><small>In {where}. Held by {tests}.</small>"


def hivemind_version() -> str:
    """Of the release that the project pins."""
    lines = (ROOT / "constraints" / "training.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("hivemind==") for line in lines if line.startswith("hivemind=="))
