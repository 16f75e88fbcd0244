"""Twenty hosts, each a network namespace with a process of its own, whose links are cut and healed."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reknit.gossip.preset import FAST
from reknit.gossip.tally import Count, count, observers
from support.hosts import Host, Hosts, NoHosts

SIZE = 20
SILENCE = math.ceil(FAST.silence / FAST.interval) + 1
"""Rounds of pings after which whoever does not answer is missed."""
PATIENCE = 120.0


class Village:
    """Hosts and what their processes said last."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.said: dict[str, dict[str, Any]] = {}
        self.ever_silent: set[str] = set()
        self._processes: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []

    def move_in(self, name: str, *seeds: str) -> Host:
        """Start one more."""
        host = self.hosts.add(name)
        command = [*host.wrap, sys.executable, "-m", "support.gossip_node", name, host.address, FAST.name, *seeds]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ":".join(sys.path)}
        )
        self._processes.append(process)
        thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        thread.start()
        self._threads.append(thread)
        return host

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            report = json.loads(line)
            self.said[report["name"]] = report
            self.ever_silent |= set(report["silent"])

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Poll until it holds."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"never came true: {what}; {self.said}"
            time.sleep(0.02)

    def rounds_pass(self, count: int, holds: Callable[[], bool] = lambda: True) -> None:
        """Wait until every process has pinged its subjects so many times more, and see that it holds all the while."""
        before = {name: report["rounds"] for name, report in self.said.items()}

        def passed() -> bool:
            assert holds(), f"not any more: {self.said}"
            return all(self.said[name]["rounds"] >= rounds + count for name, rounds in before.items())

        self.until(passed, f"{count} more rounds")

    def tally(self, but: set[str] = frozenset()) -> Count:  # type: ignore[assignment]
        """What membership would count, were it told by all but some."""
        reports = {n: r["silent"] for n, r in self.said.items() if n not in but and not r["sick"]}
        return count(reports, observers(self.said, FAST), FAST)

    def agree(self, *but: str) -> bool:
        """Do all but some see exactly all but these?"""
        there = sorted(set(self.said) - set(but))
        return all(self.said[name]["alive"] == there for name in there)

    def end(self) -> None:
        """End them all."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def village() -> Iterator[Village]:
    try:
        with Hosts() as hosts:
            found = Village(hosts)
            try:
                first = found.move_in("h0")
                found.until(lambda: "h0" in found.said, "the first one listens")
                seed = found.said["h0"]["address"]
                assert seed.startswith(first.address)
                for i in range(1, SIZE):
                    found.move_in(f"h{i}", seed)
                found.until(lambda: len(found.said) == SIZE and found.agree(), "all know all")
                found.rounds_pass(SILENCE)  # those that came late have answered their observers by now
                found.until(lambda: not any(r["silent"] or r["sick"] for r in found.said.values()), "all answer")
                yield found
            finally:
                found.end()
    except NoHosts as why:
        pytest.skip(str(why))


def test_unplugged_hosts_are_out_of_reach_and_nobody_else_and_come_back(village: Village) -> None:
    lost = {"h3", "h7", "h8"}
    for name in lost:
        village.hosts.unplug(village.hosts.hosts[name])
    village.until(lambda: set(village.tally(lost).out) == lost, "the lost are out of reach")
    assert not village.tally(lost).unstable
    village.until(lambda: all(village.said[n]["sick"] for n in lost), "who is alone says that it is sick")
    village.until(lambda: village.agree(*lost), "the others know that they are gone")
    for name in lost:
        village.hosts.plug(village.hosts.hosts[name])
    village.until(village.agree, "all know all again")
    village.until(lambda: not village.tally().out, "nobody is out of reach")


def test_a_link_between_two_that_is_cut_puts_nobody_out_of_reach(village: Village) -> None:
    a = village.hosts.hosts["h1"]
    subject = next(n for n, who in observers(village.said, FAST).items() if "h1" in who)
    b = village.hosts.hosts[subject]
    village.hosts.cut(a, b)
    village.until(lambda: subject in village.said["h1"]["silent"], "its observer misses it")
    village.rounds_pass(2 * SILENCE, lambda: not village.tally().out)
    assert subject in village.said["h1"]["silent"]
    assert village.agree()  # others answered for it
    village.hosts.heal(a, b)
    village.until(lambda: not village.said["h1"]["silent"], "its observer hears it again")


def test_halves_find_each_other_again(village: Village) -> None:
    few = {f"h{i}" for i in range(6)}
    village.hosts.split(*(village.hosts.hosts[n] for n in few))
    village.until(
        lambda: all(set(r["alive"]) == (few if n in few else set(village.said) - few) for n, r in village.said.items()),
        "each half knows itself",
    )
    for name in few:
        village.hosts.plug(village.hosts.hosts[name])
    village.until(village.agree, "all know all again")
