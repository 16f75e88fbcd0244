"""The codec of everything that is no tensor: what goes in comes out, of the same types, whatever it is."""

from __future__ import annotations

import collections
import enum
import math
import struct
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from reknit.core import wire
from reknit.core.errors import StateError, WireError
from reknit.worker.skeleton import Encoder, decode


def travel(value: Any) -> Any:
    tensors: list[torch.Tensor] = []

    def take(tensor: torch.Tensor, path: str) -> int:
        tensors.append(tensor)
        return len(tensors) - 1

    coded = Encoder(take).encode(value, "x")
    return decode(wire.unpack(wire.pack(coded)), lambda number: tensors[number].clone())


def bits(number: float) -> bytes:
    return struct.pack("<d", number)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, all the way down; floats by their bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return bits(a) == bits(b)
    if isinstance(a, complex):
        return bits(a.real) == bits(b.real) and bits(a.imag) == bits(b.imag)
    if isinstance(a, dict):
        return (
            len(a) == len(b)
            and all(same(x, y) for x, y in zip(a, b, strict=True))
            and all(same(x, y) for x, y in zip(a.values(), b.values(), strict=True))
            and getattr(a, "default_factory", 0) is getattr(b, "default_factory", 0)
        )
    if isinstance(a, list | tuple | collections.deque):
        return (
            len(a) == len(b)
            and all(same(x, y) for x, y in zip(a, b, strict=True))
            and getattr(a, "maxlen", 0) == getattr(b, "maxlen", 0)
        )
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(st.characters())
    | st.binary(max_size=20)
    | st.binary(max_size=9).map(bytearray)
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu"), torch.Size([2, 3]), torch.Size([])])
    | st.sampled_from([np.float64(1.5), np.int8(-3), np.bool_(True), np.str_("é"), np.datetime64("2020-01-01")])
)
keys = (
    st.integers()
    | st.text(st.characters(), max_size=5)
    | st.booleans()
    | st.tuples(st.integers(), st.text(max_size=3))
    | st.none()
)
hashable = st.integers() | st.text(st.characters(), max_size=5) | st.frozensets(st.integers(), max_size=3)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.dictionaries(keys, inner, max_size=4)
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | pairs
        | pairs.map(collections.OrderedDict)
        | pairs.map(lambda d: collections.defaultdict(list, d))
        | pairs.map(lambda d: collections.defaultdict(None, d))
        | st.dictionaries(hashable, st.integers(), max_size=4).map(collections.Counter)
        | st.lists(inner, max_size=4).map(lambda x: collections.deque(x, maxlen=7))
        | st.lists(inner, max_size=4).map(collections.deque)
        | st.sets(hashable, max_size=4)
        | st.frozensets(hashable, max_size=4)
    )


@settings(max_examples=400, deadline=None)
@given(st.recursive(plain, containers, max_leaves=20))
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    assert same(travel(value), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=">f8").reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
        np.arange(10)[::-2],
        np.array(3.5, dtype=np.float16),
        np.zeros((0, 3), np.complex64),
        np.array(["a", "bcd"]),
        np.array([b"x", b"yz"]),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[ns]"),
        np.array([True, False]),
        np.broadcast_to(np.float32(2), (2, 2)),
        np.array(["", ""]),
        np.arange(4, dtype=np.longdouble),
    ],
    ids=lambda a: f"{a.dtype.str}-{a.shape}",
)
def test_arrays_keep_dtype_shape_and_bits(array: np.ndarray[Any, Any]) -> None:
    assert same(travel({"a": array})["a"], array)


def test_numpy_generator_state_travels() -> None:
    generator = np.random.default_rng(3)
    generator.random(5)
    state = travel({"g": generator.bit_generator.state, "legacy": np.random.RandomState(1).get_state(legacy=True)})
    other = np.random.default_rng(0)
    other.bit_generator.state = state["g"]
    assert other.random() == generator.random()
    np.random.RandomState(2).set_state(state["legacy"])


def test_negative_zero_and_nan_payloads_keep_their_bits() -> None:
    odd = struct.unpack("<d", bytes.fromhex("efbeadde0000f87f"))[0]
    for number in (-0.0, math.inf, -math.inf, odd, 5e-324):
        assert bits(travel([number])[0]) == bits(number)


def test_sets_are_coded_alike_whatever_their_order() -> None:
    words = [f"word-{i}" for i in range(50)]
    forward, backward = set(words), set()
    backward.update(words[25:])
    backward.update(words[:25])
    encoder = Encoder(lambda tensor, path: 0)
    assert encoder.encode(forward, "x") == encoder.encode(backward, "x")


def test_versions_in_a_module_state_dict_are_kept() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    state = travel({"net": model.state_dict()})["net"]
    assert type(state) is collections.OrderedDict
    assert state._metadata == model.state_dict()._metadata


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (lambda: 0, "function"),
        (object(), "object"),
        (Colour.RED, "Colour"),
        (Text("x"), "Text"),
        (Pair(1, 2), "Pair"),
        (collections.defaultdict(lambda: 0), "defaultdict"),
        (range(3), "range"),
        (np.array([object()]), "ndarray"),
        (np.zeros(2, dtype=[("a", "f4")]), "ndarray"),
        (torch.Generator(), "Generator"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
    ],
)
def test_what_cannot_travel_is_named_by_path_and_type(value: Any, kind: str) -> None:
    def take(tensor: torch.Tensor, path: str) -> int:
        from reknit.worker.skeleton import check_tensor

        check_tensor(tensor, path)
        return 0

    with pytest.raises(StateError) as caught:
        Encoder(take).encode({"state": [0, {"fn": value}]}, "ema")
    assert "ema.state.1.fn" in str(caught.value)
    assert kind in str(caught.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    with pytest.raises(StateError, match=r"x\.1\.again contains itself"):
        travel(loop)


def test_a_value_met_twice_is_no_loop() -> None:
    shared = [1, 2]
    assert travel([shared, shared]) == [[1, 2], [1, 2]]


def test_nesting_too_deep_is_refused_before_the_wire_gives_up() -> None:
    value: Any = 0
    for _ in range(59):
        value = [value]
    assert travel(value) == value
    for _ in range(5):
        value = [value]
    with pytest.raises(StateError, match="deep"):
        travel(value)


@pytest.mark.parametrize(
    "coded",
    [
        [],
        ["nonsense", 1],
        [["l"]],
        ["d", 1],
        ["i", "abc"],
        ["T", 99],
        ["N", "O", [1], 0],
        ["dtype", "load"],
        ["dd", "eval"],
        ["s", ["l"]],
        ["x", "a", "b"],
    ],
)
def test_damaged_skeletons_are_a_named_error(coded: Any) -> None:
    with pytest.raises((WireError, StateError)):
        decode(coded, lambda number: [torch.zeros(8, dtype=torch.uint8)][number])
