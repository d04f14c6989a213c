"""Faults of hivemind that concern this project, each with the tests of what this project does instead."""

from __future__ import annotations

from dataclasses import dataclass

from builder.folders import ROOT
from builder.markup.tables import code
from builder.reference.claims import test_link


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of hivemind, and what this project does instead."""

    happens: str
    """What hivemind does, as a sentence."""
    where: str
    """File in hivemind's package, and words to search for in it. A test looks them up in the installed release."""
    here: str
    """What this project does, as a sentence."""
    tests: tuple[str, ...]
    """`FILE::TEST` below tests/."""


SECTIONS: dict[str, tuple[Fault, ...]] = {
    "Averages that fail silently": (
        Fault(
            happens="With numpy 2.4 or newer, peers cannot read tensors in 8 bit. A round still reports `group of 2`, "
            "but each peer keeps its own tensors.",
            where="`compression/quantization.py`: `np.frombuffer`",
            here="numpy is pinned below 2.4, gradients use a codec of this project, and a peer that cannot read its "
            "own messages does not start.",
            tests=(
                "training/swarm/test_averaging.py::test_a_codec_that_cannot_read_what_it_wrote_is_not_taken_for_averaging",
                "training/swarm/test_averaging.py::test_the_self_test_refuses_a_codec_that_cannot_read_what_it_wrote",
            ),
        ),
        Fault(
            happens="PowerSGD makes a direction of the rounding errors left of a column that others add up to. "
            "It is not orthogonal to these, so a gradient of low rank arrives wrong by most of its length. Columns "
            "shorter than 1e-8 count as zeros, and a direction of zeros stays one.",
            where="`utils/math.py`: `eps: float = 1e-8`",
            here="Such a column becomes zeros, whatever its length; a direction that became zero is kept as it was.",
            tests=(
                "training/swarm/test_powersgd.py::test_gradients_of_a_lower_rank_are_averaged_exactly",
                "training/swarm/test_powersgd.py::test_small_gradients_are_averaged_like_large_ones",
                "training/swarm/test_powersgd.py::test_gradients_that_were_zero_once_are_averaged_afterwards",
            ),
        ),
        Fault(
            happens="The uniform 8-bit codec has an error of a third on gradients with heavy tails.",
            where="`compression/quantization.py`: six standard deviations",
            here="The block-wise 8-bit codec, which this project uses, has an error of 2 %.",
            tests=("training/swarm/test_codecs.py::test_hiveminds_uniform_codec_is_lost_on_heavy_tails",),
        ),
        Fault(
            happens="If a peer dies during an average, the others end with different averages, and have overwritten "
            "the values that they would need to average again.",
            where="`averaging/averager.py`: `_run_allreduce_inplace_` adds what arrives at once",
            here="A peer changes its tensors only after the group has agreed that the average is complete. Otherwise "
            "the remaining peers average again.",
            tests=(
                "training/swarm/test_averaging.py::test_the_survivors_of_a_death_in_mid_average_average_again",
                "training/swarm/test_agreement.py",
            ),
        ),
        Fault(
            happens="If an average runs out of time while the trainer holds the tensors, the thread that waits for "
            "them takes them later and never gives them back: no later average ends, and the trainer waits for ever.",
            where="`utils/asyncio.py`: `run_in_executor`",
            here="No thread waits: an average looks whether the tensors are free, until it has them or is over.",
            tests=(
                "training/swarm/test_averager.py::test_a_trainer_that_holds_the_tensors_for_long_spoils_no_later_round",
            ),
        ),
        Fault(
            happens="A broken connection cancels its handler, and with it the computation of the mean for which all "
            "other senders wait.",
            where="`averaging/partition.py`: `accumulate_part`",
            here="The mean is computed in a task that no handler can cancel.",
            tests=(
                "training/swarm/test_allreduce.py::test_a_sender_that_dies_while_its_part_is_averaged_takes_no_other_down",
            ),
        ),
        Fault(
            happens="A handler closes the stream after it has written its last message, and the daemon discards what "
            "it has not yet passed on. On a busy machine, about one stream in a few hundred loses its end.",
            where="`p2p/p2p_daemon.py`: `closing(writer)`",
            here="The handler waits until the reader, which knows the length of the message, closes the stream.",
            tests=("training/swarm/test_streams.py",),
        ),
        Fault(
            happens="A peer uses every weight and every tensor that it receives, even if it is not finite. One such "
            "number spoils the model of all peers.",
            where="`averaging/allreduce.py`: `rpc_aggregate_part`",
            here="A part that is not finite is omitted from the mean, and its sender gets the mean of the others.",
            tests=(
                "training/swarm/test_allreduce.py::test_a_part_that_is_not_finite_is_left_out_and_its_sender_gets_the_mean",
                "training/swarm/test_allreduce.py::test_a_weight_that_is_none_is_refused_with_its_part",
            ),
        ),
        Fault(
            happens="If averaging fails, a peer makes its update with its own gradients, or with zeros; only its log "
            "says so.",
            where="`optim/optimizer.py`: `Proceeding with local gradients`",
            here="The peer reports for each epoch which peers sent gradients, the share of its own, and the reason "
            "for a failure. A peer whose weights drift takes the others' weights.",
            tests=(
                "training/swarm/test_waiting.py::test_a_peer_stops_waiting_when_the_others_have_gone_on_or_are_gone",
                "training/swarm/test_averaging.py::test_peers_that_train_together_average_gradients_and_parameters",
            ),
        ),
        Fault(
            happens="The sum of gradients is divided by the number of micro-batches; if these differ in size, the "
            "mean is too small or too large.",
            where="`optim/grad_averager.py`: `load_accumulators_into_averager_`",
            here="The sum is divided by the number of samples.",
            tests=("training/swarm/test_matchmaking.py::test_micro_batches_of_uneven_size_count_by_their_samples",),
        ),
    ),
    "Groups": (
        Fault(
            happens="If one peer claims a link of next to nothing, the solver that divides the tensors among the group "
            "fails in all of its peers, and so does each average. For some groups with slow links it finds nothing; "
            "then peers in client mode get parts, too, which nobody can fetch from them.",
            where="`averaging/load_balancing.py`: `linprog`",
            here="The parts come from a formula with exact sums, the claims have bounds, and a group of which nobody "
            "can average is refused.",
            tests=(
                "training/swarm/test_averager.py::test_a_peer_that_claims_next_to_no_link_fails_nobodys_average",
                "training/swarm/test_gathering.py::test_whatever_links_peers_claim_all_values_are_averaged_by_those_that_can",
            ),
        ),
        Fault(
            happens="A search that is cancelled just as it ends takes that for the end of a task of its own, and goes "
            "on. The group then waits for a peer whose trainer has given the round up.",
            where="`utils/asyncio.py`: `cancel_and_wait`",
            here="After a search, a peer looks whether it was cancelled meanwhile.",
            tests=(
                "training/swarm/test_matchmaking.py::test_a_search_that_is_given_up_while_its_group_begins_is_given_up",
            ),
        ),
        Fault(
            happens="A leader's search ends only when each follower has read the list of the group; one that reads "
            "nothing holds it up.",
            where="`averaging/matchmaking.py`: `current_followers.pop`",
            here="The part of the call that the search waits for ends before the list is sent.",
            tests=(
                "training/swarm/test_matchmaking.py::test_a_follower_that_reads_nothing_more_does_not_hold_up_its_leader",
            ),
        ),
        Fault(
            happens="A sender that hangs up as soon as it has all its answers may count as lost.",
            where="`averaging/allreduce.py`: `_ban_sender`",
            here="When everything is averaged, nobody counts as lost any more.",
            tests=(
                "training/swarm/test_allreduce.py::test_a_sender_that_hangs_up_as_soon_as_it_has_all_answers_is_not_lost",
            ),
        ),
        Fault(
            happens="Two peers that ask at the same moment to join each other's group both wait until they give up. "
            "One of them may then start an average with the other, which is not in its group.",
            where="`averaging/matchmaking.py`: `lock_request_join_group`",
            here="A peer rejects a request at once if it would reject it later, and also one that has waited for long.",
            tests=(
                "training/swarm/test_matchmaking.py::test_two_peers_that_ask_each_other_at_once_are_in_one_group_of_which_both_know",
                "training/swarm/test_matchmaking.py::test_a_peer_that_has_waited_long_for_an_answer_may_have_given_up",
            ),
        ),
        Fault(
            happens="A peer waits without a limit for the stream to a leader to open. Meanwhile nobody can join it.",
            where="`averaging/matchmaking.py`: `stream = await leader_stub.rpc_join_group(`",
            here="It waits as long as for an answer, and asks others first for some windows.",
            tests=("training/swarm/test_matchmaking.py::test_no_leader_is_waited_for_that_lets_no_stream_open",),
        ),
        Fault(
            happens="A leader keeps a task for each follower that it ever had, until it follows somebody itself.",
            where="`averaging/matchmaking.py`: `create_task(self.was_accepted_to_group.wait())`",
            here="These tasks end with the search.",
            tests=("training/swarm/test_matchmaking.py::test_followers_leave_no_tasks_behind",),
        ),
        Fault(
            happens="A peer that receives a part for a group that it does not know answers only when it joins a group.",
            where="`averaging/averager.py`: `_pending_groups_registered`",
            here="It answers BAD_GROUP_ID at once, and the others go on without it.",
            tests=(
                "training/swarm/test_matchmaking.py::test_a_peer_that_looks_for_a_group_says_at_once_that_it_is_in_no_other",
            ),
        ),
        Fault(
            happens="A group starts at the end of its matchmaking window, without the peers that still compute.",
            where="`averaging/matchmaking.py`: `leader_assemble_group`",
            here="A group starts when all peers that are known to train have joined it. A peer that joins says how "
            "many it knows.",
            tests=("training/swarm/test_matchmaking.py::test_a_group_waits_for_one_more_if_a_newcomer_knows_of_more",),
        ),
        Fault(
            happens="While an average of parameters finds no group, the peer cannot take part in the next average of "
            "gradients.",
            where="`optim/state_averager.py`: `wait_for_delayed_updates`",
            here="The peer gives up such an average before the next average of gradients.",
            tests=(
                "training/swarm/test_updates.py::test_a_round_of_parameters_without_a_group_ends_before_the_next_gradients",
            ),
        ),
        Fault(
            happens="A peer in client mode reads no answer before it has sent everything, even if the reducer is gone.",
            where="`averaging/allreduce.py`: `should_delay_results`",
            here="It reads while it sends, and notices at once that the reducer is gone.",
            tests=(
                "training/swarm/test_allreduce.py::test_a_peer_in_client_mode_hears_at_once_that_a_reducer_is_gone",
            ),
        ),
        Fault(
            happens="A peer that reads the others' progress some seconds after its start considers itself behind if "
            "they have ended the epoch meanwhile: it discards its gradients and downloads the state.",
            where="`optim/optimizer.py`: `_should_check_synchronization_on_update`",
            here="A peer reads the others' progress at its start, and that counts as its first look in the epoch.",
            tests=(
                "training/swarm/test_progress.py::test_a_peer_is_not_behind_those_who_have_just_ended_the_epoch_that_it_began_with_them",
            ),
        ),
        Fault(
            happens="A peer that finds the record of one other peer, but not yet its own, considers itself alone.",
            where="`optim/progress_tracker.py`: `_parse_swarm_progress_data`",
            here="It counts itself as well.",
            tests=("training/swarm/test_progress.py::test_a_peer_that_finds_one_other_and_not_itself_is_not_alone",),
        ),
    ),
    "Settings and state": (
        Fault(
            happens="While a delayed update is computed, a newcomer downloads weights without this update, labelled "
            "with the epoch that begins after it.",
            where="`optim/state_averager.py`: `get_current_state`",
            here="A state says how many updates it contains. A peer that has loaded an older one gets the others' "
            "weights with the next average of parameters.",
            tests=("training/swarm/test_download.py::test_download",),
        ),
        Fault(
            happens="If the DHT node is in client mode, the optimizer fails in its first epoch, because a condition is "
            "inverted.",
            where="`optim/optimizer.py`: `client_mode`",
            here="The mode is always given to the optimizer's averagers explicitly.",
            tests=(
                "training/swarm/test_averaging.py::test_a_newcomer_whose_download_outlasts_epochs_takes_part_and_gets_the_weights_of_all",
            ),
        ),
        Fault(
            happens="`averager_opts` are not passed to the averager of gradients, although the documentation says "
            "that they are.",
            where="`optim/optimizer.py`: `_make_gradient_averager`",
            here="Both averagers get their settings from one place.",
            tests=(
                "training/swarm/test_averaging.py::test_a_newcomer_whose_download_outlasts_epochs_takes_part_and_gets_the_weights_of_all",
            ),
        ),
        Fault(
            happens="Unless the caller gives a timeout, a download from a stalled peer never ends; after errors it is "
            "tried again for ever.",
            where="`averaging/averager.py`: `_load_state_from_peers`",
            here="Every wait has a timeout, and a peer does not use a state that is incomplete.",
            tests=(
                "training/swarm/test_download.py::test_download",
                "training/swarm/test_download.py::test_a_state_that_was_cut_short_is_not_taken",
            ),
        ),
        Fault(
            happens="A lossy codec for the state also rounds the codes of an 8-bit optimizer, as if these codes were "
            "values.",
            where="`compression/quantization.py`: `BlockwiseQuantization`",
            here="Codes are sent unchanged; this project's codec refuses to compress them.",
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
            happens="Nothing refers to the task that runs a coroutine in the node's process. While it waits for the "
            "network daemon, the garbage collector may end it, and its caller waits for ever.",
            where="`dht/dht.py`: `_run_coroutine`",
            here="The node keeps its tasks until they end.",
            tests=("training/swarm/test_node.py::test_a_coroutine_that_waits_is_not_collected_as_garbage",),
        ),
        Fault(
            happens="All forks share the locks that a process takes as it begins. If one is killed meanwhile, for "
            "example because memory ran out, each process that begins later waits for ever.",
            where="`utils/mpfuture.py`: `_initialization_lock = mp.Lock()`",
            here="Each process has its own.",
            tests=("training/swarm/test_engine.py::test_a_process_that_is_killed_as_it_begins_stops_no_later_one",),
        ),
        Fault(
            happens="If the network daemon dies, for example because memory ran out, the node's process runs on. It "
            "reaches nobody, nobody reaches it, and nothing says so.",
            where="`p2p/p2p_daemon.py`: `_read_outputs`",
            here="The node ends with its daemon, and the program begins anew.",
            tests=("training/swarm/test_node.py::test_a_node_without_its_network_daemon_is_noticed",),
        ),
        Fault(
            happens="Messages and records are unpacked before they are looked at, however deeply they are nested: "
            "1.4 kB of tuples within tuples end the process of the node that gets them.",
            where="`utils/serializer.py`: `_decode_ext_types`",
            here="What comes is unpacked to a limited depth and size, in all processes.",
            tests=(
                "training/swarm/test_bounds.py::test_what_is_malformed_too_large_or_too_deep_is_refused",
                "training/swarm/test_bounds.py::test_a_stranger_neither_ends_a_node_nor_stores_anything",
            ),
        ),
        Fault(
            happens="A node stores lists that are nested hundreds deep, and cannot pickle them. Whoever asks it for a "
            "key with one such record waits for ever: peers do not find each other.",
            where="`utils/mpfuture.py`: `_send_update`",
            here="A node stores no record that is nested more than four deep.",
            tests=(
                "training/swarm/test_bounds.py::"
                "test_nobody_hides_those_that_offer_their_state_behind_a_record_that_cannot_be_pickled",
            ),
        ),
        Fault(
            happens="A stream's message of any length is read into memory, before a handler sees who sends it, and a "
            "caller that sends nothing is waited for for ever.",
            where="`p2p/p2p_daemon.py`: `receive_raw_data`",
            here="A message has 4 MiB at most, a caller begins within 30 s, and one peer has 32 streams open at most.",
            tests=(
                "training/swarm/test_calls.py::test_a_stream_of_a_message_without_end_is_closed",
                "training/swarm/test_calls.py::test_one_peer_has_few_streams_open_and_those_that_say_nothing_are_closed",
            ),
        ),
        Fault(
            happens="If a handler ends while more than five messages of its caller wait, nobody takes them any more: "
            "the call stays in memory with them, also after the caller has hung up. A failed average ends like this.",
            where="`p2p/p2p_daemon.py`: `await requests.put(request)`",
            here="The messages that come after the answer are read and dropped, until the caller has sent all.",
            tests=("training/swarm/test_calls.py::test_calls_that_are_answered_before_they_are_read_take_no_place",),
        ),
        Fault(
            happens="If a call is given up at the moment when its answer arrives, the task that reads all answers and "
            "requests of the process ends with an error that nobody sees: no call of one message works any more.",
            where="`p2p/p2p_daemon_bindings/control.py`: `set_result(resp.callUnaryResponse.response)`",
            here="The reader goes on with the next message.",
            tests=("training/swarm/test_calls.py::test_an_answer_to_a_call_that_is_given_up_ends_no_other_call",),
        ),
        Fault(
            happens="A request that its caller gives up stays in memory for ever, and one caller may make any number.",
            where="`p2p/p2p_daemon_bindings/control.py`: `_handler_tasks.pop(call_id)`",
            here="It is forgotten when its handler ends, however that is, and one peer has 128 open at most.",
            tests=(
                "training/swarm/test_calls.py::test_requests_that_their_caller_gives_up_take_no_memory",
                "training/swarm/test_calls.py::test_one_peer_has_few_requests_open",
            ),
        ),
        Fault(
            happens="A search names any number of keys, one key a thousand times too. The answer, gigabytes for a "
            "request of 2 MiB, is built in memory before it turns out to be too long.",
            where="`dht/protocol.py`: `enumerate(map(DHTID.from_bytes, request.keys))`",
            here="A search is for four different keys at most.",
            tests=("training/swarm/test_calls.py::test_a_search_is_for_few_keys",),
        ),
        Fault(
            happens="An older record is refused, but the newer one then expires when the older one would. Whoever "
            "repeats what a peer stored before deletes what it stores now; no key is needed for that.",
            where="`utils/timed_storage.py`: `self.key_to_heap[key] = HeapEntry`",
            here="An older record changes nothing, at a node and in what a look brings.",
            tests=(
                "training/swarm/test_stored.py::test_who_repeats_an_older_record_of_a_peer_does_not_delete_its_newest",
                "training/swarm/test_stored.py::test_an_older_record_that_comes_after_a_newer_one_ends_nothing",
            ),
        ),
        Fault(
            happens="Each store leaves a note of when its record expires, for up to an hour, also if the record was "
            "refused or replaced. Whoever stores one record again and again fills a node's memory.",
            where="`utils/timed_storage.py`: `heapq.heappush`",
            here="The notes of replaced records are dropped. One store is of 256 records at most, each in another "
            "place.",
            tests=(
                "training/swarm/test_stored.py::test_a_record_that_is_renewed_again_and_again_leaves_no_notes",
                "training/swarm/test_calls.py::test_a_store_is_of_few_records",
            ),
        ),
        Fault(
            happens="Anybody may store anything in the DHT: a value in place of all peers' records, records without a "
            "signature, of any size, for years. Under keys that a peer has no schema for, it checks nothing.",
            where="`dht/schema.py`: `allow_extra_keys`",
            here="Each node stores only records that one peer has signed and that lie under its key, small ones, for "
            "an hour at most.",
            tests=(
                "training/swarm/test_bounds.py::test_other_records_are_refused",
                "training/swarm/test_bounds.py::test_a_stranger_neither_ends_a_node_nor_stores_anything",
            ),
        ),
        Fault(
            happens="Anybody may announce any peer as one that looks for a group or offers its state: the records "
            "lie under a peer id, and nobody signs them.",
            where="`averaging/key_manager.py`: `declare_averager`",
            here="Averagers announce themselves under the key that signs the record.",
            tests=("training/swarm/test_bounds.py::test_nobody_announces_another_peer",),
        ),
        Fault(
            happens="A node checks a record under the bytes that came as its key and subkey, and stores it under the "
            "number and the object that it reads from them. A record with a zero before its key passes all schemas, "
            "and its signature holds for no other node.",
            where="`dht/protocol.py`: `DHTID.from_bytes(key)`",
            here="A record counts only if its key and its subkey are written as hivemind writes them.",
            tests=(
                "training/swarm/test_bounds.py::test_other_records_are_refused",
                "training/swarm/test_bounds.py::test_a_stranger_neither_ends_a_node_nor_stores_anything",
            ),
        ),
        Fault(
            happens="A search for the latest records ends with the first answer that says to hold for ever. If an "
            "answer has a text where the largest number of its records or the time of its last one stands, the search "
            "never ends.",
            where="`dht/node.py`: `self.expiration_time >= self.sufficient_expiration_time`, "
            "`max(self.binary_value.maxsize, candidate.value.maxsize)`",
            here="An answer holds for an hour at most, and nothing of it counts but its records.",
            tests=("training/swarm/test_calls.py::test_an_answer_that_lies_hides_no_answers_of_others",),
        ),
        Fault(
            happens="A node answers a look with the records in its cache alone, if one of them expires later than all "
            "that it stores. Anybody may store there: one record hides all others of its key.",
            where="`dht/protocol.py`: `cached_item.expiration_time > maybe_item.expiration_time`",
            here="A node has nothing in its cache, and refuses what others want to store there.",
            tests=(
                "training/swarm/test_calls.py::test_nobody_puts_a_record_in_front_of_those_that_a_node_stores",
                "training/swarm/test_stored.py::test_what_a_look_brings_neither_hides_nor_crowds_what_a_node_stores",
            ),
        ),
        Fault(
            happens="A look writes what other nodes answer into what the node itself stores under the key, however "
            "much it is. The node's own answers become larger than what others read.",
            where="`dht/node.py`: `self.binary_value = candidate.value`",
            here="A look begins with a copy of what the node stores.",
            tests=(
                "training/swarm/test_stored.py::test_what_a_look_brings_neither_hides_nor_crowds_what_a_node_stores",
            ),
        ),
        Fault(
            happens="If a node refuses one of the records that another node has under a key, it drops all of them: one "
            "record hides all peers.",
            where="`dht/protocol.py`: `_validate_dictionary`",
            here="The other records count: nodes hear of bans and of lineages at different times.",
            tests=(
                "training/swarm/test_bounds.py::test_a_record_that_a_node_took_before_it_knew_better_hides_no_other",
                "training/swarm/test_members_only.py"
                "::test_a_ban_of_a_member_takes_its_records_its_states_and_its_groups",
            ),
        ),
        Fault(
            happens="A record of progress may name another peer than the one that has signed it, so one key makes any "
            "number of peers.",
            where="`optim/progress_tracker.py`: `peer_id`",
            here="A record counts only if its signer is the peer that it names.",
            tests=("training/swarm/test_bounds.py::test_nobody_speaks_for_another_peer_of_a_lineage",),
        ),
        Fault(
            happens="Before a node stores a record, it asks all nodes near the key for nodes that are nearer. Each "
            "answers with all records of the key, too. In a run of five volunteers, storing 1 kB brings 30 kB.",
            where="`dht/node.py`: `find_nearest_nodes`",
            here="A node stores where it has stored before, and searches again when nodes come or go, or after a "
            "minute.",
            tests=("training/swarm/test_node.py::test_a_store_goes_to_the_nodes_that_an_earlier_one_has_found",),
        ),
        Fault(
            happens="A search, and a store, waits three seconds for each node that it asks. In a run of five "
            "volunteers, one with a full link kept the other four from finding each other in time: they trained at "
            "three quarters of their speed.",
            where="`dht/protocol.py`: `wait_timeout`",
            here="A node that takes much longer than most is left behind, and asked again after some seconds; groups "
            "neither wait for its peer nor follow it.",
            tests=("training/swarm/test_slow_nodes.py::test_nobody_waits_for_a_node_with_a_full_link_nor_follows_it",),
        ),
        Fault(
            happens="If the program is killed, the processes of its DHT node and its averagers keep running.",
            where="`p2p/p2p_daemon.py`, `averaging/averager.py`",
            here="These processes end with the program.",
            tests=("training/processes/test_role.py::test_children_and_temporary_files_go_when_the_role_is_killed",),
        ),
        Fault(
            happens="An averager is a forked process. If its parent has computed with several threads, it can wait "
            "for ever for threads that the fork did not copy.",
            where="`averaging/averager.py`: `mp.Process`",
            here="The forked process computes with one thread.",
            tests=(
                "training/processes/test_role.py::test_a_forked_child_computes_though_its_parent_has_done_so_with_threads",
            ),
        ),
    ),
}
"""Heading -> faults. We found them by reading and running the pinned release of hivemind."""


def upstream_lists() -> str:
    """Markdown: for each heading the list of its faults.

    Raises:
        ValueError: If a test that is named does not exist.
    """
    return "\n\n".join(
        f"## {title}\n\n" + "\n".join(f"- {_list_item(fault)}" for fault in faults)
        for title, faults in SECTIONS.items()
    )


def _list_item(fault: Fault) -> str:
    tests = ", ".join(map(test_link, fault.tests))
    where = code(fault.where).replace("_", "&#95;")  # Markdown would take _name_ for emphasis
    words = f"**{code(fault.happens)}** Here: {code(fault.here)}"
    return f"{words}<br><small>In {where}. Tested by {tests}.</small>"


def hivemind_version() -> str:
    """The version of hivemind that the project pins."""
    lines = (ROOT / "constraints" / "training.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("hivemind==") for line in lines if line.startswith("hivemind=="))
