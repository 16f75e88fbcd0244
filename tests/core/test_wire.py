"""msgpack bytes: what goes in comes out; what is wrong is named by its path; nothing is ever executed."""

from __future__ import annotations

import contextlib
import math
import random
import struct
import zlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reknit.core import wire
from reknit.core.errors import WireError
from reknit.core.events import AREAS, AnyEvent, WorkerFailed, WorldChanged
from support.samples import SAMPLES

WORLD = next(sample for sample in SAMPLES if isinstance(sample, WorldChanged))

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-(2**63), 2**64 - 1), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back(value: object) -> None:
    assert wire.unpack(wire.pack(value)) == value
    assert wire.unpack(memoryview(wire.pack(value))) == value


@given(st.floats())
@example(math.nan)
@example(-0.0)
@example(5e-324)
def test_floats_keep_their_bits(value: float) -> None:
    assert struct.pack("<d", wire.unpack(wire.pack(value))) == struct.pack("<d", value)


@given(st.binary())
@example(b"")
@example(b"\xc1")
@example(b"\xdd\xff\xff\xff\xff")  # says it holds four thousand million elements
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\x91" * 5000)
@example(wire.pack({"kind": "world.changed"}))
def test_any_bytes_decode_or_are_a_wire_error(data: bytes) -> None:
    for union in (AnyEvent, *AREAS.values()):
        with contextlib.suppress(WireError):
            wire.decode(data, union)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"generation": "3"}, r"Expected `int`, got `str` - at `\$\.generation`"),
        ({"members": [{"worker": "w"}]}, r"missing required field `incarnation` - at `\$\.members\[0\]`"),
        ({"evidence": [{"about": "w", "source": "gut feeling", "observer": "x"}]}, r"\$\.evidence\[0\]\.source"),
        ({"status": "great"}, r"\$\.status"),
        ({"targets": {"n1": 1.5}}, r"\$\.targets\[\.\.\.\]"),
        ({"removed": [1]}, r"\$\.removed\[0\]"),
        ({"members": None}, r"\$\.members"),
        ({"kind": "world.ended"}, r"Invalid value 'world\.ended' - at `\$\.kind`"),
        ({"kind": 5}, r"\$\.kind"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(change: dict[str, object], path: str) -> None:
    data = wire.pack({**wire.unpack(wire.encode(WORLD)), **change})
    with pytest.raises(WireError, match=path):
        wire.decode(data, AREAS["world"])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a msgpack message"),
        (b"\xc1", "not a msgpack message"),
        (wire.encode(WORLD)[:-1], "not a msgpack message"),
        (wire.encode(WORLD) + b"\x00", "not a msgpack message"),
        (wire.pack([1]), "does not fit its schema"),
        (wire.pack(None), "does not fit its schema"),
        (b"\xa1\xff", "not a msgpack message"),
    ],
)
def test_bytes_that_are_no_event(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        wire.decode(data, AREAS["world"])


def test_large_numbers_and_odd_texts_travel() -> None:
    event = WorkerFailed(worker="w", incarnation=2**63, error="\x00\n\t🧶", traceback="", samples=(0, 2**64 - 1))
    assert wire.decode(wire.encode(event), AREAS["worker"]) == event


def test_small_messages_stay_as_they_are_and_large_ones_are_deflated() -> None:
    members = tuple(msgspec.structs.replace(WORLD.members[0], worker=f"n{i}-0", pid=i) for i in range(1000))
    large = wire.encode(msgspec.structs.replace(WORLD, members=members))
    assert wire.deflate(wire.encode(WORLD)) == wire.encode(WORLD)
    assert len(wire.deflate(large)) < len(large) / 4
    assert wire.inflate(wire.deflate(large)) == large
    assert wire.inflate(large) == large
    noise = wire.pack({"kind": random.Random(0).randbytes(wire.LARGE)})
    assert wire.deflate(noise) == noise


@given(st.binary())
@example(b"\x78")
@example(zlib.compress(b"a" * 9000)[:-1])
@example(zlib.compress(b"a" * 9000) + b"!")
def test_any_bytes_inflate_or_are_a_wire_error(data: bytes) -> None:
    for tried in (data, b"\x78" + data, b"\x78\x01" + data):
        with contextlib.suppress(WireError):
            wire.inflate(tried)


def test_no_message_inflates_beyond_all_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGEST", 10_000)
    assert len(wire.inflate(zlib.compress(bytes(10_000)))) == 10_000
    with pytest.raises(WireError, match="at most 10000 bytes"):
        wire.inflate(zlib.compress(bytes(10_001)))


@pytest.mark.parametrize("sample", SAMPLES)
def test_nothing_that_is_sent_looks_deflated(sample: object) -> None:
    assert wire.encode(sample)[:1] != b"\x78"
