"""Which worlds are planned: each row of the table is played."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reknit.services.membership import planned
from reknit.services.membership.planned import HINDRANCES, PLANNED, Hindrance, docs
from support.town import Town


def ring_of(*workers: str, **spec: object) -> Town:
    town = Town(**{"min_nodes": 1, "max_nodes": 8, "last_call": 0.5, **spec})
    for worker in workers:
        town.register(worker)
    town.run(2.0)
    town.committed(3)
    return town


def joins() -> Town:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.until(lambda: "c-0" in town.members)
    return town


def promotes() -> Town:
    town = ring_of("a-0", "b-0", "c-0", max_nodes=2)
    assert town.roles["c-0"] == "spare"
    town.scale(3)
    town.until(lambda: town.roles["c-0"] == "active")
    return town


def leaves() -> Town:
    town = ring_of("a-0", "b-0", "c-0")
    town.leaving("b-0")
    town.idle("b-0")
    town.until(lambda: "b-0" not in town.members)
    return town


PLAYED = list(zip(PLANNED, [joins, promotes, leaves], strict=True))


@pytest.mark.parametrize(("row", "play"), PLAYED)
def test_nobody_is_lost(row: tuple[str, str], play: Callable[[], Town]) -> None:
    town = play()
    assert [w.planned for w in town.worlds] == [False, True], row


def nobody_left() -> Town:
    town = ring_of("a-0")
    town.kill("a-0")
    town.run(1.0)
    town.register("a-0", 2)
    town.until(lambda: town.world.status == "running")
    return town


def resumes() -> Town:
    town = ring_of("a-0", "b-0", min_nodes=2)
    town.kill("b-0")
    town.run(1.0)
    assert town.world.status == "paused"
    town.register("b-0", 2)
    town.until(lambda: town.world.status == "running")
    return town


def pauses() -> Town:
    town = ring_of("a-0", "b-0", min_nodes=2)
    town.leaving("b-0")
    town.idle("b-0")
    town.until(lambda: town.world.status == "paused")
    return town


def dies() -> Town:
    town = ring_of("a-0", "b-0", "c-0")
    town.leaving("b-0")
    town.idle("b-0")
    town.kill("c-0")
    town.until(lambda: "c-0" not in town.members)
    return town


def killed_while_leaving() -> Town:
    town = ring_of("a-0", "b-0", "c-0")
    town.leaving("b-0")
    town.exited("b-0", code=-9)
    town.until(lambda: "b-0" not in town.members)
    return town


def breaks() -> Town:
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0")
    town.until(lambda: len(town.worlds) == 2)
    return town


def finishes() -> Town:
    town = ring_of("a-0", "b-0", "c-0", spares=0, max_nodes=2)
    town.finished("a-0", 10)
    town.run(0.5)
    town.scale(3)
    town.run(3.0)
    town.kill("b-0")
    town.until(lambda: "b-0" not in town.members)
    return town


HINDERED = list(
    zip(HINDRANCES, [nobody_left, resumes, pauses, dies, killed_while_leaving, breaks, finishes], strict=True)
)


@pytest.mark.parametrize(("row", "play"), HINDERED)
def test_each_hindrance_alone_makes_the_world_unplanned(
    row: Hindrance, play: Callable[[], Town], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not play().world.planned
    monkeypatch.setattr(planned, "HINDRANCES", (row,))
    assert not play().world.planned
    monkeypatch.setattr(planned, "HINDRANCES", ())
    assert play().world.planned


def test_an_agent_that_takes_its_workers_along_is_no_plan() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.node_left("b")
    town.until(lambda: "b-0" not in town.members)
    assert not town.world.planned


def test_a_joiner_that_comes_while_a_link_is_broken_makes_no_plan_of_it() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.register("d-0")
    town.run(0.09)
    town.broken("a-0", "b-0")
    town.until(lambda: "d-0" in town.members)
    assert not town.world.planned


def test_the_last_world_is_no_plan() -> None:
    town = ring_of("a-0", "b-0")
    town.finished("a-0", 10)
    town.finished("b-0", 10)
    town.until(lambda: town.world.status == "finished")
    assert not town.world.planned


def test_the_documentation_holds_the_table_as_it_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "membership.md"
    assert docs() in page.read_text(), "docs/membership.md: replace the table by what planned.docs() returns"
