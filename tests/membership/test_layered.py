"""Mappings that never change: each is what a dict with the same history is, and none changes later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reknit.services.membership.layered import Layered, layered

CHANGES = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.integers(0, 9))), max_size=80)


@given(CHANGES, st.dictionaries(st.sampled_from("abcdefghij"), st.integers(0, 9)))
def test_it_is_what_a_dict_would_be_after_every_change(
    changes: list[tuple[str, int | None]], begin: dict[str, int]
) -> None:
    model, mapping = dict(begin), layered(begin)
    history: list[tuple[Layered[str, int], dict[str, int]]] = [(mapping, dict(model))]
    for key, value in changes:
        if value is None:
            model.pop(key, None)
            mapping = mapping.without(key)
        else:
            model[key] = value
            mapping = mapping.put(key, value)
        history.append((mapping, dict(model)))
    for made, meant in history:
        assert made == meant
        assert len(made) == len(meant) == len(list(made))
        assert dict(made.items()) == meant
        assert all((key in made) == (key in meant) for key in "abcdefghij")
        assert all(made.get(key) == meant.get(key) for key in "abcdefghij")


def test_order_is_that_of_arrival_as_in_a_dict() -> None:
    mapping: Layered[int, int] = layered({})
    for number in range(100):
        mapping = mapping.put(number * 7 % 100, number)
    for number in range(50):
        mapping = mapping.put(number, -1)
    assert list(mapping) == [n * 7 % 100 for n in range(100)]


def test_a_change_of_a_large_one_copies_little() -> None:
    mapping = layered({n: n for n in range(20_000)})
    for number in range(2_000):
        mapping = mapping.put(number, -1)
        assert len(mapping._over) <= 200
    assert sum(v == -1 for v in mapping.values()) == 2_000


def test_a_layered_one_stays_itself_and_what_it_was_made_of_may_change() -> None:
    before = {"a": 1}
    mapping = layered(before)
    before["a"] = 2
    assert mapping["a"] == 1
    assert layered(mapping) is mapping
    assert mapping.without("b") is mapping
