"""What one node makes of the rumours it hears: believed if newer, told on, refuted if it is of the node itself.

Here the suspected time out, too: who does not refute is dead.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import msgspec

from .happening import Happening
from .outgoing import Outgoing
from .preset import Preset
from .probing import drawn
from .rumour import Rumour, State, said
from .spread import Spread
from .suspicion import Suspicion, suspect
from .view import View


class Hearsay:
    """The rumours of one node.

    Args:
        view: what holds of all members.
        spread: what is told on.
        outgoing: takes rumours along, and sends those for which no other packet goes.
        preset: figures of the protocol.
        chance: for drawing whom to tell.
        now: monotonic seconds.
        settled: what the others know is known here as well: their rumours are told on from the start.
        happened: called with what the owner should know.
        sooner: called with the time by which the node must do something.
        worse: called when a suspicion had to be refuted.

    Attributes:
        mine: what this node says of itself.
        settled: others' rumours are told on; not before we know about what they know.
        news: when something was told on last.
    """

    def __init__(
        self,
        view: View,
        spread: Spread,
        outgoing: Outgoing,
        *,
        preset: Preset,
        chance: random.Random,
        now: float,
        settled: bool,
        happened: Callable[[Happening], None],
        sooner: Callable[[float], None],
        worse: Callable[[], None],
    ) -> None:
        me = outgoing.me
        self.mine = Rumour(me.name, me.epoch, 0, State.ALIVE, *me.address, me.name)
        self.settled = settled
        self.news = now
        self._me = me.name
        self._view = view
        self._spread = spread
        self._outgoing = outgoing
        self._preset = preset
        self._chance = chance
        self._happened = happened
        self._sooner = sooner
        self._worse = worse
        self._suspicions: dict[str, Suspicion] = {}
        self._next_spread = now
        if view.put(self.mine, now):
            spread.tell(self.mine)

    def hear(self, rumour: Rumour, now: float) -> None:
        """Take a rumour in."""
        if rumour.name == self._me:
            self._about_me(rumour, now)
            return
        before = self._view.get(rumour.name)
        if before is not None and rumour.state == State.SUSPECT and rumour.rank == before.rank:
            suspicion = self._suspicions.get(rumour.name)
            if suspicion is not None and suspicion.confirmed(rumour.by):
                self._tell(rumour, now)
                self._sooner(suspicion.deadline)
            return
        if rumour.present and (ghost := self._view.named_at(rumour.address)) not in (None, rumour.name, self._me):
            self._retire(str(ghost), rumour, now)
        if not self._view.put(rumour, now):
            return
        self._suspicions.pop(rumour.name, None)
        if rumour.state == State.SUSPECT:
            suspicion = suspect(self._preset, self._view.size, rumour.by, now)
            self._suspicions[rumour.name] = suspicion
            self._sooner(suspicion.deadline)
        self._say(before, rumour)
        self._tell(rumour, now)

    def doubt(self, of: Rumour, now: float) -> None:
        """A member did not answer in time: it is suspected, if it is still in the life that was probed."""
        held = self._view.get(of.name)
        if held is not None and held.state <= State.SUSPECT and held.epoch == of.epoch:
            self.hear(said(held, State.SUSPECT, self._me), now)

    def time_out(self, now: float) -> None:
        """Who was suspected and did not refute is dead."""
        for name in [name for name, suspicion in self._suspicions.items() if now >= suspicion.deadline]:
            if (held := self._view.get(name)) is not None:
                self.hear(said(held, State.DEAD, self._me), now)

    def leave(self, now: float) -> None:
        """This node says goodbye."""
        self.mine = said(self.mine, State.LEFT, self._me)
        self._view.put(self.mine, now)

    def spread_on(self, now: float) -> None:
        """Send what is on its way, if it is time, also where nothing else is to be sent."""
        if len(self._spread) and now >= self._next_spread:
            self._next_spread = now + self._preset.spread_every
            for name in drawn(self._view, self._chance, self._preset.fanout, frozenset((self._me,))):
                self._outgoing.send(name, ())

    def put_off(self, seconds: float) -> None:
        """This process did not run for so long: a refutation may not have been heard."""
        for suspicion in self._suspicions.values():
            suspicion.put_off(seconds)

    def due(self) -> list[float]:
        """When there will be something to do."""
        times = [suspicion.deadline for suspicion in self._suspicions.values()]
        if len(self._spread):
            times.append(self._next_spread)
        return times

    def _retire(self, ghost: str, by: Rumour, now: float) -> None:
        """Another process listens where a member was: that one is gone, if it is older."""
        held = self._view.get(ghost)
        if held is not None and held.epoch < by.epoch:
            self.hear(said(held, State.DEAD, self._me), now)

    def _about_me(self, rumour: Rumour, now: float) -> None:
        mine = self.mine
        if rumour.epoch > mine.epoch and rumour.address == mine.address:
            # Nobody else can listen at our address, so that process is our predecessor: the clock was set back.
            self._outgoing.me = dataclasses.replace(self._outgoing.me, epoch=rumour.epoch + 1)
            self.mine = msgspec.structs.replace(mine, epoch=self._outgoing.me.epoch, incarnation=0)
            self._view.put(self.mine, now)
            self._tell(self.mine, now)
        elif rumour.epoch > mine.epoch:
            self._happened(Happening("superseded", rumour.name, f"{rumour.host}:{rumour.port}"))
        elif rumour.epoch < mine.epoch:
            self._tell(mine, now)
        elif rumour.rank > mine.rank:
            self._worse()
            self.mine = msgspec.structs.replace(mine, incarnation=rumour.incarnation + 1)
            self._view.put(self.mine, now)
            self._tell(self.mine, now)

    def _say(self, before: Rumour | None, rumour: Rumour) -> None:
        was = before is not None and before.present
        if rumour.present and not was:
            self._happened(Happening("joined", rumour.name))
        elif was and not rumour.present:
            why = "left" if rumour.state == State.LEFT else f"dead, says {rumour.by}"
            self._happened(Happening("gone", rumour.name, why))
        elif rumour.state == State.SUSPECT:
            self._happened(Happening("suspected", rumour.name, rumour.by))
        elif before is not None and before.state == State.SUSPECT:
            self._happened(Happening("refuted", rumour.name))

    def _tell(self, rumour: Rumour, now: float) -> None:
        self.news = now
        if self.settled or rumour.name == self._me:
            if not len(self._spread):
                self._next_spread = max(self._next_spread, now)
            self._spread.tell(rumour)
            self._sooner(self._next_spread)
