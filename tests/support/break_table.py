"""Every break that is tried, as one table: what it is, how it is noticed, how long it takes, what happens, and where it
is tried. `docs()` is the section of docs/ring.md; a test compares the two and looks for each test that is named here.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of break.

    Attributes:
        what: the break.
        noticed: by what.
        takes: from the break to the next step that all who are left have committed, as measured.
        happens: then.
        tests: `file::test` in tests/, the parts of a test's name that all its variants share.
    """

    what: str
    noticed: str
    takes: str
    happens: str
    tests: tuple[str, ...]


def _moments(test: str) -> str:
    return f"breaks/test_moments.py::{test}"


def _hosts(test: str) -> str:
    return f"breaks/test_hosts.py::{test}"


def _away(test: str) -> str:
    return f"breaks/test_broker_away.py::{test}"


ROWS = (
    Row(
        "a worker dies, at any byte of any message",
        "its agent, 0.5 ms; a reset, a few ms",
        "0.1 to 0.3 s",
        "the others finish the step in flight with its slots; it is started anew and caught up before it comes in",
        (_moments("test_at_some_messages"), _moments("test_at_every_message"), _hosts("test_killed_workers")),
    ),
    Row(
        "several die at once: neighbours, the first, the last, all but one, all that compute",
        "as one",
        "0.2 to 0.4 s",
        "one change of the world; who is left computes everything",
        ("breaks/test_several.py::test_at_some_messages", _hosts("test_killed_workers")),
    ),
    Row(
        "a whole node is killed",
        "resets, refused dials",
        "0.2 to 0.5 s",
        "as for one worker; it may be started again at any time",
        (_hosts("test_a_node_is_killed"),),
    ),
    Row(
        "it dies with a result that others lack",
        "at the roll call",
        "as above",
        "the result is sent again; if its last holder dies on the way, the step is finished from what was computed",
        (_moments("test_a_second_break_at_some_messages_of_the_mending"),),
    ),
    Row(
        "a second break while the first is mended: linking, roll call, result sent again, orphans",
        "as the first",
        "0.1 to 0.4 s; silence: as below",
        "another world; the mending begins anew and keeps what was computed",
        (
            _moments("test_a_second_break_at_every_message_of_the_mending"),
            _hosts("test_a_second_break_while_the_first_is_mended"),
        ),
    ),
    Row(
        "a host is gone without a word, or several",
        "no heartbeat, no answer to a dial, or others wait for it",
        "1.4 to 2 s, once 3.3",
        "left out; when it is back, the same processes come in again as new members",
        (_hosts("test_a_host_is_gone"), _hosts("test_hosts_are_gone"), _moments("test_at_some_messages")),
    ),
    Row(
        "a worker is stopped (SIGSTOP), alone, with its agent, or the whole node",
        "the kernel's word through the agent, and silence",
        "1.4 to 2 s",
        "left out; what it still had to send counts for nothing; it comes back by itself",
        (_hosts("test_who_is_frozen"), "breaks/test_first_world.py::test_one_is_lost"),
    ),
    Row(
        "a connection is reset while both ends live",
        "at once",
        "0.2 to 0.4 s",
        "linked anew 150 ms later, nobody is left out; the step goes on where it was",
        (_hosts("test_a_reset"), _moments("test_at_some_messages")),
    ),
    Row(
        "a path loses everything, in one direction or both, while both ends live",
        "5 s of silence on the link; then 3 s without an answer to a dial",
        "5 s if the link had failed before, else 9 to 12 s",
        "another ring order goes round it; nobody is left out",
        (_hosts("test_a_path_that_loses_everything"), _hosts("test_a_path_that_loses_one_direction")),
    ),
    Row(
        "a slow host",
        "not at all",
        "steps are slower",
        "nothing else: the same world, the same bits",
        (_hosts("test_a_slow_host"),),
    ),
    Row(
        "the network is split, one half without the broker",
        "as hosts that are gone",
        "1.7 s",
        "the half with the log goes on, the other waits and comes back; only one of them can commit",
        (_hosts("test_of_two_halves_only"),),
    ),
    Row(
        "the ring's paths are split, both halves reach the broker",
        "as lost paths",
        "22 s",
        "no order avoids it: after four tries one half goes on, the other is put out and comes back when it is over",
        (_hosts("test_of_two_halves_that_both"),),
    ),
    Row(
        "broker or control plane killed, stopped or cut off",
        "not by the ring",
        "no pause; a break meanwhile: 0.2 to 4.4 s after it is back",
        "steps go on, nobody is left out; what breaks meanwhile is mended when it is back",
        (_away("test_steps_go_on"), _away("test_what_breaks_meanwhile")),
    ),
    Row(
        "somebody else sits in a member's place and never answers, or hangs up",
        "10 s without the end of a hello",
        "as soon as a world without it comes",
        "its neighbour reports it; a newer world ends the waiting within 50 ms",
        ("breaks/test_strangers.py::test_a_stranger_in_a_members_place",),
    ),
    Row(
        "garbage, old hellos, frames of other worlds, steps or pieces",
        "by what they do not fit",
        "0.2 to 0.5 s",
        "refused at the port; on a link in use they break it, and count for nothing",
        (
            "breaks/test_strangers.py::test_garbage_and_old_hellos",
            "breaks/test_strangers.py::test_what_does_not_belong",
            _hosts("test_garbage_at_every_port"),
        ),
    ),
    Row(
        "a bit turns over in any message",
        "by the frame's checks, else by the result chain; in a hello, after 10 s",
        "as a reset",
        "the link is made anew; a result that arrived other than it was sent is sent again or learned anew",
        (_moments("test_at_some_messages"), _moments("test_at_every_message")),
    ),
    Row(
        "a message is held back until the ring was made anew",
        "by its generation",
        "as a reset",
        "it counts for nothing",
        (_moments("test_at_some_messages"),),
    ),
    Row(
        "the end: one leaves while others are at their last step",
        "by the last lap",
        "no pause",
        "all leave well; a death in the last lap is mended as any other",
        ("breaks/test_end.py::test_who_has_finished", _moments("test_at_every_message")),
    ),
)


def docs() -> str:
    """The table as Markdown."""
    head = ("break", "noticed", "until the next step of all", "what happens")
    rows = [head, ("---",) * len(head), *((r.what, r.noticed, r.takes, r.happens) for r in ROWS)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
