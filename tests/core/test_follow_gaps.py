"""Following when events were missed, message by message: a broker that sends what the test says, when it says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from reknit.core import follow as follow_module
from reknit.core.connection import Connection, NotAnswered
from reknit.core.follow import Follow
from reknit.core.journal import Journal
from reknit.core.listener import Listener
from reknit.core.stored import Stored
from support.buses import until


class Line:
    """A listener whose messages wait until the test says that the client library calls back for them."""

    def __init__(self, filter_: str, callback: Callable[[Msg], None]) -> None:
        self.filter = filter_
        self.queue: list[Stored] = []
        self.on_drop: Callable[[], None] | None = None
        self._callback = callback

    @property
    def pending(self) -> int:
        return len(self.queue)

    def call(self, count: int = 1_000_000) -> None:
        for _ in range(min(count, len(self.queue))):
            stored = self.queue.pop(0)
            headers = {
                "Nats-Subject": stored.subject,
                "Nats-Sequence": str(stored.seq),
                "Nats-Last-Sequence": str(stored.previous),
            }
            self._callback(Msg(_client=cast("Any", None), subject=f"live.{stored.subject}", headers=headers))

    async def stop(self) -> None:
        self.queue.clear()


def fits(filter_: str, subject: str) -> bool:
    return subject.startswith(filter_.removesuffix(">"))


class Town:
    """Journal and connection of one follower: what is stored, what is sent, and when."""

    def __init__(self, clustered: bool = False) -> None:
        self.clustered = clustered
        self.stored: list[Stored] = []
        self.lines: list[Line] = []
        self.on_lost: list[Callable[[], None]] = []
        self.on_back: list[Callable[[], None]] = []
        self.up = asyncio.Event()
        self.up.set()
        self.lag = 0
        """So many of the newest events a reading does not see yet."""
        self.began: list[int] = []
        """Where each reading began."""
        self.heard: list[Stored] = []

    async def follow(self, *filters: str) -> Follow:
        follow = Follow(cast("Connection", self), cast("Journal", self), filters or ["reknit.>"], self.heard.append)
        await follow.start(1)
        return follow

    def store(self, subject: str, *, sent: bool = True) -> None:
        """Store an event; sent: on to whoever listens."""
        before = [s.seq for s in self.stored if s.subject == subject]
        stored = Stored(subject, len(self.stored) + 1, {}, b"", previous=before[-1] if before else 0)
        self.stored.append(stored)
        if sent:
            for line in self.lines:
                if fits(line.filter, subject):
                    line.queue.append(stored)

    async def hear(self) -> None:
        """All that was sent is called back for."""
        for line in self.lines:
            line.call()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def lose(self) -> None:
        self.up.clear()
        for call in list(self.on_lost):
            call()

    def connect(self) -> None:
        self.up.set()

    def tell_back(self) -> None:
        for call in list(self.on_back):
            call()

    @property
    def seqs(self) -> list[int]:
        return [s.seq for s in self.heard]

    # what a follower uses of a connection and of a journal

    async def listen(self, subject: str, callback: Callable[[Msg], None]) -> Listener:
        self.lines.append(Line(subject.removeprefix("live."), callback))
        return cast("Listener", self.lines[-1])

    async def wait_connected(self, deadline: float) -> None:
        del deadline
        await self.up.wait()

    async def replay(self, filters: Sequence[str], from_seq: int, sink: Callable[[Stored], None]) -> None:
        self.began.append(from_seq)
        for stored in self.stored[: len(self.stored) - self.lag]:
            if stored.seq >= from_seq and any(fits(one, stored.subject) for one in filters):
                await asyncio.sleep(0)
                if not self.up.is_set():
                    raise NotAnswered("away", "lost")
                sink(stored)


@pytest.fixture
async def town() -> Town:
    return Town()


async def test_the_first_message_after_a_loss_hides_nothing(town: Town) -> None:
    """One subject's event is missed while away, another's is heard before anybody says that the broker is back."""
    await town.follow()
    town.store("reknit.j.a")
    town.store("reknit.k.b")
    await town.hear()
    town.lose()
    town.store("reknit.k.b", sent=False)
    town.store("reknit.j.a")
    await town.hear()
    assert town.seqs == [1, 2]
    town.connect()
    await town.hear()
    town.tell_back()
    town.store("reknit.k.b")
    await town.hear()
    await until(lambda: len(town.heard) == 5)
    assert town.seqs == [1, 2, 3, 4, 5]


async def test_a_gap_is_filled_though_later_events_were_given(town: Town) -> None:
    """Nobody told of a loss: the next event of the same subject shows it, others came in between."""
    await town.follow()
    town.store("reknit.j.a")
    town.store("reknit.k.b")
    await town.hear()
    town.store("reknit.k.b", sent=False)
    for _ in range(3):
        town.store("reknit.j.a")
    await town.hear()
    assert town.seqs == [1, 2, 4, 5, 6]
    town.store("reknit.k.b")
    await town.hear()
    await until(lambda: len(town.heard) == 7)
    assert town.seqs == [1, 2, 4, 5, 6, 3, 7]


async def test_a_gap_that_a_lagging_replica_cannot_fill_yet(town: Town) -> None:
    await town.follow()
    town.store("reknit.k.b")
    await town.hear()
    town.store("reknit.k.b", sent=False)
    town.store("reknit.k.b")
    town.lag = 2
    await town.hear()
    await until(lambda: len(town.began) >= 4, "tries")
    assert town.seqs == [1]
    town.lag = 0
    await until(lambda: len(town.heard) == 3)
    assert town.seqs == [1, 2, 3]


async def test_what_waits_for_another_listener_is_not_passed_over(town: Town) -> None:
    """With several filters one listener may be far ahead of another when the connection breaks."""
    await town.follow("reknit.j.>", "reknit.k.>")
    slow, fast = town.lines
    town.store("reknit.j.a")
    await town.hear()
    town.store("reknit.j.a")
    town.store("reknit.k.b")
    fast.call()
    await asyncio.sleep(0)
    assert town.seqs == [1, 3]
    town.lose()
    slow.queue.clear()
    town.connect()
    await until(lambda: len(town.heard) == 3)
    assert town.seqs == [1, 3, 2]


async def test_a_reading_begins_where_nothing_can_be_missing(town: Town) -> None:
    """With one broker not at the beginning again and again; in a cluster where the last reading ended."""
    for clustered, expected in ((False, [1, 51, 51]), (True, [1, 1, 51])):
        here = Town(clustered)
        follow = await here.follow()
        for _ in range(50):
            here.store("reknit.j.a")
            await here.hear()
        for _ in range(2):
            readings = follow.readings
            here.lose()
            here.connect()
            await until(lambda readings=readings, follow=follow: follow.readings > readings and not follow._reading)
        assert here.began == expected
        assert here.seqs == list(range(1, 51))


async def test_in_a_cluster_the_last_event_is_not_missed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader stores it and ends before it is sent on: no later event tells of it, and no connection was lost."""
    monkeypatch.setattr(follow_module, "_LOOK_EVERY", 0.01)
    town = Town(clustered=True)
    await town.follow()
    town.store("reknit.j.a")
    await town.hear()
    town.store("reknit.k.b", sent=False)
    await until(lambda: len(town.heard) == 2)
    assert town.seqs == [1, 2]


