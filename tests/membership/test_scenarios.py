"""Scenario files: commands, then `----`, then what happened; made to be read.

Blocks are separated by empty lines; `#` begins a comment. Times are seconds since the block began. To write the
outputs anew after a change: `REWRITE=1 pytest tests/membership/test_scenarios.py`, then read the difference.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from reknit.core.events import Event, JobFinished, TargetsSet, WorkerRefused, WorkerStuck, WorldChanged
from reknit.services.membership.view import View
from support.town import House, Town

FOLDER = Path(__file__).parent / "scenarios"


class Play:
    """Runs commands on a town and writes down what happened."""

    def __init__(self) -> None:
        self.town = Town(submit=False)

    def block(self, commands: list[str]) -> list[str]:
        begin, seen, dials = self.town.now, len(self.town.log), len(self.town.dials)
        times: dict[int, float] = {}
        say = self.town.say

        def noting(event: Event, id_: str = "", expect_last: int | None = None) -> bool:
            times[len(self.town.log)] = self.town.now - begin
            return say(event, id_, expect_last)

        self.town.say = noting  # type: ignore[method-assign]
        try:
            for command in commands:
                self.do(command)
        finally:
            self.town.say = say  # type: ignore[method-assign]
        out = [
            f"{times[seen + i]:6.3f}  {line}"
            for i, (_, event, _) in enumerate(self.town.log[seen:])
            if (line := shown(event))
        ]
        dialled = [d.worker for d in self.town.dials[dials:]]
        return out + ([f"        dialled: {' '.join(dialled)}"] if dialled else [])

    def do(self, command: str) -> None:
        verb, *words = shlex.split(command)
        options = dict(w.split("=", 1) for w in words if "=" in w)
        names = [w for w in words if "=" not in w]
        verbs: dict[str, Callable[[list[str], dict[str, str]], None]] = {
            "submit": self.submit,
            "register": self.register,
            "again": self.again,
            "kill": lambda names, _: [self.town.kill(n) for n in names] and None,
            "kill-node": self.kill_node,
            "vanish": self.vanish,
            "freeze": self.freeze,
            "thaw": self.thaw,
            "broken": lambda names, _: [self.town.broken(*n.split(">")) for n in names] and None,
            "leaving": lambda names, _: [self.town.leaving(n) for n in names] and None,
            "idle": lambda names, _: [self.town.idle(n) for n in names] and None,
            "finished": lambda names, o: [self.town.finished(n, int(o.get("step", 10))) for n in names] and None,
            "failed": lambda names, o: self.town.failed(names[0], o["error"], int(o.get("step", 0))),
            "committed": lambda names, _: self.town.committed(int(names[0])),
            "drain": lambda names, _: self.town.drain(names[0]),
            "scale": lambda names, _: self.town.scale(int(names[0])),
            "stop": lambda _n, _o: self.town.stop(),
            "node-left": lambda names, _: self.town.node_left(names[0]),
            "broker-away": lambda _n, _o: setattr(self.town, "muted", True),
            "broker-back": lambda _n, _o: setattr(self.town, "muted", False),
            "second-service": lambda _n, _o: self.town.houses.append(House(View("job", "m1"))),
            "restart-service": self.restart_service,
            "run": lambda names, _: self.town.run(float(names[0].rstrip("s"))),
        }
        verbs[verb](names, options)

    def submit(self, names: list[str], options: dict[str, str]) -> None:
        numbers = {k: float(v) if k in ("last_call", "stuck_after") else int(v) for k, v in options.items()}
        self.town.submit(names[0] if names else "run1", **numbers)

    def register(self, names: list[str], options: dict[str, str]) -> None:
        for name in names:
            self.town.register(name, int(options.get("incarnation", 1)))

    def again(self, names: list[str], options: dict[str, str]) -> None:
        body = self.town.bodies[names[0]]
        body.beats, body.incarnation = True, int(options["incarnation"])
        self.town.again(names[0], has_state_of=int(options.get("has_state_of", -1)))

    def kill_node(self, names: list[str], _options: dict[str, str]) -> None:
        node = names[0]
        self.town.nodes[node] = False
        for body in [b for b in self.town.bodies.values() if b.node == node]:
            self.town.kill(body.worker, silent=True)
            self.town.later(0.004, lambda c=body.client_id: self.town.disconnect(c))
        self.town.later(0.005, lambda: self.town.disconnect(0, f"agent/{node}"))

    def vanish(self, names: list[str], _options: dict[str, str]) -> None:
        for node in names:
            self.town.nodes[node] = False
            for body in [b for b in self.town.bodies.values() if b.node == node]:
                body.beats, body.dial = False, "silent"

    def freeze(self, names: list[str], _options: dict[str, str]) -> None:
        for name in names:
            self.town.bodies[name].beats = False
            self.town.later(0.5, lambda name=name: self.stuck(name, "T stopped"))

    def thaw(self, names: list[str], _options: dict[str, str]) -> None:
        for name in names:
            self.stuck(name, "R running")

    def stuck(self, name: str, state: str) -> None:
        body = self.town.bodies[name]
        self.town.say(WorkerStuck(worker=name, incarnation=body.incarnation, node=body.node, state=state))

    def restart_service(self, _names: list[str], _options: dict[str, str]) -> None:
        view = self.town.replay()
        assert view.record == self.town.houses[0].view.record
        self.town.houses[0] = House(view)


def shown(event: Event) -> str:
    """One line for what the service decided, nothing for what it was told."""
    match event:
        case WorldChanged():
            ring = " ".join(m.worker if m.role == "active" else f"({m.worker})" for m in event.members)
            more = "".join(f" {name}={value}" for name in ("leaving", "restarts") if (value := getattr(event, name)))
            awaiting = f" awaiting {event.awaiting}" if event.awaiting else ""
            planned = " planned" if event.planned else ""
            return f"world {event.generation} {event.status}{planned} [{ring}]{more}{awaiting}: {event.reason}"
        case TargetsSet():
            return f"targets {event.targets}: {event.reason}"
        case WorkerRefused():
            return f"refused {event.worker}: {event.reason}"
        case JobFinished():
            return f"{event.outcome}: {event.reason}"
        case _:
            return ""


def play(text: str) -> str:
    stage = Play()
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        end = lines.index("----") if "----" in lines else len(lines)
        commands = lines[:end]
        spoken = [c for c in commands if c and not c.startswith("#")]
        blocks.append("\n".join([*commands, "----", *stage.block(spoken)]) if spoken else block)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda p: p.stem)
def test_scenario(path: Path) -> None:
    told = path.read_text()
    happened = play(told)
    if os.environ.get("REWRITE"):
        path.write_text(happened)
    assert happened == told, f"{path.name}: REWRITE=1 writes it anew"


def test_there_are_scenarios() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 8
