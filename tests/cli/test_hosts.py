"""`reknit run --discover` and `reknit registry` with real launchers, brokers, services and agents."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.agents import until
from support.launchers import Place

# Goes on until the file named by its first argument is there.
GATED = """
import pathlib, sys, time
print("up", flush=True)
gate = pathlib.Path(sys.argv[1])
while not gate.exists():
    time.sleep(0.02)
"""


def write(file: Path, text: str) -> None:
    """All at once: a reader must never see half of a list."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_list_of_hosts_says_who_takes_part_and_the_registry_who_is_there(place: Place) -> None:
    script, hosts = str(place.script("s.py", GATED)), place.folder / "hosts"
    write(hosts, "a\nb:2\nc:4  # not there\n")
    common = ("run", "--job", "j", "--nnodes", "1:2", "--label", "rack=r1")
    follow = ("--discover", f"file:{hosts}", "--discover-every", "0.1")
    first = place.start(*common, *follow, "--node", "a", script, "gate")
    first.until("[a-0] up")
    second = place.start(*common, "--node", "b", script, "gate")
    second.until("[b-1] up")  # as many as the list says
    assert "awaited  c (4 workers)" in place.call("status", "--job", "j").out
    assert {n["node"]: n["labels"]["rack"] for n in place.json("nodes", "--job", "j")} == {"a": "r1", "b": "r1"}

    wanted = {"membership", "shards", "checkpoint", "monitor", "a", "b", "a-0", "b-0", "b-1"}
    rows: dict[str, Any] = {}

    def all_there() -> bool:
        rows.clear()
        rows.update({r["name"]: r for r in place.json("registry", "ls", "--job", "j")})
        well = all(r["health"] == "passing" for r in rows.values() if r["kind"] != "worker")
        return rows.keys() == wanted and well

    until(all_there, "all are registered")
    assert {r["kind"] for r in rows.values()} == {"service", "agent", "worker"}
    assert "answers in" in rows["membership"]["reason"]
    assert rows["monitor"]["address"].startswith("http://127.0.0.1:")
    assert rows["b"]["reason"] == "2 of 2 workers"
    assert rows["b-1"]["health"] == "warning", "its script has not joined the ring"
    assert (rows["b-1"]["node"], rows["b-1"]["pid"] > 0) == ("b", True)
    shown = place.call("registry", "ls", "--job", "j", "--kind", "agent").out
    assert [line.split()[1] for line in shown[1:]] == ["a", "b"]

    watch = place.start("registry", "watch", "--job", "j", "--json")
    until(lambda: len(watch.out) >= len(wanted), "all are told")
    os.kill(rows["b-1"]["pid"], signal.SIGKILL)
    until(
        lambda: any((r := json.loads(line))["name"] == "b-1" and r["what"] == "changed" for line in list(watch.out)),
        "the change is told",
    )

    write(hosts, "a:many\n")
    first.until("'many' is no number of workers")
    write(hosts, "a\nc:4\n")
    second.until("is not in the list of hosts")
    assert second.wait() == 0, second.shown
    until(
        lambda: {"b", "b-0"} <= {r["name"] for r in map(json.loads, list(watch.out)) if r["what"] == "left"},
        "who left is told",
    )
    assert set(rows) - {"b", "b-0", "b-1"} == {r["name"] for r in place.json("registry", "ls", "--job", "j")}
    watch.signal(signal.SIGINT)
    assert watch.wait() == 130
    place.open("gate")
    assert first.wait() == 0, first.shown
    place.nothing_left()


def test_a_list_that_cannot_be_read_is_an_error_before_anything_starts(place: Place) -> None:
    script = str(place.script("s.py", GATED))
    missing = place.call("run", "--job", "j", "--discover", "file:/no/such/list", script, "gate", code=2)
    assert "file:/no/such/list: cannot be read: No such file or directory" in missing.shown
    failing = place.script("hosts.sh", "#!/bin/sh\necho no API key >&2\nexit 7\n")
    failing.chmod(0o755)
    said = place.call("run", "--job", "j", "--discover", f"script:{failing}", script, "gate", code=2)
    assert "exited with 7: no API key" in said.shown
    two = place.call("run", "--discover", "file:/a", "--discover", "file:/b", script, code=2)
    assert "would both tell which hosts take part" in two.shown
    assert "KEY=VALUE" in place.call("run", "--label", "rack", script, code=2).shown
    place.nothing_left()
