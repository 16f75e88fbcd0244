"""The small pure rules, by tables."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.worker.agent.contact import Contact
from reknit.worker.agent.exit_status import in_words, signal_name
from reknit.worker.agent.incarnation import next_incarnation
from reknit.worker.agent.restart import after_exit, pause_after
from reknit.worker.agent.strays import strays
from reknit.worker.agent.stuck import Look, Notice, Stillness, follow
from reknit.worker.agent.threads import choose


@given(st.integers(0, 2**41), st.integers(0, 1000), st.integers(0, 2**50))
def test_incarnation_always_rises(wall_ms: int, attempt: int, last: int) -> None:
    assert next_incarnation(wall_ms, attempt, last) > last


def test_incarnation_holds_wall_time_and_attempt() -> None:
    assert next_incarnation(5, 258, 0) == (5 << 8) | 2


ONE = "the same for any number of workers, so that the weights are; --threads for more"


@pytest.mark.parametrize(
    ("asked", "environ", "number", "why"),
    [
        (0, {}, 1, ONE),
        (0, {"OMP_NUM_THREADS": "3"}, 3, "OMP_NUM_THREADS"),
        (0, {"OMP_NUM_THREADS": "3,1"}, 3, "OMP_NUM_THREADS"),
        (0, {"OMP_NUM_THREADS": "many"}, 1, ONE),
        (0, {"OMP_NUM_THREADS": "0"}, 1, ONE),
        (5, {"OMP_NUM_THREADS": "3"}, 5, "as asked"),
    ],
)
def test_threads(asked: int, environ: dict[str, str], number: int, why: str) -> None:
    got = choose(asked, environ)
    assert (got.number, got.why) == (number, why)


def test_strays_are_the_other_launchers_words() -> None:
    names = [
        "PATH",
        "RANK",
        "SLURM_PROCID",
        "SLURM_JOB_ID",
        "TORCHELASTIC_RUN_ID",
        "MASTER_ADDR",
        "RANKING",
        "REKNIT_X",
    ]
    assert strays(names) == ("MASTER_ADDR", "RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID")


@pytest.mark.parametrize(
    ("code", "oom", "short", "words"),
    [
        (0, False, False, "exited with code 0"),
        (3, False, False, "exited with code 3"),
        (-9, False, False, "killed by signal 9 (SIGKILL), possibly out of memory"),
        (-9, False, True, "killed by signal 9 (SIGKILL), probably out of memory"),
        (-9, True, True, "killed by signal 9 (SIGKILL), out of memory: the kernel's OOM killer chose it"),
        (-11, False, True, "killed by signal 11 (SIGSEGV)"),
    ],
)
def test_exits_in_words(code: int, oom: bool, short: bool, words: str) -> None:
    assert in_words(code, out_of_memory=oom, machine_short=short).startswith(words)


def test_signal_names() -> None:
    assert [signal_name(c) for c in (0, 1, -15, -99)] == ["", "", "SIGTERM", "signal 99"]


def test_pauses() -> None:
    assert [pause_after(n) for n in range(11)] == [0, 0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert pause_after(10_000) == 30


@pytest.mark.parametrize(
    ("code", "registered", "ever", "failures", "alive", "verdict", "pause"),
    [
        (0, False, False, 0, 1, "done", 0),
        (0, True, True, 3, 1, "done", 0),
        (1, False, False, 0, 1, "given_up", 0),  # a script's own error at its start
        (1, True, True, 0, 1, "again", 0),
        (1, True, True, 1, 1, "again", 0.5),
        (1, False, True, 1, 1, "again", 0.5),  # it had joined in an earlier life: perhaps the port, perhaps the disk
        (-9, False, False, 0, 1, "again", 0),  # a signal is no error of the script
        (-9, False, False, 3, 1, "again", 2),
        (-9, False, False, 4, 1, "given_up", 0),  # but not for ever
        (-9, True, True, 20, 1, "again", 30),
        (-9, True, True, 20, 61, "again", 0),  # healed
        (-9, False, True, 2, 61, "again", 1),  # 61 s of loading are no proof of health
    ],
)
def test_what_follows_an_exit(
    code: int, registered: bool, ever: bool, failures: int, alive: float, verdict: str, pause: float
) -> None:
    after = after_exit(code, registered=registered, ever_registered=ever, failures=failures, seconds_alive=alive)
    assert (after.verdict, after.pause) == (verdict, pause)


def _notices(looks: list[Look]) -> list[tuple[int, Notice]]:
    stillness, found = Stillness(), []
    for i, look in enumerate(looks):
        stillness, notice = follow(stillness, look, i * 0.25)
        if notice:
            found.append((i, notice))
    return found


def test_a_stopped_process_is_said_once_and_cleared_once() -> None:
    looks = [Look("S")] * 2 + [Look("T")] * 8 + [Look("R")] * 3
    assert _notices(looks) == [(5, Notice("T stopped", 0.75)), (10, Notice("R running", 2.0))]


def test_a_process_that_only_reads_a_disk_is_not_stuck() -> None:
    # found in D at each look, yet it ran in between
    assert _notices([Look("D", n) for n in range(20)]) == []


def test_a_process_blocked_in_the_kernel_is_stuck() -> None:
    assert _notices([Look("D", 7)] * 5 + [Look("S", 8)]) == [
        (3, Notice("D uninterruptible", 0.75)),
        (5, Notice("R running", 1.25)),
    ]


def test_short_stops_are_no_news() -> None:
    assert _notices([Look("T"), Look("T"), Look("S")] * 5) == []


def test_every_state_has_a_signal_name() -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        assert signal_name(-number) == number.name


def test_a_broker_that_is_away_is_said_once_and_its_return() -> None:
    contact, said = Contact(), []
    for tick in range(100):
        at = tick * 0.25
        # a restart of half a second, then an outage of ten
        connected = not (2.0 <= at < 2.5 or 5.0 <= at < 15.0)
        if told := contact.look(connected, at):
            said.append((at, told.partition(":")[0]))
    assert said == [(6.0, "no connection to the broker"), (15.0, "the broker is back after 10 s")]
