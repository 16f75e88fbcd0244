"""Who is found dead, on what evidence, how soon; and who is not."""

from __future__ import annotations

import pytest

from reknit.core.events import WorkerStuck, WorldChanged
from support.town import Town

SOON = 0.06
"""Seconds, a few event round trips: what certain evidence needs."""


def ring_of(*workers: str, **spec: object) -> Town:
    town = Town(**{"min_nodes": 1, "max_nodes": len(workers), **spec})
    town.begin(*workers)
    town.committed(3)
    town.run(2.0)
    return town


def gone(town: Town, worker: str) -> float:
    return town.until(lambda: worker not in town.members, 10.0)


def stuck(town: Town, worker: str, state: str) -> None:
    body = town.bodies[worker]
    town.say(WorkerStuck(worker=worker, incarnation=body.incarnation, node=body.node, state=state, seconds=0.5))


def test_an_exit_is_certain() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.kill("b-0")
    assert gone(town, "b-0") < SOON
    assert town.members == ["a-0", "c-0"]
    assert town.world.reason == "b-0 died: its agent reaped it (signal 9); 2 workers go on"
    assert [(e.source, e.certain) for e in town.world.evidence] == [("exit", True)]
    assert town.world.removed == ("b-0",)
    assert town.world.restarts == 1


def test_the_neighbours_evidence_is_in_the_world_too() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0")
    town.broken("c-0", "b-0")
    town.kill("b-0")
    gone(town, "b-0")
    assert "its ring neighbours lost it" in town.world.reason
    assert [e.source for e in town.world.evidence] == ["exit", "ring", "ring"]


def test_a_closed_connection_and_a_refused_dial_need_no_agent() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.kill("b-0", silent=True)
    town.disconnect(town.bodies["b-0"].client_id)
    assert gone(town, "b-0") < SOON
    assert {e.source for e in town.world.evidence} == {"refused", "disconnect"}


def test_a_connection_is_known_by_its_name_after_a_reconnect() -> None:
    town = ring_of("a-0", "b-0")
    town.kill("b-0", silent=True)
    town.disconnect(99999, "b-0")
    assert gone(town, "b-0") < SOON


@pytest.mark.parametrize("name", ["launcher/b", "b", "monitor", "b-00"])
def test_other_connections_say_nothing(name: str) -> None:
    town = ring_of("a-0", "b-0")
    town.disconnect(99999, name)
    town.run(1.0)
    assert not town.dials


def test_a_mere_reconnect_is_no_death() -> None:
    town = ring_of("a-0", "b-0")
    town.disconnect(town.bodies["b-0"].client_id)
    town.run(10.0)
    assert [d.worker for d in town.dials] == ["b-0"]
    assert len(town.worlds) == 1


def test_a_node_killed_with_all_its_workers_is_one_change_in_milliseconds() -> None:
    town = ring_of("a-0", "b-0", "b-1", "b-2", "c-0")
    town.nodes["b"] = False
    for index in range(3):
        town.kill(f"b-{index}", silent=True)
        town.later(0.004 + 0.003 * index, lambda i=index: town.disconnect(town.bodies[f"b-{i}"].client_id))
    town.later(0.002, lambda: town.disconnect(0, "agent/b"))
    assert gone(town, "b-0") < SOON
    assert town.members == ["a-0", "c-0"]
    assert len(town.worlds) == 2
    assert town.world.restarts == 0, "the loss of a node is no failure of the script"


def test_a_certain_death_waits_for_dials_that_are_under_way() -> None:
    town = ring_of("a-0", "b-0", "b-1", "b-2", "c-0")
    town.nodes["b"] = False
    for index in range(3):
        town.kill(f"b-{index}", silent=True)
        town.bodies[f"b-{index}"].dial_seconds = 0.002 + 0.018 * index
    town.disconnect(0, "agent/b")
    assert gone(town, "b-0") < 0.1
    assert town.members == ["a-0", "c-0"]
    assert len(town.worlds) == 2


def test_but_not_for_long() -> None:
    town = ring_of("a-0", "b-0", "b-1")
    town.kill("b-0", silent=True)
    town.disconnect(0, "agent/b")
    assert gone(town, "b-0") < 0.1
    assert town.members == ["a-0", "b-1"]


