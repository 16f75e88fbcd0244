"""The reducer, situation by situation, without processes."""

import signal

import pytest

from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    DrainAsked,
    JobFinished,
    JobScaled,
    JobStopAsked,
    JobSubmitted,
    WorkerDying,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerLeaving,
    WorkerRefused,
    WorkerRegistered,
    WorkerStarted,
    WorkerStuck,
    WorldChanged,
)
from reknit.worker.agent.actions import AskToLeave, End, Fork, Kill, Post, Say, Watch
from reknit.worker.agent.inputs import Dying, Exited, ForkFailed, Signalled
from support.nodes import JOINED, TERMS, Node


def test_workers_are_forked_once_the_log_is_read() -> None:
    node = Node(begin=False)
    assert node.tick() == []
    node.joined()
    assert [f.worker for f in node.all(Fork)] == ["w0-0", "w0-1"]
    node.fork()
    assert [(e.worker, e.attempt) for e in node.all(WorkerStarted)] == [("w0-0", 0), ("w0-1", 0)]


def test_the_exit_is_published_before_anything_else_is_done() -> None:
    node = Node().train()
    node.now = 7
    did = node.exit(0, -9, stderr_tail="bye", log="/l", out_of_memory=True, step=4)
    assert isinstance(did[0], Post)
    assert did[0].event == WorkerExited(
        worker="w0-0",
        incarnation=node.place().incarnation,
        node="w0",
        pid=101,
        code=-9,
        signal="SIGKILL",
        out_of_memory=True,
        stderr_tail="bye",
        seconds_alive=7,
        last_step=4,
        expected=False,
        log="/l",
    )
    assert isinstance(did[-1], Fork)


def test_a_death_is_published_when_it_begins_and_nothing_else_is_done() -> None:
    node = Node().train()
    place = node.place()
    before = node.state
    (said,) = node.dying(0)
    assert isinstance(said, Post)
    assert said.event == WorkerDying(worker="w0-0", incarnation=place.incarnation, node="w0", pid=101)
    assert node.state == before
    assert isinstance(node.exit(0, -9)[-1], Fork)
    assert not node.last(WorkerExited).expected
    assert node.feed(Dying("w0-0", 101, node.now)) == [], "of a process that is gone"


def test_a_death_that_nobody_waits_for_is_not_published() -> None:
    node = Node().train()
    place = node.place()
    node.hear(WorkerFinished(worker="w0-0", incarnation=place.incarnation, generation=1, step=9))
    assert node.dying(0) == []
    node.hear(JobFinished(run="run", outcome="failed", reason="r"))
    assert node.dying(1) == []


def test_whoever_was_asked_to_leave_dies_as_expected() -> None:
    node = Node().train()
    node.hear(DrainAsked(target="w0-0"))
    node.dying(0)
    node.dying(1)
    assert [e.expected for e in node.all(WorkerDying)] == [True, False]


def test_a_registered_worker_is_watched() -> None:
    node = Node()
    node.fork()
    assert node.register(0) == [Watch("w0-0")]


def test_deaths_are_answered_with_growing_pauses() -> None:
    node = Node(1).train()
    pauses = []
    for _ in range(5):
        node.exit(code=-9)
        before = node.now
        while node.place().phase == "waiting":
            node.tick()
        pauses.append(node.now - before)
        node.fork()
        node.register()
    assert pauses == [0, 0.5, 1, 2, 4]
    assert [f.attempt for f in node.all(Fork)] == [0, 1, 2, 3, 4, 5]
    incarnations = [e.incarnation for e in node.all(WorkerStarted)]
    assert incarnations == sorted(set(incarnations))


def test_a_script_that_fails_at_its_start_is_not_tried_again() -> None:
    node = Node(2)
    node.fork()
    node.exit(0, 1, log="/logs/w0-0.log")
    node.exit(1, 1)
    assert len(node.all(Fork)) == 2
    assert not node.all(End)  # the run's end is awaited: membership tells it
    node.hear(JobFinished(run="run", outcome="failed", reason="the script raised ValueError", root_worker="w0-0"))
    end = node.last(End)
    assert end.code == 1
    assert end.last_words.startswith("the run failed: the script raised ValueError\nit began with w0-0, see /logs")


