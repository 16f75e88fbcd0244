"""A silent host: what is sent to it and by it vanishes, without a reset or a refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hosts
import pytest
from hosts import NoNetworks, own_network

BENCH = Path(hosts.__file__).parent

PLAY = """
import socket, subprocess, sys, time
from pathlib import Path
from hosts import HERE, Hosts, NoNetworks, own_network
from offspring import Offspring

try:
    own_network()
except NoNetworks as error:
    sys.exit(f"NO NETWORKS: {error}")

ECHO = '''
import socket
with socket.create_server(("0.0.0.0", 7000)) as server:
    while True:
        link, _ = server.accept()
        while got := link.recv(100):
            link.sendall(got)
'''

def reach(address):
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((address, 7000), 0.5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)

folder = Path(sys.argv[1])
for _ in range(2):  # a second bridge after the first one
    with Offspring() as offspring:
        hosts = Hosts(offspring, folder)
        host, other = hosts.add(), hosts.add()
        for one in (host, other):
            command = [*one.prefix, sys.executable, "-c", ECHO]
            offspring.start(command, tag=one.port, log=folder / "log", env={}, cwd=folder)
        link, second = reach(host.address), reach(other.address)
        link.sendall(b"1")
        assert link.recv(10) == b"1"
        hosts.silence(host)
        link.settimeout(0.5)
        link.sendall(b"2")  # no error
        try:
            print("heard", link.recv(10))  # a reset would raise ConnectionError, an answer be printed
        except TimeoutError:
            print("silent")
        try:
            socket.create_connection((host.address, 7000), 0.5)
        except TimeoutError:
            print("no answer")  # a refusal would raise ConnectionRefusedError
        second.sendall(b"3")
        assert second.recv(10) == b"3", "the other host is heard"
        hosts.hear(host)
        link.settimeout(30)
        assert link.recv(10) == b"2", "it arrives when the port is up again"
        link.close()
        second.close()
        offspring.end(0.0)
        hosts.close()
print("done")
"""


def test_a_silent_host_answers_nothing_and_refuses_nothing(tmp_path):
    script = tmp_path / "play.py"
    script.write_text(PLAY)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={"PYTHONPATH": str(BENCH), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if "NO NETWORKS" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:5] == ["silent", "no answer", "silent", "no answer", "done"]


def test_without_its_tools_it_says_which(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("BENCH_OWN_NETWORK", raising=False)
    with pytest.raises(NoNetworks, match="unshare and nsenter and ip not found"):
        own_network()
