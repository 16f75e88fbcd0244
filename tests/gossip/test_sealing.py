"""Datagrams: what is sealed can be opened by who has the key, once, and nothing else can."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.core.errors import UsageError, WireError
from reknit.gossip.codec import MOST, SEAL, Opener, Rejected, Sealer
from reknit.gossip.keyring import Keyring, derived, load, parse
from reknit.gossip.message import Ack, Ask, Nack, Packet, Ping, Sync
from reknit.gossip.replay import WIDTH, Replay
from reknit.gossip.roster import PARTS
from reknit.gossip.rumour import Rumour

OLD, NEW = bytes(32), bytes([1]) * 32
numbers = st.integers(0, 2**64 - 1)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=30)
messages = st.one_of(
    st.builds(Ping, numbers, numbers),
    st.builds(Ack, numbers, numbers),
    st.builds(Ask, numbers, names, names, st.integers(0, 65535)),
    st.builds(Nack, numbers),
    st.builds(Sync, st.lists(numbers, min_size=PARTS, max_size=PARTS).map(tuple), st.booleans()),
)
rumours = st.builds(
    Rumour, names, numbers, st.integers(0, 2**32), st.integers(0, 3), names, st.integers(0, 65535), names
)
packets = st.builds(
    Packet,
    names,
    numbers,
    names,
    st.lists(messages, max_size=2).map(tuple),
    st.lists(rumours, max_size=3).map(tuple),
)


def sealer(key: bytes = OLD) -> Sealer:
    return Sealer(Keyring((key,)), os.urandom(16))


@given(packets)
def test_what_is_sealed_is_opened_and_is_no_longer_than_reckoned(packet: Packet) -> None:
    data = Sealer(Keyring((OLD,)), bytes(16)).seal(packet)
    assert Opener(Keyring((OLD,))).open(data) == packet
    assert len(data) <= packet.size + SEAL


def test_nothing_is_sent_that_is_longer_than_a_datagram() -> None:
    rumour = Rumour("n" * 60, 1, 0, 0, "h" * 60, 1, "b" * 60)
    with pytest.raises(WireError, match=str(MOST)):
        sealer().seal(Packet("a", 1, "b", (), (rumour,) * 12))


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_one_changed_bit_is_refused(place: int, bit: int) -> None:
    data = bytearray(Sealer(Keyring((OLD,)), bytes(16)).seal(Packet("a", 1, "b", (Ping(1),))))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(Rejected):
        Opener(Keyring((OLD,))).open(bytes(data))


@given(st.binary(max_size=1500))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(Rejected):
        Opener(Keyring((OLD,))).open(data)


def test_what_was_opened_before_is_refused() -> None:
    seals, opens = sealer(), Opener(Keyring((OLD,)))
    sent = [seals.seal(Packet("a", 1, "b", (Ping(i),))) for i in range(3)]
    for i in (2, 0, 1):  # overtaking one another is no fault
        assert opens.open(sent[i]).parts == (Ping(i),)
    for data in sent:
        with pytest.raises(Rejected, match="opened before"):
            opens.open(data)


@given(st.lists(st.integers(0, 3 * WIDTH), max_size=200))
def test_the_window_lets_each_counter_in_once(counters: list[int]) -> None:
    replay, seen, highest = Replay(), set(), -1
    for counter in counters:
        fresh = replay.fresh(b"s", counter)
        assert fresh == (counter not in seen and highest - counter < WIDTH)
        seen.add(counter)
        highest = max(highest, counter)


def test_a_stranger_cannot_open_nor_be_opened() -> None:
    with pytest.raises(Rejected, match="key"):
        Opener(Keyring((OLD,))).open(sealer(NEW).seal(Packet("a", 1, "b")))


def test_a_key_is_changed_in_three_steps_and_everybody_hears_everybody_at_each() -> None:
    packet = Packet("a", 1, "b", (Ping(1),))
    old = Keyring((OLD,))
    steps = [old, old.install(NEW), old.install(NEW).use(NEW), old.install(NEW).use(NEW).remove(OLD)]
    for before, after in itertools.pairwise(steps):
        assert Opener(before).open(Sealer(after, os.urandom(16)).seal(packet)) == packet
        assert Opener(after).open(Sealer(before, os.urandom(16)).seal(packet)) == packet
    with pytest.raises(Rejected):
        Opener(steps[3]).open(sealer(OLD).seal(packet))


def test_steps_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="installed"):
        Keyring((OLD,)).use(NEW)
    with pytest.raises(ValueError, match="use another one first"):
        Keyring((OLD, NEW)).remove(OLD)
    for keys in ((), (OLD, OLD), (b"short",)):
        with pytest.raises(ValueError, match="key"):
            Keyring(keys)


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n{NEW.hex()}  # seals\n\n{OLD.hex()}\n")
    assert load(path) == Keyring((NEW, OLD))


@pytest.mark.parametrize(("text", "says"), [("", "needs a key"), ("00ff", "line 1"), (f"{OLD.hex()}\nzz", "line 2")])
def test_a_file_that_holds_no_keys_says_what_is_wrong_and_how_to_make_one(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse(text.splitlines(), "keys")
    assert "openssl rand" in (caught.value.hint or "")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_a_jobs_key_is_made_of_its_secret() -> None:
    assert derived(b"secret") != derived(b"other")
    assert len(derived(b"")) == 32