def test_without_membership_the_agent_ends_by_itself_with_the_first_failure() -> None:
    node = Node(2)
    node.fork()
    node.exit(1, 2, log="/logs/w0-1.log")
    node.exit(0, 1)
    node.tick(6)
    assert node.last(End).code == 1
    assert node.last(End).last_words == "w0-1 exited with code 2 (alive for 0.0 s), see /logs/w0-1.log"


def test_scripts_that_never_join_are_fine() -> None:
    node = Node(2)
    node.fork()
    node.exit(0, 0)
    assert not node.all(End)
    node.exit(1, 0)
    assert [e.expected for e in node.all(WorkerExited)] == [True, True]
    assert not node.all(Say), "the launcher says at the end that nothing was trained together"
    assert node.last(AgentLeft).node == "w0"
    assert node.last(End) == End(0)


def test_a_finished_run_waits_for_the_scripts() -> None:
    node = Node(2).train()
    for i in (0, 1):
        node.hear(WorkerFinished(worker=f"w0-{i}", incarnation=node.place(i).incarnation, generation=1, step=9))
    node.world(status="finished")
    node.hear(JobFinished(run="run", outcome="completed"))
    node.exit(0, 0)
    node.tick(1000)
    assert not node.all(End)
    assert not node.all(Kill)
    assert not node.all(AskToLeave)
    node.exit(1, 0)
    assert node.last(End) == End(0)
    assert all(e.expected for e in node.all(WorkerExited))
    assert node.last(WorkerExited).last_step == 9


def test_a_worker_that_ends_before_the_end_of_the_run_is_told() -> None:
    node = Node(2).train()
    for i in (0, 1):
        node.hear(WorkerFinished(worker=f"w0-{i}", incarnation=node.place(i).incarnation, generation=1, step=9))
        node.exit(i, 0)
    assert not node.all(End)
    node.hear(JobFinished(run="run", outcome="completed"))
    assert node.last(End) == End(0)


def test_an_evaluation_that_fails_is_not_silent() -> None:
    node = Node(1).train()
    node.hear(WorkerFinished(worker="w0-0", incarnation=node.place().incarnation, generation=1, step=9))
    node.hear(JobFinished(run="run", outcome="completed"))
    node.exit(0, 1, log="/l")
    assert node.last(End).code == 1
    assert "w0-0 exited with code 1" in node.last(End).last_words
    assert node.last(WorkerExited).expected


def test_a_worker_that_is_in_no_world_does_not_hold_up_the_end() -> None:
    node = Node(3)
    node.fork()
    node.register(0)
    node.register(2)
    node.world(0)
    node.hear(JobFinished(run="run", outcome="completed"))
    assert [a.worker for a in node.all(AskToLeave)] == ["w0-1", "w0-2"]


def test_drain_of_the_node() -> None:
    node = Node(2).train()
    node.hear(DrainAsked(target="w0", reason="maintenance"))
    assert [a.worker for a in node.all(AskToLeave)] == ["w0-0", "w0-1"]
    node.exit(0, 0)
    node.tick(4.9)
    assert not node.all(Kill)
    node.tick(0.2)
    assert [k.worker for k in node.all(Kill)] == ["w0-1"]
    node.exit(1, -9)
    assert [e.expected for e in node.all(WorkerExited)] == [True, True]
    assert node.last(AgentLeft).reason == "drained: maintenance"
    assert node.last(End) == End(0)


def test_drain_of_one_worker_is_for_good_until_more_are_asked_for() -> None:
    node = Node(2).train()
    node.hear(DrainAsked(target="w0-0"))
    node.exit(0, 0)
    node.targets(w0=2)  # nothing new: it was 2 before
    node.tick()
    assert node.place(0).phase == "empty"
    assert len(node.all(Fork)) == 2
    node.targets(w0=3)
    assert [f.worker for f in node.all(Fork)[2:]] == ["w0-0", "w0-2"]


