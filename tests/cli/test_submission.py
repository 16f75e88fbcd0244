from __future__ import annotations

import dataclasses

import msgspec
import pytest

from reknit.cli.submission import Begin, Join, decide, first_difference, history_of
from reknit.core.errors import Unauthorized, UsageError
from reknit.core.events import AgentJoined, AgentLeft, AnyEvent, JobFinished, JobSubmitted


@dataclasses.dataclass(frozen=True)
class Stored:
    event: AnyEvent
    seq: int


def spec(run: str = "r1", **more: object) -> JobSubmitted:
    return msgspec.structs.replace(JobSubmitted(run=run, script="/a/train.py", secret_check="s"), **more)


def joined(node: str) -> AgentJoined:
    return AgentJoined(node=node, run="r1", host="h", pid=1, nproc=1)


def log(*events: AnyEvent) -> list[Stored]:
    return [Stored(event, seq) for seq, event in enumerate(events, 1)]


def decision(
    *events: AnyEvent, mine: JobSubmitted | None = None, node: str = "n", asked: bool = False, alive: str = ""
):
    history = history_of(log(*events))
    return decide("j", history, mine or spec("r9"), node, node_asked=asked, alive=set(alive.split()))


def test_the_first_run_begins_and_expects_no_submission() -> None:
    assert decision() == Begin(spec("r9"), 0)


def test_after_an_end_a_new_run_begins_and_expects_the_last_submission() -> None:
    found = decision(joined("x"), spec("r1"), joined("n"), JobFinished(run="r1", outcome="failed"))
    assert found == Begin(spec("r9"), 2)


def test_the_end_of_another_run_is_no_end() -> None:
    assert not history_of(log(spec("r1"), JobFinished(run="r0", outcome="failed"))).finished


def test_a_second_submission_while_a_run_is_alive_does_not_count() -> None:
    history = history_of(log(spec("r1"), spec("r2"), joined("a")))
    assert history.spec is not None
    assert (history.spec.run, history.seq, history.nodes) == ("r1", 1, ("a",))


def test_nodes_are_those_that_did_not_leave() -> None:
    history = history_of(log(spec(), joined("a"), joined("b"), AgentLeft(node="a"), joined("b")))
    assert history.nodes == ("b",)


def test_a_live_job_is_joined_with_its_own_run() -> None:
    found = decision(spec("r1", max_nodes=2), joined("a"), alive="a", node="b")
    assert found == Join(spec("r1", max_nodes=2), "b", interrupted=False)


def test_an_interrupted_job_is_gone_on_with_under_the_same_name_of_the_node() -> None:
    found = decision(spec("r1"), joined("n"), node="n", asked=True)
    assert found == Join(spec("r1"), "n", interrupted=True)


def test_a_default_name_that_is_taken_gets_a_number_a_wish_is_refused() -> None:
    live = (spec("r1", max_nodes=4), joined("n"))
    found = decision(*live, alive="n n-2")
    assert isinstance(found, Join)
    assert found.node == "n-3"
    with pytest.raises(UsageError, match="node 'n' takes part in job 'j' already"):
        decision(*live, alive="n", asked=True)


@pytest.mark.parametrize(("spares", "nproc", "most"), [(0, 1, 2), (1, 1, 3), (1, 4, 3), (5, 4, 4)])
def test_no_more_nodes_than_the_job_takes_spares_included(spares: int, nproc: int, most: int) -> None:
    live = spec("r1", max_nodes=2, spares=spares, nproc_per_node=nproc)
    names = " ".join(f"a{i}" for i in range(most))
    assert isinstance(decision(live, alive=names.rpartition(" ")[0]), Join)
    with pytest.raises(UsageError, match=f"takes no more nodes: {most} of {most}"):
        decision(live, alive=names)


def test_another_secret_is_refused_clearly_and_before_anything_else() -> None:
    with pytest.raises(Unauthorized, match="secret is not the one of job 'j'") as raised:
        decision(spec("r1", args=("1",)), mine=spec("r9", secret_check="other"), alive="a")
    assert "--secret-file" in raised.value.hint
    assert raised.value.exit_code == 77


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"script": "/b/train.py"}, ""),
        ({"script": "/a/other.py"}, "script: train.py there, other.py here"),
        ({"args": ("x", "2")}, "argument 2 of the script: '1' there, '2' here"),
        ({"args": ("x", "1", "y")}, "argument 3 of the script: nothing there, 'y' here"),
        ({"args": ("x",)}, "argument 2 of the script: '1' there, nothing here"),
        ({"slots": 3}, "number of slots: 0 there, 3 here"),
        ({"nproc_per_node": 4, "run": "r2"}, ""),
    ],
)
def test_the_first_difference_is_named(change: dict[str, object], said: str) -> None:
    theirs = spec(args=("x", "1"))
    mine = msgspec.structs.replace(theirs, **change)
    assert first_difference(theirs, mine) == said
    if said:
        with pytest.raises(UsageError) as raised:
            decision(theirs, mine=mine, alive="a")
        assert said in str(raised.value)
        assert "runs on a" in str(raised.value)
        assert "reknit stop --job j" in raised.value.hint
        with pytest.raises(UsageError, match="was interrupted"):
            decision(theirs, mine=mine)
