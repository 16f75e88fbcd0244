"""`reknit up`, `down`, `service`, and runs that use what is up."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from reknit.core.manifest import Manifest, StoredFile, write_manifest
from support.agents import until
from support.launchers import Place

GATED = """
import pathlib, sys, time
print("up", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""


def _checkpoints_are_found_by_the_broker(place: Place) -> None:
    """From another home only the broker knows where the job's checkpoints are."""
    index = StoredFile(number=-1, file="index-w.msgpack", bytes=0, hash="")
    chunk = StoredFile(number=0, file="chunk-00000-w.safetensors", bytes=0, hash="")
    made = Manifest(checkpoint="r-1", number=1, job="one", run="r", step=7, index=index, chunks=(chunk,))
    folder = place.home / "jobs/one/checkpoints/one" / made.directory
    folder.mkdir(parents=True)
    write_manifest(folder, made)
    elsewhere = {**place.env, "REKNIT_HOME": f"{place.home}/elsewhere"}
    given = ("--nats", str(place.home / "up/endpoint.json"))
    found = place.call("checkpoints", "ls", "--job", "one", *given, "--json", env=elsewhere)
    assert [row["step"] for row in json.loads("\n".join(found.out))] == [7]
    assert "no checkpoint of job two" in place.call("checkpoints", "ls", *given, env=elsewhere).shown
    assert "there is no job 'three'" in place.call("trace", "--job", "three", *given, env=elsewhere, code=2).shown


def test_up_is_used_by_runs_and_down_ends_exactly_it(place: Place) -> None:
    script = str(place.script("s.py", ""))
    place.call("up")
    assert len(place.pids("nats-server")) == 1
    assert "up already" in place.call("up").shown

    place.call("run", "--job", "one", script)
    place.call("run", "--job", "two", script)
    assert not (place.home / "jobs/one/broker").exists()
    for job in ("one", "two"):
        events = place.json("events", "--job", job)
        assert {row["job"] for row in events} == {job}
        assert sum(row["event"]["kind"] == "job.submitted" for row in events) == 1
    assert place.json("status")["job"] == "two"
    _checkpoints_are_found_by_the_broker(place)

    place.call("down")
    place.nothing_left()
    assert not (place.home / "up/up.json").exists()
    assert "nothing to end" in place.call("down").shown
    assert place.json("status", "--job", "one")["state"] == "completed", "its log is still readable"
    place.nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_up_with_a_standby_and_nodes_of_a_job(place: Place) -> None:
    """Two membership services are kept, `reknit nodes` shows who took part, and `down` ends both."""
    assert "membership-standby" in place.call("up", "--standby").shown
    assert len(place.pids("reknit.services.membership")) == 2
    place.call("run", "--job", "one", "--node", "left", str(place.script("s.py", "")))
    (node,) = place.json("nodes", "--job", "one")
    assert (node["node"], node["state"], node["restarts"], node["flaps"]) == ("left", "gone", 0, 0)
    assert "KEPT OUT UNTIL" in place.call("nodes", "--job", "one").shown
    place.call("down")
    place.nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_up_again_after_a_kill_has_the_same_place(place: Place) -> None:
    place.call("up")
    before = (place.home / "up/endpoint.json").read_text()
    supervisor = json.loads((place.home / "up/up.json").read_text())["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGKILL)
    place.nothing_left()
    place.call("up")
    assert (place.home / "up/endpoint.json").read_text() == before
    place.call("down")
    place.nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_down_leaves_processes_alone_that_have_the_same_pid(place: Place) -> None:
    place.call("up")
    file = place.home / "up/up.json"
    content = json.loads(file.read_text())
    place.call("down")
    # as if the machine had been restarted and the pids were others' now
    innocent = place.start("service", "shards", "--nats", "127.0.0.1:1")
    content["supervisor"] |= {"pid": innocent.pid, "started": 1}
    content["children"] = [content["supervisor"]]
    file.write_text(json.dumps(content))
    place.call("down")
    assert innocent.process.poll() is None or innocent.process.returncode >= 0, "not killed by a signal"
    assert not file.exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_service_that_falls_silent_is_started_by_the_run(place: Place) -> None:
    place.call("up")
    run = place.start("run", "--job", "j", str(place.script("s.py", GATED)), "gate")
    run.until("] up")
    stopped = place.pids("reknit.services.shards")[0]
    os.kill(stopped, signal.SIGSTOP)
    run.until("the service shards has been silent")
    until(lambda: [pid for pid in place.pids("reknit.services.shards") if pid != stopped], "another shards service")
    place.open("gate")
    assert run.wait() == 0, run.shown
    place.call("down")
    place.nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_agent_that_the_broker_refuses_is_not_started_again(place: Place) -> None:
    place.call("up")
    endpoint = json.loads((place.home / "up/endpoint.json").read_text())
    # what a proxy or an operator does to one process: its credentials are not those of the launcher
    (place.folder / "sitecustomize.py").write_text(
        f"import os\nfound = os.environ.get('REKNIT_AGENT')\nif found:\n"
        f"    os.environ['REKNIT_AGENT'] = found.replace({endpoint['password']!r}, 'another')\n"
    )
    url = endpoint["url"].replace("//", f"//{endpoint['user']}:{endpoint['password']}@")
    env = place.env | {"PYTHONPATH": str(place.folder)}
    run = place.call("run", "--nats", url, "--job", "j", str(place.script("s.py", GATED)), "gate", code=77, env=env)
    assert run.shown.count("refused the credentials") == 1, "not tried again"
    assert "refuses the credentials of node" in run.shown
    assert "check --nats" in run.shown
    place.call("down")
    place.nothing_left()


def test_wrong_credentials_and_wrong_secret_are_refused_at_once(place: Place) -> None:
    place.call("up")
    endpoint = json.loads((place.home / "up/endpoint.json").read_text())
    host = endpoint["url"].removeprefix("nats://")
    script = str(place.script("s.py", GATED))
    began = time.monotonic()
    run = place.call("run", "--nats", f"nats://reknit:wrong@{host}", script, "gate", code=77)
    assert time.monotonic() - began < 20.0, "at once, not after many tries"
    assert host in run.shown
    assert "wrong" not in run.shown

    url = f"nats://{endpoint['user']}:{endpoint['password']}@{host}"
    mine = place.folder / "mine"
    mine.write_text("one secret\n")
    first = place.start(
        "run", "--nats", url, "--job", "j", "--nnodes", "1:2", "--secret-file", str(mine), script, "gate"
    )
    first.until("] up")
    other = place.folder / "other"
    other.write_text("another secret\n")
    common = ("run", "--nats", url, "--job", "j", "--nnodes", "1:2", "--node", "b")
    refused = place.call(*common, "--secret-file", str(other), script, "gate", code=77)
    assert "this node's secret is not the one of job 'j'" in refused.shown
    assert "--secret-file" in refused.shown
    second = place.start(*common, "--secret-file", str(mine), script, "gate")
    second.until("] up")
    place.open("gate")
    assert second.wait() == 0, second.shown
    assert first.wait() == 0, first.shown
    place.call("down")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_service_in_the_foreground(place: Place) -> None:
    place.call("up")
    extra = place.start("service", "monitor")
    until(lambda: len(place.pids("reknit.services.monitor")) == 2, "a second monitor")
    extra.signal(signal.SIGTERM)
    assert extra.wait() in {0, 143, -signal.SIGTERM}
    place.call("down")
    assert "reknit up" in place.call("service", "monitor", code=75).shown
    assert "did you mean 'shards'" in place.call("service", "shard", code=2).shown