def test_a_scaling_to_the_same_number_replaces_who_was_drained() -> None:
    node = Node(1).train()
    node.hear(DrainAsked(target="w0-0"))
    node.exit(0, 0)
    assert len(node.all(Fork)) == 1
    node.hear(JobScaled(workers=1))
    assert len(node.all(Fork)) == 1, "how many of them are ours is not known yet"
    node.targets(w0=1)
    assert [f.worker for f in node.all(Fork)] == ["w0-0", "w0-0"]


def test_old_drains_and_the_drains_of_others_are_not_ours() -> None:
    node = Node(2, begin=False)
    node.hear(DrainAsked(target="w0"), seq=JOINED - 1)
    node.joined()
    node.hear(DrainAsked(target="w1"))
    node.hear(DrainAsked(target="w1-0"))
    assert node.state.mode == "running"


def test_a_run_that_was_stopped_before_we_came() -> None:
    node = Node(2, begin=False)
    node.hear(JobStopAsked(), seq=1)  # of an earlier run
    node.hear(JobSubmitted(run="run", script="s"), seq=2)
    assert node.state.mode == "starting"
    node.hear(JobStopAsked(reason="enough"), seq=3)
    assert node.last(End) == End(0)
    assert not node.all(Fork)


@pytest.mark.parametrize(("outcome", "code"), [("completed", 0), ("stopped", 0), ("failed", 1)])
def test_a_run_that_was_over_before_we_came(outcome: str, code: int) -> None:
    node = Node(2, begin=False)
    node.hear(JobFinished(run="other", outcome="failed"), seq=1)
    node.hear(JobFinished(run="run", outcome=outcome), seq=3)  # type: ignore[arg-type]
    assert node.last(End).code == code
    assert not node.all(Fork)


def test_stop_at_once() -> None:
    node = Node(2).train()
    node.hear(JobStopAsked(at_once=True))
    assert [k.worker for k in node.all(Kill)] == ["w0-0", "w0-1"]
    node.exit(0)
    node.exit(1)
    assert node.last(End) == End(0)


def test_signals_once_and_twice() -> None:
    node = Node(2).train()
    node.feed(Signalled(signal.SIGTERM, node.now))
    assert len(node.all(AskToLeave)) == 2
    assert not node.all(Kill)
    node.feed(Signalled(signal.SIGINT, node.now))
    assert len(node.all(Kill)) == 2
    node.exit(0)
    node.exit(1)
    assert node.last(End).code == 130


def test_a_signal_while_a_worker_is_being_forked() -> None:
    node = Node(1)
    node.feed(Signalled(signal.SIGTERM, node.now))
    assert not node.all(End)
    node.fork()
    assert len(node.all(AskToLeave)) == 1
    node.exit(0, 143)
    assert node.last(End) == End(0)
    assert node.last(WorkerExited).expected


def test_a_second_signal_while_a_worker_is_being_forked() -> None:
    node = Node(1)
    node.feed(Signalled(signal.SIGTERM, node.now))
    node.feed(Signalled(signal.SIGTERM, node.now))
    node.fork()
    assert len(node.all(Kill)) == 1
    node.exit(0, -9)
    assert node.last(End).code == 143


def test_a_process_that_the_kernel_does_not_let_go() -> None:
    node = Node(1).train()
    node.feed(Signalled(signal.SIGTERM, node.now))
    node.tick(6)
    node.tick(6)
    assert any("PID 101 not reaped" in s.text for s in node.all(Say))
    assert node.last(End) == End(0)


