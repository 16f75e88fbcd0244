"""What happens to memberships elsewhere, what happens here, and the tests that prove it: docs/membership.md has it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """One scenario; `tests` are `file::test`, the folder `tests/` left out."""

    what: str
    here: str
    tests: tuple[str, ...]


ROWS = (
    Row(
        "an agent and its workers are killed in one go",
        "one world without them, in milliseconds; nobody waits for a time-out of a collective",
        (
            "membership/test_process.py::test_a_killed_agent_takes_its_workers_along_in_one_change",
            "membership/test_deaths.py::test_a_node_killed_with_all_its_workers_is_one_change_in_milliseconds",
            "breaks/test_hosts.py::test_a_node_is_killed_and_started_again",
        ),
    ),
    Row(
        "nodes are stopped politely, one after the other, in any order",
        "each goes alone, with exit code 0; the others keep their processes",
        (
            "agent/test_life.py::test_nodes_leave_one_at_a_time",
            "membership/test_leaving.py::test_nodes_leave_politely_in_every_order",
        ),
    ),
    Row(
        "a node is killed and started again at once, again and again, with any pause between",
        "the others never notice more than world changes; the fourth time it is held down, and comes in by itself",
        (
            "membership/test_damping.py::test_a_flapping_node_is_held_and_comes_in_by_itself_in_the_end",
            "membership/test_joining.py::test_flapping_a_node_never_disturbs_the_others",
            "membership/test_standby.py::test_a_node_that_flaps_is_held_down_and_both_services_say_it_once",
        ),
    ),
    Row(
        "workers of different nodes fail, one after the other",
        "one counter for the job; at the end of the budget the run fails with its first failure",
        (
            "membership/test_ending.py::test_the_budget_is_one_for_the_whole_job",
            "membership/test_ending.py::test_a_small_budget_is_kept",
            "cli/test_members.py::test_workers_of_different_nodes_fail_and_all_count_on_one_counter",
        ),
    ),
    Row(
        "the workers of one node fail again and again, those of others do not",
        "its new workers are kept out for a while, longer each time; who is in stays in",
        (
            "membership/test_damping.py::test_three_failures_put_a_node_in_quarantine_and_it_heals_by_itself",
            "membership/test_damping.py::test_who_is_in_stays_in",
        ),
    ),
    Row(
        "more nodes than the maximum are there when the ring is made anew",
        "the others stand by as spares in every world, and one takes over when a place is free",
        (
            "membership/test_formation.py::test_extras_are_spares_and_a_spare_takes_over",
            "cli/test_members.py::test_an_extra_node_stands_by_in_every_world_and_takes_over",
        ),
    ),
    Row(
        "nodes start staggered, more than the minimum wait",
        "training begins at the end of a bounded last call; later ones are taken in",
        (
            "membership/test_formation.py::test_the_last_call_is_bounded_and_the_option_has_its_effect",
            "membership/test_formation.py::test_staggered_nodes_all_come_in",
            "cli/test_members.py::test_nodes_that_start_staggered_wait_for_a_bounded_last_call",
        ),
    ),
    Row(
        "all nodes start in the same moment",
        "one world of all of them; launchers that submit at once make one job",
        (
            "membership/test_formation.py::test_simultaneous_starts_make_one_world_whatever_the_order_of_arrival",
            "cli/test_run.py::test_two_runs_at_the_same_time_make_one_job",
            "cli/test_members.py::test_nodes_that_start_at_once_make_one_job_and_one_world",
        ),
    ),
    Row(
        "two join at exactly the same time",
        "order is the log's, then the name's; no time is compared",
        (
            "membership/test_cases.py::test_equal_times_are_no_tie",
            "cli/test_members.py::test_clocks_that_stand_still_are_no_tie_and_no_trap",
        ),
    ),
    Row(
        "a node leaves and comes back at once, with the same name and another address",
        "it is let in at once, under its new address",
        (
            "membership/test_joining.py::test_a_dead_id_may_come_back_at_once_and_elsewhere",
            "agent/test_life.py::test_a_node_that_comes_back",
        ),
    ),
    Row(
        "another name at an address that somebody had",
        "whoever had it is out at once; two names never stand for one process (with real processes: the address of a "
        "node's gossip; the kernel draws the ports of workers, so only the reducer is given one twice)",
        (
            "membership/test_joining.py::test_a_new_id_at_an_old_address_retires_the_old_entry",
            "cli/test_members.py::test_a_new_name_at_the_address_of_a_node_that_was_killed",
        ),
    ),
    Row(
        "a second agent, or a second worker, under a name that lives",
        "it is refused by name, with pid and place of the first, which does not notice",
        (
            "agent/test_life.py::test_a_second_agent_of_the_name_is_refused_by_name_and_the_first_does_not_notice",
            "membership/test_joining.py::test_a_second_claimant_of_a_living_id_is_refused_by_name",
            "membership/test_joining.py::test_a_second_claimant_from_another_node_is_refused_however_new_it_is",
        ),
    ),
    Row(
        "the word that a node leaves arrives after its next agent has joined",
        "old news: the newer agent stays",
        (
            "membership/test_leaving.py::test_a_join_of_a_newer_boot_overrides_any_leave_of_an_older_one",
            "membership/test_leaving.py::test_the_last_word_of_an_agent_that_comes_after_its_successor_ends_nobody",
        ),
    ),
    Row(
        "the network splits for long and heals",
        "the side that reaches the log goes on; the other says so, waits, commits nothing, comes back as newcomers",
        (
            "breaks/test_hosts.py::test_of_two_halves_only_that_with_the_log_goes_on",
            "agent/test_connection.py::test_the_broker_goes_and_comes_back",
        ),
    ),
    Row(
        "the network splits in two halves that both have the minimum",
        "one log, one sequence of worlds: at most one side commits steps, also if both sides reach it",
        (
            "breaks/test_hosts.py::test_of_two_halves_only_that_with_the_log_goes_on",
            "breaks/test_hosts.py::test_of_two_halves_that_both_reach_the_log_one_goes_on",
        ),
    ),
    Row(
        "paths between workers are cut, and all of them reach the broker",
        "the ring goes round them; where no order does, the greater part goes on, the others are put out and come back",
        (
            "breaks/test_hosts.py::test_a_path_that_loses_everything_is_routed_round",
            "breaks/test_hosts.py::test_of_two_halves_that_both_reach_the_log_one_goes_on",
            "breaks/test_hosts.py::test_who_reaches_one_of_the_others_only_is_out_and_held_down",
            "membership/test_split.py::test_two_halves_of_four_the_one_with_the_oldest_goes_on_and_the_others_are_put_out",
            "membership/test_split.py::test_nobody_is_put_out_if_the_others_could_not_go_on",
        ),
    ),
    Row(
        "a process is suspended, taken out, and goes on",
        "what it still sends is of an old generation and refused; it comes back as a newcomer",
        (
            "membership/test_process.py::test_a_stopped_worker_is_out_and_comes_back_when_it_goes_on",
            "breaks/test_hosts.py::test_who_is_frozen_is_left_out_and_comes_back",
        ),
    ),
    Row(
        "clocks of hosts differ by minutes, or somebody sets one",
        "no decision looks at another host's clock; times of the log are the broker's, and may jump (with real "
        "processes all clocks but the broker's are set)",
        (
            "membership/test_cases.py::test_no_clock_of_a_speaker_counts",
            "membership/test_damping.py::test_a_broker_whose_clock_is_set_back_holds_nobody_for_longer_than_the_longest",
            "membership/test_joining.py::test_a_dead_id_may_come_back_at_once_and_elsewhere_even_with_a_clock_set_back",
            "cli/test_members.py::test_clocks_that_differ_and_are_set_disturb_nobody",
        ),
    ),
    Row(
        "the last worker goes, and the services stay",
        "an empty world, paused, is a world like any other; whoever comes begins again, from the newest checkpoint",
        ("membership/test_formation.py::test_nobody_left_is_a_legal_state",),
    ),
    Row(
        "a job's name is used again, or two jobs run on one broker",
        "another run, nothing of the one before counts; jobs never see each other's members",
        (
            "membership/test_ending.py::test_a_second_run_of_the_job_starts_clean_and_generations_go_on",
            "membership/test_ending.py::test_late_news_of_the_run_before_is_not_this_runs",
            "cli/test_run.py::test_a_finished_job_leaves_no_trap",
            "cli/test_members.py::test_a_jobs_name_is_used_again_and_jobs_without_a_name_never_meet",
            "membership/test_process.py::test_bad_news_about_one_job_does_not_touch_another",
        ),
    ),
    Row(
        "the membership service is killed while a worker dies",
        "exactly one world follows, by the one that stands by, or by itself once it is started again",
        (
            "membership/test_standby.py::test_the_one_that_acts_is_killed_while_a_worker_dies",
            "membership/test_process.py::test_killed_and_started_again_it_goes_on_where_the_log_is",
        ),
    ),
    Row(
        "the broker that leads the log dies, in a cluster of three",
        "no event is lost or doubled; worlds go on after the election; a run ends as if nothing had been",
        (
            "infra/test_cluster_run.py::test_the_broker_that_leads_the_log_dies_and_the_run_ends_as_if_nothing_had_been",
            "infra/test_cluster.py::test_killing_the_leader_loses_and_doubles_nothing",
            "infra/test_cluster.py::test_worlds_go_on_after_an_election_each_exactly_once",
        ),
    ),
)


def docs() -> str:
    """Return the table as Markdown."""
    lines = ["| what happens | here | proven by |", "| --- | --- | --- |"]
    for row in ROWS:
        tests = "<br>".join(f"`{t}`" for t in row.tests)
        lines.append(f"| {row.what} | {row.here} | {tests} |")
    return "\n".join(lines) + "\n"