def test_a_publication_is_asked_for_once_and_again_only_if_it_gets_lost() -> None:
    town = ring_of("a-0", "b-0")
    before = town.asked
    town.kill("b-0")
    town.run(5.0)
    assert town.asked == before + 1
    town.register("b-0", 2)
    town.run(1.0)
    before, town.lost = town.asked, True
    town.kill("b-0")
    town.run(3.0)
    assert town.asked == before + 2
    town.lost = False
    assert gone(town, "b-0") < 2.1


def test_the_agents_disconnect_alone_makes_its_workers_be_dialled() -> None:
    town = ring_of("a-0", "b-0", "b-1")
    town.disconnect(0, "agent/b")
    town.run(3.0)
    assert sorted(d.worker for d in town.dials) == ["b-0", "b-1"]
    assert len(town.worlds) == 1, "they answer, so they live on without their agent"


def test_many_certain_deaths_at_once_are_one_world() -> None:
    names = [f"n{i}-{j}" for i in range(8) for j in range(4)]
    town = ring_of(*names)
    for name in names[4:20]:
        town.kill(name)
    town.run(1.0)
    assert len(town.worlds) == 2
    assert town.members == names[:4] + names[20:]
    assert town.world.reason == (
        "n1-0, n1-1, n1-2 and 13 more died: their agents reaped them or their scripts raised; "
        "8 workers and 8 spares go on"  # a step has eight slots
    )


def test_a_frozen_worker_is_out_well_under_three_seconds() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.bodies["b-0"].beats = False
    town.later(0.6, lambda: stuck(town, "b-0", "T stopped"))
    assert 0.6 < gone(town, "b-0") < 2.0
    assert {e.source for e in town.world.evidence} == {"heartbeat", "frozen"}
    assert "no heartbeat for" in town.world.reason
    assert "its process is T stopped" in town.world.reason


def test_frozen_alone_is_no_death_while_heartbeats_come() -> None:
    town = ring_of("a-0", "b-0")
    stuck(town, "b-0", "D uninterruptible")
    town.run(30.0)
    assert len(town.worlds) == 1


def test_running_again_takes_the_suspicion_back() -> None:
    town = ring_of("a-0", "b-0")
    stuck(town, "b-0", "T stopped")
    stuck(town, "b-0", "R running")
    town.bodies["b-0"].beats = False
    town.run(5.0)
    assert len(town.worlds) == 1


def test_silence_alone_is_no_death() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.bodies["b-0"].beats = False
    town.run(60.0)
    assert len(town.worlds) == 1
    assert {d.worker for d in town.dials} == {"b-0"}, "but it is dialled"


def test_a_cut_connection_and_the_silence_after_it_are_one_kind() -> None:
    """Such a worker trains on in good health: the ring does not need the broker."""
    town = ring_of("a-0", "b-0", "c-0")
    town.bodies["b-0"].beats = False
    town.disconnect(town.bodies["b-0"].client_id)
    town.run(60.0)
    assert len(town.worlds) == 1


def test_a_host_that_vanished_without_a_reset_is_out_in_two_seconds() -> None:
    town = ring_of("a-0", "b-0", "b-1", "c-0")
    town.nodes["b"] = False
    for name in ("b-0", "b-1"):
        town.bodies[name].beats, town.bodies[name].dial = False, "silent"
    assert gone(town, "b-0") < 2.5
    assert town.members == ["a-0", "c-0"]
    assert len(town.worlds) == 2
    assert {e.source for e in town.world.evidence} == {"heartbeat", "unreachable"}


def test_a_path_that_does_not_answer_is_no_death_while_heartbeats_come() -> None:
    town = ring_of("a-0", "b-0")
    town.bodies["b-0"].dial = "silent"
    town.disconnect(town.bodies["b-0"].client_id)
    town.run(30.0)
    assert len(town.worlds) == 1


def test_a_frozen_node_is_found_by_those_who_wait_for_it() -> None:
    """Agent and worker are stopped together: nobody reports, the kernel still accepts connections."""
    town = ring_of("a-0", "b-0", "c-0")
    town.nodes["b"] = False
    town.bodies["b-0"].beats = False
    for name in ("a-0", "c-0"):
        town.bodies[name].phase, town.bodies[name].in_phase = "reduce", 0.0
    assert gone(town, "b-0") < 3.0
    assert {e.source for e in town.world.evidence} == {"heartbeat", "progress"}


def test_whoever_is_heard_to_compute_may_be_the_one_that_is_waited_for() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.nodes["b"] = False
    town.bodies["b-0"].beats = False
    town.bodies["a-0"].phase, town.bodies["a-0"].in_phase = "reduce", 0.0
    town.run(20.0)
    assert len(town.worlds) == 1