def test_a_failed_run_ends_its_workers_soon() -> None:
    node = Node(2).train()
    node.hear(
        WorkerFailed(worker="w0-1", incarnation=node.place(1).incarnation, error="ValueError: boom", traceback="")
    )
    node.exit(1, 1, stderr_tail="Traceback\nValueError: boom", log="/l1")
    node.hear(JobFinished(run="run", outcome="failed", reason="w0-1 raised ValueError: boom", root_worker="w0-1"))
    assert [a.worker for a in node.all(AskToLeave)] == ["w0-0"]
    node.exit(0, 1, stderr_tail="ring broken", log="/l0")
    node.fork()  # its successor was under way already
    node.exit(1, 143)
    assert node.last(End) == End(
        1,
        "the run failed: w0-1 raised ValueError: boom\nit began with w0-1, see /l1\n  ValueError: boom",
    )
    assert len(node.all(Fork)) <= 3


def test_eviction() -> None:
    node = Node(2).train()
    node.world(1)
    node.tick(0.9)
    assert not node.all(Kill)
    node.tick(0.2)
    assert [k.worker for k in node.all(Kill)] == ["w0-0"]
    node.exit(0)
    assert node.last(Fork).worker == "w0-0"
    assert not node.last(WorkerExited).expected


def test_an_evicted_worker_that_comes_back() -> None:
    node = Node(2).train()
    node.world(1)
    place = node.place()
    node.hear(
        WorkerRegistered(
            worker="w0-0",
            incarnation=place.incarnation + 1,  # it counts on by itself
            node="w0",
            run="run",
            pid=place.pid,
            address="h:1",
            terms=TERMS,
        )
    )
    node.tick(5)
    node.world(1, 0)
    node.tick(5)
    assert not node.all(Kill)
    node.exit(0)
    assert node.last(WorkerExited).incarnation == place.incarnation + 1
    node.fork()
    assert node.last(WorkerStarted).incarnation > place.incarnation + 1


@pytest.mark.parametrize("why", ["finished", "leaving", "paused", "other run"])
def test_no_eviction(why: str) -> None:
    node = Node(2).train()
    incarnation = node.place().incarnation
    if why == "finished":
        node.hear(WorkerFinished(worker="w0-0", incarnation=incarnation, generation=1, step=1))
        node.world(1)
    elif why == "leaving":
        node.hear(WorkerLeaving(worker="w0-0", incarnation=incarnation))
        node.world(1)
    elif why == "paused":
        node.world(0, 1, status="paused")
    else:
        node.hear(WorldChanged(generation=2, run="other", status="running"))
    node.tick(5)
    assert not node.all(Kill)


def test_a_worker_that_left_by_itself_stays_away() -> None:
    node = Node(2).train()
    node.hear(WorkerLeaving(worker="w0-0", incarnation=node.place().incarnation))
    node.exit(0, 0)
    node.tick(5)
    assert node.last(WorkerExited).expected
    assert node.place().phase == "empty"


def test_refused() -> None:
    node = Node(2)
    node.fork()
    node.register(0)
    node.hear(WorkerRefused(worker="w0-0", incarnation=node.place().incarnation, reason="seed is 1, the job's is 0"))
    assert any("seed is 1" in s.text for s in node.all(Say))
    node.exit(0, 1)
    node.tick(40)
    assert [f.worker for f in node.all(Fork)] == ["w0-0", "w0-1"]
    node.exit(1, 0)
    node.tick(40)
    assert node.last(End).code == 1
    assert "seed is 1" in node.last(End).last_words


def test_a_refused_worker_that_stays_is_ended() -> None:
    node = Node(1)
    node.fork()
    node.hear(WorkerRefused(worker="w0-0", incarnation=node.place().incarnation, reason="no"))
    node.tick(5.1)
    assert [k.worker for k in node.all(Kill)] == ["w0-0"]


def test_refusals_that_mean_others() -> None:
    node = Node(1).train()
    node.hear(WorkerRefused(worker="w0-0", incarnation=node.place().incarnation - 1, reason="an older one"))
    node.hear(WorkerRefused(worker="w1-0", incarnation=node.place().incarnation, reason="not ours"))
    node.hear(WorkerRefused(worker="w0-0", incarnation=node.place().incarnation, reason="later", final=False))
    node.tick(50)
    assert node.place().phase == "alive"


