"""The table of evidence and the rule over it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from reknit.core.events import Evidence
from reknit.services.membership.evidence import KINDS, docs, is_proof, observe

ONE_KIND = [s for s, k in KINDS.items() if not k.certain]
CERTAIN = [s for s, k in KINDS.items() if k.certain]


def test_nothing_is_no_proof() -> None:
    assert not is_proof([])


@pytest.mark.parametrize("source", CERTAIN)
def test_one_certain_observation_is_proof(source: str) -> None:
    assert is_proof([observe(source, "w", "o", "d")])  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ONE_KIND)
def test_one_kind_is_no_proof_however_often_it_is_seen(source: str) -> None:
    seen = [observe(source, "w", observer, "d") for observer in "abc"]  # type: ignore[arg-type]
    assert not is_proof(seen)


@pytest.mark.parametrize(("one", "two"), list(itertools.combinations(ONE_KIND, 2)))
def test_two_kinds_are_proof_if_they_came_through_different_channels(one: str, two: str) -> None:
    both = [observe(s, "w", "o", "d") for s in (one, two)]  # type: ignore[arg-type]
    assert is_proof(both) == (KINDS[one].channel != KINDS[two].channel)  # type: ignore[index]


def test_a_cut_connection_and_the_silence_that_follows_are_one_fact() -> None:
    assert not is_proof([observe("disconnect", "w", "broker", ""), observe("heartbeat", "w", "membership", "")])


def test_a_kind_that_is_not_in_the_table_counts_for_nothing() -> None:
    strange = Evidence(about="w", source="asked", observer="o")
    assert not is_proof([strange, observe("ring", "w", "o", "")])


def test_a_stuck_worker_may_be_certain_although_its_kind_is_not() -> None:
    assert is_proof([observe("progress", "w", "membership", "", certain=True)])


def test_the_documentation_holds_the_table_as_it_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "membership.md"
    assert docs() in page.read_text(), "docs/membership.md: replace the table by what evidence.docs() returns"
