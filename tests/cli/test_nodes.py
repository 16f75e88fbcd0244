"""`reknit nodes` of a job whose agents are stopped, killed and over."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from support.agents import until
from support.launchers import Place

GATED = """
import pathlib, sys, time
print("up", flush=True)
gate = pathlib.Path(sys.argv[1])
while not gate.exists():
    time.sleep(0.02)
"""


def row(place: Place, node: str) -> dict[str, Any]:
    return next(n for n in place.json("nodes", "--job", "j") if n["node"] == node)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_agent_that_is_stopped_or_killed_is_not_called_up(place: Place) -> None:
    script = str(place.script("s.py", GATED))
    common = ("run", "--job", "j", "--nnodes", "1:2")
    first = place.start(*common, "--node", "a", script, "gate")
    first.until("[a-0] up")
    second = place.start(*common, "--node", "b", script, "gate")
    second.until("[b-0] up")
    until(lambda: row(place, "b")["state"] == "up", "both are up")
    agents = {r["name"]: r["pid"] for r in place.json("registry", "ls", "--job", "j", "--kind", "agent")}

    os.kill(agents["b"], signal.SIGSTOP)
    stopped = row(place, "b")
    assert (stopped["state"], stopped["up"]) == ("silent", True)
    assert "no heartbeat of its agent is heard" in place.call("nodes", "--job", "j").shown
    os.kill(agents["b"], signal.SIGCONT)
    until(lambda: row(place, "b")["state"] == "up", "it goes on")

    second.process.kill()  # the launcher would start another agent
    os.kill(agents["b"], signal.SIGKILL)
    assert row(place, "b")["state"] in {"silent", "gone"}
    assert row(place, "a")["state"] == "up"

    place.open("gate")
    assert first.wait() == 0, first.shown
    over = row(place, "a")
    assert (over["state"], over["gone_at"] > 0) == ("gone", True)
    place.nothing_left()
