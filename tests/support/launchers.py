"""Real `reknit` commands in a home of their own, and what they leave running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.agents import until

REKNIT = [sys.executable, "-m", "reknit.cli"]


class Command:
    """One command that runs, its output collected as it comes."""

    def __init__(self, place: Place, argv: list[str], env: dict[str, str], stdout: int) -> None:
        self.process = subprocess.Popen(
            argv,
            cwd=place.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
            if stream is not None
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))  # noqa: PERF401  (read while it grows)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def shown(self) -> str:
        return "\n".join([*self.out, *self.err])

    def until(self, text: str, within: float = 60.0) -> None:
        """Wait until a line that holds the text was written."""
        with contextlib.suppress(AssertionError):
            until(lambda: text in self.shown or self.process.poll() is not None, text, within)
        if self.process.poll() is not None:
            self._settle(2.0)
        assert text in self.shown, f"{text!r} not in\n{self.shown}"

    def wait(self, within: float = 60.0) -> int:
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within} s:\n{self.shown}") from None
        self._settle(2.0)
        return code

    def _settle(self, within: float) -> None:
        for thread in self._threads:
            thread.join(within)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class Place:
    """A folder for scripts, a home, and all processes that were started with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("REKNIT_", "PET_"))}
        self.env |= {"REKNIT_HOME": str(self.home), "NO_COLOR": "1"}
        self.commands: list[Command] = []

    def script(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        return file

    def open(self, gate: str) -> None:
        """Let scripts end that wait for this file."""
        (self.folder / gate).touch()

    def start(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        stdout: int = subprocess.PIPE,
        wrap: tuple[str, ...] = (),
    ) -> Command:
        command = Command(self, [*wrap, *REKNIT, *args], self.env if env is None else env, stdout)
        self.commands.append(command)
        return command

    def call(self, *args: str, code: int | None = 0, within: float = 60.0, **more: Any) -> Command:
        command = self.start(*args, **more)
        got = command.wait(within)
        assert code is None or got == code, f"exit code {got}, not {code}:\n{command.shown}"
        return command

    def json(self, *args: str, code: int | None = 0) -> Any:
        return json.loads("\n".join(self.call(*args, "--json", code=code).out))

    def processes(self) -> dict[int, str]:
        """All living processes that were started with this home, or one beside or inside it: pid -> command line."""
        found = {}
        mark = f"REKNIT_HOME={self.home}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    ours = any(v.startswith(mark) for v in (entry / "environ").read_bytes().split(b"\0"))
                    if ours and state_of(int(entry.name)) != "Z":
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def pids(self, of: str) -> list[int]:
        return sorted(pid for pid, command in self.processes().items() if of in command)

    def nothing_left(self, within: float = 15.0) -> None:
        with contextlib.suppress(AssertionError):
            until(lambda: not self.processes(), "nothing left", within)
        assert not self.processes(), "left running"

    def clean(self) -> None:
        deadline = time.monotonic() + 10.0
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for command in self.commands:
            command.process.wait(5.0)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