async def test_another_journal_in_the_middle_of_a_reading(town: Town) -> None:
    follow = await town.follow()
    for _ in range(20):
        town.store("reknit.j.a")
    await town.hear()
    town.heard.clear()
    readings = follow.readings
    town.lose()
    town.stored.clear()
    for _ in range(30):
        town.store("reknit.j.a", sent=False)
    town.connect()
    await until(lambda: len(town.heard) > 2 and follow.readings > readings, "a reading from the middle")
    town.heard.clear()
    follow.restart()
    await until(lambda: len(town.heard) == 30)
    assert town.seqs == list(range(1, 31))


SUBJECTS = ["reknit.j.a", "reknit.j.b", "reknit.k.a", "reknit.l.c"]


async def storing(town: Town, draw: random.Random) -> None:
    lost = town.clustered and draw.random() < 0.1
    town.store(draw.choice(SUBJECTS), sent=town.up.is_set() and not lost)


async def hearing(town: Town, draw: random.Random) -> None:
    draw.choice(town.lines).call(draw.randrange(1, 5))
    await asyncio.sleep(0)


async def losing(town: Town, draw: random.Random) -> None:
    """What was received already may still be called back for, or not."""
    if town.up.is_set():
        town.lose()
        if draw.random() < 0.5:
            for line in town.lines:
                line.queue.clear()


async def coming_back(town: Town, draw: random.Random) -> None:
    if not town.up.is_set():
        town.connect()
        if draw.random() < 0.5:
            town.store(draw.choice(SUBJECTS))
            await town.hear()
        town.tell_back()


async def dropping(town: Town, draw: random.Random) -> None:
    """A listener is too slow: the newest is dropped."""
    line = draw.choice(town.lines)
    if line.queue and line.on_drop:
        line.queue.pop()
        line.on_drop()


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("seed", range(40))
async def test_whatever_is_lost_all_is_given_once(seed: int, clustered: bool) -> None:
    """Each event once, each subject in order; and with one listener of one broker all in order."""
    draw = random.Random(seed)
    town = Town(clustered)
    filters = draw.choice([["reknit.>"], ["reknit.j.>", "reknit.k.>", "reknit.l.>"]])
    await town.follow(*filters)
    actions = [storing, hearing, losing, coming_back, dropping]
    for action in draw.choices(actions, weights=[55, 25, 4, 10, 3], k=draw.randrange(50, 300)):
        await action(town, draw)
    town.connect()
    for subject in SUBJECTS:  # whatever was silently lost shows with the next one of its subject
        town.store(subject)
    town.tell_back()
    await town.hear()
    await until(lambda: len(town.heard) >= len(town.stored), "all")
    assert sorted(town.seqs) == list(range(1, len(town.stored) + 1))
    for subject in SUBJECTS:
        of_it = [s.seq for s in town.heard if s.subject == subject]
        assert of_it == sorted(of_it)
    if len(filters) == 1 and not clustered:
        assert town.seqs == sorted(town.seqs)
