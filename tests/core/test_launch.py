from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from reknit.core.launch import Backoff, Keeper, Notice, Program, Unreached, sweep
from support.agents import alive, until

FAST = Backoff(first=0.01, most=0.05, healthy=1.0, give_up=3)


def python(name: str, source: str, **more: object) -> Program:
    return Program(name, (sys.executable, "-c", source), **more)  # type: ignore[arg-type]


async def reaches(condition: object, what: str) -> None:
    await asyncio.to_thread(until, condition, what)  # type: ignore[arg-type]


async def test_what_dies_is_started_again_and_all_ends_in_the_end() -> None:
    told: list[Notice] = []
    keeper = Keeper(told.append, backoff=FAST)
    await keeper.keep(python("p", "import time; time.sleep(1000)"))
    first = keeper.pid("p")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await reaches(lambda: keeper.pid("p") not in {None, first}, "another one")
    assert [mark.what for mark in keeper.marks] == ["p"]
    await keeper.stop(5.0)
    assert [n.what for n in told] == ["started", "died", "started", "ended"]
    assert "SIGKILL" in str(told[1])
    assert not psutil.Process().children()


async def test_what_dies_again_and_again_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    told: list[Notice] = []
    keeper = Keeper(told.append, backoff=FAST)
    await keeper.keep(python("p", "raise SystemExit('no such thing')", log=tmp_path / "log"))
    assert await keeper.end("p") == 1
    assert [n.what for n in told].count("died") == 2
    assert told[-1].what == "given up"
    assert "no such thing" in str(told[-1])
    assert not keeper.keeps("p")
    await keeper.stop(1.0)


def test_the_pause_grows_and_ends() -> None:
    backoff = Backoff(first=0.1, most=0.5, give_up=6)
    assert [backoff.pause(n) for n in range(1, 7)] == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5, None], nan_ok=True)


def test_a_broker_that_is_never_reached_is_given_up_however_long_each_try_took() -> None:
    unreached = Unreached(most=3)
    assert [unreached.ended(code) for code in (75, 75, 1, 75, 75, 75)] == [False] * 5 + [True]


async def test_a_proper_end_is_no_death() -> None:
    told: list[Notice] = []
    keeper = Keeper(told.append, backoff=FAST)

    async def final(code: int) -> bool:
        return code == 3

    await keeper.keep(python("p", "raise SystemExit(3)"), final)
    assert await keeper.end("p") == 3
    assert [n.what for n in told] == ["started", "ended"]


async def test_lines_of_both_streams_come_whole_also_the_last_and_very_long_ones() -> None:
    heard: list[tuple[bool, str]] = []
    keeper = Keeper(lambda _: None, lambda _name, error, lines: heard.extend((error, line) for line in lines))

    async def final(_code: int) -> bool:
        return True

    source = "import sys; print('a'); print('b' * 300_000); print('err', file=sys.stderr); print('end', end='')"
    await keeper.keep(python("p", source), final)
    await keeper.end("p")
    out = [line for error, line in heard if not error]
    assert out[0] == "a"
    assert "".join(out[1:-1]) == "b" * 300_000
    assert out[-1].endswith("end")
    assert (True, "err") in heard


async def test_stop_asks_then_kills_also_what_is_stopped() -> None:
    keeper = Keeper(lambda _: None, lambda _n, _e, lines: ready.extend(lines))
    ready: list[str] = []
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('r', flush=True); time.sleep(1000)"
    await keeper.keep(python("stubborn", stubborn))
    await keeper.keep(python("frozen", "import time; print('r', flush=True); time.sleep(1000)"))
    await reaches(lambda: len(ready) == 2, "both run")
    keeper.signal("frozen", signal.SIGSTOP)
    pids = [mark.pid for mark in keeper.marks]
    await keeper.stop(0.2)
    assert not any(alive(pid) for pid in pids)


async def test_kill_reaches_the_whole_group() -> None:
    heard: list[str] = []
    keeper = Keeper(lambda _: None, lambda _n, _e, lines: heard.extend(lines))
    source = "import subprocess, time; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); time.sleep(1000)"
    await keeper.keep(python("p", source))
    await reaches(lambda: heard, "grandchild")
    keeper.kill()
    await asyncio.wait_for(keeper.end("p"), 5.0)
    await reaches(lambda: not alive(int(heard[0])), "no grandchild")


PARENT = """
import asyncio, sys
from reknit.core.launch import Keeper, Program
async def main():
    keeper = Keeper(lambda n: print(n.pid, flush=True))
    await keeper.keep(Program("p", (sys.executable, "-c", "import time; time.sleep(1000)")))
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_children_die_with_their_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    until(lambda: "sleep(1000)" in " ".join(psutil.Process(child).cmdline()[-1:]), "the child is the program")
    parent.kill()
    parent.communicate()
    until(lambda: not alive(child), "the child is gone")


SWEEPER = """
import subprocess, sys, time
from reknit.core import launch
launch.adopt_orphans()
# a child that leaves a grandchild in a session of its own, which leaves another one
command = ["setsid", "sh", "-c", "sleep 99 & sleep 99"]
source = f"import subprocess; subprocess.Popen({command}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
subprocess.run([sys.executable, "-c", source], check=True)
import psutil
deadline = time.monotonic() + 30
while len(psutil.Process().children(recursive=True)) < 3 and time.monotonic() < deadline:
    time.sleep(0.01)
before = [p.pid for p in psutil.Process().children(recursive=True)]
print(launch.sweep(20.0), len(before), [p.pid for p in psutil.Process().children(recursive=True)], flush=True)
"""


def test_sweep_finds_orphans_in_sessions_of_their_own() -> None:
    done = subprocess.run([sys.executable, "-c", SWEEPER], capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout.split("\n")[0] == "[] 3 []", done.stdout


def test_sweep_without_children_does_nothing() -> None:
    assert sweep(0.1, spare=tuple(p.pid for p in psutil.Process().children())) == []
