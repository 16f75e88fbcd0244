"""A list of hosts: who is not on it drains, its numbers are what nodes keep, what is doubtful drains nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.core.events import AgentJoined, AgentLeft, DrainAsked, HostsListed, ListedHost
from reknit.services.membership.hosts import spread
from support.town import Town


def town_of(*nodes: str, houses: int = 1, **spec: object) -> Town:
    """`a@10.0.0.1`: a node at an address, with one worker that trains."""
    town = Town(houses=houses, **{"max_nodes": 8, "last_call": 0.5, **spec})
    for text in nodes:
        join(town, text)
    town.run(2.0)
    return town


def join(town: Town, text: str, labels: dict[str, str] | None = None) -> None:
    name, _, address = text.partition("@")
    town.nodes[name] = True
    town.say(
        AgentJoined(node=name, run=town.run_id, host=address or "h", pid=1, nproc=1, client_id=0, labels=labels or {})
    )
    town.register(f"{name}-0", node=name)


def listed(*lines: str) -> tuple[ListedHost, ...]:
    """`n1:4=10.0.0.1`: a host with its number of workers and its address."""
    hosts = []
    for line in lines:
        said, _, address = line.partition("=")
        name, _, slots = said.partition(":")
        hosts.append(ListedHost(host=name, slots=int(slots or 0), addresses=(address,) if address else ()))
    return tuple(hosts)


def say(town: Town, *lines: str) -> None:
    town.say(HostsListed(run=town.run_id, hosts=listed(*lines)))
    town.run(1.0)


def drained(town: Town) -> list[str]:
    return [e.target for _, e, _ in town.log if isinstance(e, DrainAsked)]


def test_a_host_that_is_no_longer_listed_is_drained_once() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2", "c@10.0.0.3", houses=2)
    say(town, "h1=10.0.0.1", "h2=10.0.0.2", "h3=10.0.0.3")
    assert drained(town) == []
    say(town, "h1=10.0.0.1", "h3=10.0.0.3")
    town.run(30.0)
    assert drained(town) == ["b"]
    asked = next(e for _, e, _ in town.log if isinstance(e, DrainAsked))
    assert asked.reason == "10.0.0.2 is not in the list of hosts"


def test_a_host_that_is_listed_again_may_come_back_and_is_drained_again() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2")
    say(town, "h1=10.0.0.1")
    town.exited("b-0", 0, expected=True)
    town.say(AgentLeft(node="b"))
    town.run(1.0)
    say(town, "h1=10.0.0.1", "h2=10.0.0.2")
    town.say(AgentJoined(node="b", run=town.run_id, host="10.0.0.2", pid=2, nproc=1))
    town.run(1.0)
    assert drained(town) == ["b"]
    say(town, "h1=10.0.0.1")
    assert drained(town) == ["b", "b"]


def test_a_node_of_a_host_that_is_not_listed_drains_when_it_joins() -> None:
    town = town_of("a@10.0.0.1")
    say(town, "h1=10.0.0.1")
    join(town, "b@10.0.0.2")
    town.run(1.0)
    assert drained(town) == ["b"]


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        ("b", {}),
        ("10.0.0.2", {}),
        ("x=10.0.0.2", {}),
        ("machine", {"hostname": "machine"}),
        ("machine.example.org", {"hostname": "machine"}),
        ("machine", {"hostname": "machine.example.org"}),
    ],
)
def test_what_a_list_may_call_a_node(line: str, labels: dict[str, str]) -> None:
    town = town_of("a@10.0.0.1")
    join(town, "b@10.0.0.2", labels)
    say(town, "a", line)
    assert drained(town) == []


@pytest.mark.parametrize("line", ["machine2", "machine.other.org", "10", "x=10.0.0.22"])
def test_what_is_another_host(line: str) -> None:
    town = town_of("a@10.0.0.1")
    join(town, "b@10.0.0.2", {"hostname": "machine.example.org"})
    say(town, "a", line if "=" in line else f"{line}=10.9.9.9")
    assert drained(town) == ["b"]


def test_a_name_that_resolves_to_nothing_may_be_anybodys() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2")
    say(town, "h1=10.0.0.1", "mystery")
    assert drained(town) == []
    say(town, "h1=10.0.0.1", "mystery=10.0.0.9")
    assert drained(town) == ["b"]


def test_a_list_with_nobody_on_it_that_is_here_drains_nobody() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2")
    say(town, "h8=10.0.1.8", "h9=10.0.1.9")
    assert drained(town) == []
    join(town, "c@10.0.1.8")
    town.run(1.0)
    assert sorted(drained(town)) == ["a", "b"], "now somebody is there to go on"


def test_the_numbers_of_a_list_are_what_nodes_keep() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2")
    say(town, "h1:3=10.0.0.1", "h2=10.0.0.2")
    assert town.targets == {"a": 3}
    say(town, "h1:2=10.0.0.1", "h2:5=10.0.0.2")
    assert town.targets == {"a": 2, "b": 5}
    say(town, "h1=10.0.0.1", "h2=10.0.0.2")
    assert town.targets == {"a": 2, "b": 5}, "no numbers any more: they keep what they have"


def test_nodes_of_one_host_share_its_number() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.1", "c@10.0.0.2")
    say(town, "h1:3=10.0.0.1", "h2:1=10.0.0.2")
    assert town.targets == {"a": 2, "b": 1, "c": 1}


def test_a_job_that_was_scaled_is_spread_within_the_room_of_the_list() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2")
    town.scale(6)
    town.run(1.0)
    assert town.targets == {"a": 3, "b": 3}
    say(town, "h1:2=10.0.0.1", "h2=10.0.0.2")
    assert town.targets == {"a": 2, "b": 4}
    say(town, "h1:2=10.0.0.1", "h2:2=10.0.0.2")
    assert town.targets == {"a": 2, "b": 2}


def test_a_list_of_another_run_is_not_ours() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2")
    town.say(HostsListed(run="another", hosts=listed("h1=10.0.0.1")))
    town.run(1.0)
    assert drained(town) == []


def test_what_is_asked_is_the_same_after_a_restart_of_the_service() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2")
    say(town, "h1:2=10.0.0.1")
    assert town.replay().record == town.houses[0].view.record


rooms = st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(0, 5))


@given(st.integers(0, 40), rooms)
def test_properties_of_spreading(workers: int, rooms: dict[str, int | None]) -> None:
    counts = spread(workers, rooms)
    assert counts.keys() == rooms.keys()
    assert all(most is None or counts[node] <= most for node, most in rooms.items())
    most = sum(m for m in rooms.values() if m is not None)
    enough = any(m is None for m in rooms.values()) or most >= workers
    assert sum(counts.values()) == (workers if enough else most)
    # evenly: whoever has two fewer than another has no more room
    for node, count in counts.items():
        assert count >= max(counts.values()) - 1 or count == rooms[node]


def test_one_that_was_taken_off_the_list_leaves_whatever_another_name_may_mean() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2", "c@10.0.0.3")
    say(town, "h1=10.0.0.1", "h2=10.0.0.2", "not-up-yet")
    assert drained(town) == [], "c may be the one that is not up yet"
    say(town, "h1=10.0.0.1", "not-up-yet")
    assert drained(town) == ["b"], "b was h2, and h2 is off"
    say(town, "h1=10.0.0.1", "h2=10.0.0.2", "not-up-yet=10.0.0.4")
    assert drained(town) == ["b", "c"]


def test_a_node_of_that_name_on_another_machine_was_never_listed() -> None:
    town = town_of("a@10.0.0.1", "b@10.0.0.2")
    say(town, "h1=10.0.0.1", "h2=10.0.0.2", "mystery")
    join(town, "b@10.0.0.9")
    say(town, "h1=10.0.0.1", "mystery")
    assert drained(town) == [], "it may be the mystery"
