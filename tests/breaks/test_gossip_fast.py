"""`--gossip fast` with real launchers, agents and workers on hosts of their own: one is gone without a word.

`pytest -m slow tests/breaks/test_gossip_fast.py`. How long it took, and on what evidence, goes into the file that
REKNIT_TIMES names; nothing is asserted of it beyond a deadline.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.breaks import record
from support.hosts import Hosts, NoHosts
from support.launchers import Place
from support.trainings import Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROUNDS, MOST = 3, 10
"""So often a host is silenced, and more often until its neighbours were among those who said so (a busy machine)."""


@pytest.fixture
def fast(place: Place) -> Iterator[Training]:
    """Three workers on three hosts; their agents watch each other at the fast preset."""
    try:
        with Hosts() as hosts:
            run = Training(place, hosts, "abc", flags=("--gossip", "fast"))
            try:
                run.begin()
                yield run
            finally:
                run.end()
    except NoHosts as why:
        pytest.skip(str(why))


def test_a_host_that_falls_silent_is_left_out_and_comes_back(fast: Training) -> None:
    (submitted,) = fast.events("job.submitted")
    assert submitted["gossip"] == "fast"
    assert all(e["gossip"] for e in fast.events("node.joined"))
    kinds: list[set[str]] = []
    while len(kinds) < ROUNDS or not any("gossip" in kind for kind in kinds):
        assert len(kinds) < MOST, f"the neighbours never had a say: {kinds}"
        lost = fast.ring()[1]
        rest = fast.everybody - {lost}
        pids = {worker: fast.worker(worker) for worker in fast.everybody}
        at = fast.now()
        fast.hosts.unplug(fast.host(lost))
        try:
            mended = fast.mended(at, rest)
            fast.goes_on(rest, 5)
            assert fast.evicted(at) == {lost}
            (world,) = (e for e in fast.events("world.changed", at) if lost in e["removed"])
            kinds.append({e["source"] for e in world["evidence"] if e["about"] in (lost, lost[0])})
            record("gossip fast: host gone", mended, level="hosts", evidence=sorted(kinds[-1]), known=world["at"] - at)
        finally:
            fast.hosts.plug(fast.host(lost))
        fast.whole(fast.now())
        assert {worker: fast.worker(worker) for worker in fast.everybody} == pids, "a process was started anew"
    assert fast.check() > 3