def test_a_worker_that_holds_its_interpreter_is_not_evicted() -> None:
    """No heartbeats for a while, others wait for it, but its agent is heard and says nothing against it."""
    town = ring_of("a-0", "b-0", "c-0")
    town.bodies["b-0"].beats = False
    for name in ("a-0", "c-0"):
        town.bodies[name].phase = "reduce"
    town.run(20.0)
    assert len(town.worlds) == 1


def test_a_long_step_on_a_cut_node_is_not_taken_for_death() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.nodes["b"] = False
    town.bodies["b-0"].beats = False
    for name in ("a-0", "c-0"):
        body = town.bodies[name]
        body.phase, body.in_phase, body.step_seconds = "reduce", 0.0, 20.0
    town.run(20.0)
    assert len(town.worlds) == 1


@pytest.mark.parametrize("limit", [2.0, 20.0, 60.0])
@pytest.mark.parametrize(
    ("phase", "others", "ahead"),
    [("compute", "reduce", 0), ("user", "reduce", 1), ("evaluate", "reduce", 1), ("user", "finish", 1)],
)
def test_a_stuck_worker_goes_after_stuck_after_and_the_option_has_its_effect(
    limit: float, phase: str, others: str, ahead: int
) -> None:
    """In the step that the others wait in, or between that and the one before, where scripts save and evaluate."""
    town = ring_of("a-0", "b-0", "c-0", stuck_after=limit)
    begin = town.now
    for name in ("a-0", "c-0"):
        town.bodies[name].phase, town.bodies[name].step, town.bodies[name].in_phase = others, 7 + ahead, 0.0
    body = town.bodies["b-0"]
    body.step, body.phase, body.in_phase = 7, phase, 0.0
    town.until(lambda: "b-0" not in town.members, limit + 10)
    assert limit <= town.now - begin <= limit + 1.0
    assert town.world.evidence[0].source == "progress"
    assert f"(stuck after {limit:g} s)" in town.world.reason


def test_a_worker_hangs_in_the_step_at_whose_end_a_planned_world_waits() -> None:
    town = ring_of("a-0", "b-0", "c-0", stuck_after=5.0)
    town.ring = town.world.generation
    for name in ("a-0", "c-0"):
        town.bodies[name].phase, town.bodies[name].step, town.bodies[name].in_phase = "reduce", 7, 0.0
    town.bodies["b-0"].step, town.bodies["b-0"].in_phase = 7, 0.0
    for name in ("d-0", "e-0"):
        town.register(name)
        town.run(1.0)
    assert [w.planned for w in town.worlds] == [False, True, True]
    town.until(lambda: "b-0" not in town.members, 5.0)
    assert not town.world.planned
    assert town.world.evidence[0].source == "progress"
    worlds = len(town.worlds)
    town.run(20.0)
    assert len(town.worlds) == worlds, "heartbeats of the ring that was left count no more"


def test_a_worker_that_moves_on_is_not_stuck() -> None:
    town = ring_of("a-0", "b-0", stuck_after=5.0)
    for step in range(1, 10):
        town.bodies["a-0"].phase = "reduce"
        town.bodies["a-0"].step = town.bodies["b-0"].step = step
        town.bodies["a-0"].in_phase = town.bodies["b-0"].in_phase = 0.0
        town.run(4.0)
    assert len(town.worlds) == 1


def test_a_long_step_of_all_is_not_held_against_the_last_one() -> None:
    town = ring_of("a-0", "b-0", "c-0", stuck_after=10.0)
    for body in town.bodies.values():
        body.step, body.in_phase = 7, 0.0
    town.run(15.0)
    for name in ("a-0", "c-0"):
        town.bodies[name].phase, town.bodies[name].in_phase = "reduce", 0.0
    town.run(9.0)
    assert len(town.worlds) == 1
    assert town.until(lambda: "b-0" not in town.members) < 2.0


def test_nobody_is_stuck_when_nobody_waits() -> None:
    town = ring_of("a-0", "b-0", stuck_after=2.0)
    for body in town.bodies.values():
        body.phase = "user"
    town.run(30.0)
    assert len(town.worlds) == 1