def test_a_refused_node() -> None:
    node = Node(2).train()
    node.hear(WorkerRefused(worker="w0", incarnation=0, reason="another secret"))
    node.exit(0, 0)
    node.exit(1, 0)
    assert node.last(End) == End(1, "w0 is refused by the job: another secret")


def test_targets_up_and_down() -> None:
    node = Node(1).train()
    node.targets(w0=3, w1=1)
    assert [f.worker for f in node.all(Fork)] == ["w0-0", "w0-1", "w0-2"]
    node.train()
    node.targets(w1=1)  # we are not named: nothing changes
    node.targets(w0=1, w1=1)
    assert [a.worker for a in node.all(AskToLeave)] == ["w0-2", "w0-1"]
    node.exit(2, 0)
    node.targets(w0=2, w1=1)  # back up while w0-1 is still on its way out
    assert len(node.all(Fork)) == 3
    node.exit(1, 0)
    assert node.last(Fork).worker == "w0-1"


@pytest.mark.parametrize(
    ("spares", "standing_by", "target", "go"),
    [
        (1, (3,), 3, ["w0-2"]),  # the spare stays one
        (1, (3,), 2, ["w0-2", "w0-1"]),
        (1, (3,), 1, ["w0-2", "w0-1", "w0-0"]),
        (0, (3,), 3, ["w0-3"]),  # more than the job takes: nobody is needed who stands by
        (1, (1, 3), 2, ["w0-3", "w0-2"]),
        (1, (), 3, ["w0-3"]),
    ],
)
def test_where_fewer_are_kept_the_jobs_spares_stay(
    spares: int, standing_by: tuple[int, ...], target: int, go: list[str]
) -> None:
    node = Node(4).train()
    node.world(0, 1, 2, 3, spares=standing_by)
    node.targets(w0=target, spares=spares)
    assert [a.worker for a in node.all(AskToLeave)] == go


def test_a_newcomer_that_is_no_member_yet_goes_first() -> None:
    node = Node(3).train()
    node.world(0, 2)
    node.targets(w0=2)
    assert [a.worker for a in node.all(AskToLeave)] == ["w0-1"]


def test_target_zero_keeps_the_agent() -> None:
    node = Node(1).train()
    node.targets(w0=0, w1=1)
    node.exit(0, 0)
    node.tick(100)
    assert not node.all(End)
    node.targets(w0=1, w1=1)
    assert node.last(Fork).worker == "w0-0"


def test_a_second_agent_of_the_same_name() -> None:
    node = Node(1).train()
    node.hear(AgentJoined(node="w0", run="run", host="h", pid=1, nproc=1))  # our own
    node.hear(AgentJoined(node="w1", run="run", host="h", pid=2, nproc=1))
    assert node.state.mode == "running"
    node.hear(AgentJoined(node="w0", run="run", host="h", pid=2, nproc=1))
    node.exit(0)
    assert node.last(End) == End(1, "another agent (pid 2 on h) has taken the name w0")


def test_forks_that_fail() -> None:
    node = Node(1)
    for _ in range(5):
        node.feed(ForkFailed("w0-0", "OSError: no memory", node.now))
        node.tick(31)
    assert len(node.all(Fork)) == 5
    assert node.last(End).code == 1
    assert "OSError: no memory" in node.last(End).last_words


def test_stuck_is_published_and_cleared() -> None:
    node = Node(1).train()
    for _ in range(4):
        node.tick(letter="T")
    node.tick()
    assert [e.state for e in node.all(WorkerStuck)] == ["T stopped", "R running"]


def test_exits_of_others_are_not_ours() -> None:
    node = Node(1).train()
    assert node.feed(Exited(worker="w0-0", pid=7, code=0, now=0)) == []
    assert node.feed(Exited(worker="w9-0", pid=101, code=0, now=0)) == []