def test_the_last_words_of_an_earlier_life_are_no_sign_of_life() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.kill("b-0")
    town.run(1.0)
    old = town.bodies["b-0"]
    town.register("b-0", 2)
    town.run(2.0)
    assert "b-0" in town.members
    town.bodies["b-0"].beats = False
    old.beats, town.bodies["ghost"] = True, old
    town.later(0.5, lambda: stuck(town, "b-0", "T stopped"))
    assert gone(town, "b-0") < 4.5


def test_an_exit_of_an_earlier_life_is_old_news() -> None:
    town = ring_of("a-0", "b-0")
    town.kill("b-0")
    town.run(1.0)
    old = town.bodies["b-0"]
    town.register("b-0", 2)
    town.run(1.0)
    worlds, new = len(town.worlds), town.bodies["b-0"]
    town.bodies["b-0"] = old
    town.exited("b-0")
    town.bodies["b-0"] = new
    town.run(1.0)
    assert len(town.worlds) == worlds
    assert town.members == ["a-0", "b-0"]


def test_a_suspended_process_that_resumes_is_a_joiner() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.bodies["a-0"].beats = False
    town.later(0.5, lambda: stuck(town, "a-0", "T stopped"))
    gone(town, "a-0")
    town.run(1.0)
    body = town.bodies["a-0"]
    body.beats, body.incarnation = True, body.incarnation + 1
    town.again("a-0", has_state_of=17)
    town.run(0.5)
    assert town.members == ["b-0", "c-0", "a-0"]
    assert "a-0 came back with the state of step 17" in town.world.reason
    assert town.world.restarts == 0


def test_its_death_is_noticed_although_its_agent_knows_an_older_incarnation() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.bodies["a-0"].beats = False
    town.later(0.5, lambda: stuck(town, "a-0", "T stopped"))
    gone(town, "a-0")
    body = town.bodies["a-0"]
    body.beats, body.incarnation = True, 2
    town.again("a-0", has_state_of=17)
    town.run(1.0)
    assert "a-0" in town.members
    body.incarnation = 1
    town.kill("a-0")
    assert gone(town, "a-0") < SOON


def test_deaths_of_two_kinds_wait_a_little_for_more_of_them() -> None:
    town = ring_of(*(f"{n}-0" for n in "abcdef"))
    for delay, name in ((0.0, "b-0"), (0.06, "d-0"), (0.12, "e-0")):
        town.later(delay, lambda name=name: setattr(town.bodies[name], "beats", False))
        town.later(delay + 0.5, lambda name=name: stuck(town, name, "T stopped"))
    town.run(4.0)
    assert len(town.worlds) == 2
    assert town.members == ["a-0", "c-0", "f-0"]


def test_evidence_opens_the_trace_that_the_world_carries_on() -> None:
    town = ring_of("a-0", "b-0")
    town.kill("b-0")
    town.run(0.0005)
    assert town.houses[0].view.sight.trace == f"00-{len(town.log)}-b-01"
    gone(town, "b-0")
    town.run(0.1)
    assert town.houses[0].view.sight.trace == ""


def test_what_a_large_ring_says_of_many_dead_stays_short() -> None:
    """Everybody waits for each of them; were all who wait named each time, a world would grow with the square."""
    size, lost = 60, 20
    town = ring_of(*(f"n{i}-0" for i in range(size)))
    for body in town.bodies.values():
        body.phase, body.in_phase = "reduce", 0.0
    for i in range(lost):
        town.nodes[f"n{i}"] = False
        town.kill(f"n{i}-0", silent=True)
        town.bodies[f"n{i}-0"].dial = "silent"
    town.until(lambda: len(town.members) == size - lost, 10.0)
    waits = [e.detail for e in town.world.evidence if e.source == "progress"]
    assert waits
    assert all(f"and {size - lost - 4} more wait for it" in detail and len(detail) < 100 for detail in waits)


def test_a_death_on_two_kinds_is_said_at_once_or_never() -> None:
    """The evidence may be taken back while the broker is away; what is certain stays so."""
    for silent in (True, False):
        town = ring_of("a-0", "b-0", "c-0")
        town.lost = True  # nothing that the service says gets through
        town.nodes["b"] = False
        town.kill("b-0", silent=silent)
        town.bodies["b-0"].dial = "silent"
        outs = []
        publish = town._publish
        town._publish = lambda out, outs=outs, publish=publish: (outs.append(out), publish(out))  # type: ignore[method-assign]
        town.run(4.0)
        worlds = [out.within for out in outs if isinstance(out.event, WorldChanged)]
        assert worlds
        assert set(worlds) == ({1.0} if silent else {None})
