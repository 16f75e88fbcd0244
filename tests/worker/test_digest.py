"""The digest of the weights: every bit of every tensor counts, whatever its form; and who changed them."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.worker import digest, state
from reknit.worker.digest import Watch, WeightsDigest
from reknit.worker.tracked import Tracked


class Odd(torch.nn.Module):
    """Parameters and buffers of every form that can be trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plain = torch.nn.Parameter(torch.randn(7, 5))
        self.narrow = torch.nn.Parameter(torch.randn(6).to(torch.bfloat16))
        self.wide = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.wave = torch.nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.scalar = torch.nn.Parameter(torch.tensor(1.5))
        self.image = torch.nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
        self.gaps = torch.nn.Parameter(torch.randn(6, 6)[:, ::2])
        self.frozen = torch.nn.Parameter(torch.randn(3), requires_grad=False)
        self.none = torch.nn.Parameter(torch.empty(0, 3))
        self.tied = self.plain
        self.register_buffer("mean", torch.randn(5))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([True, False]), persistent=False)


def digest_of(tracked: Tracked) -> WeightsDigest:
    names = [name for name, _ in tracked.buffers()]
    return WeightsDigest(tracked.parameters(), names, lambda: [tensor for _, tensor in tracked.buffers()])


def _storage(tensor: torch.Tensor) -> memoryview:
    """The storage's own bytes: torch does not see what is written there."""
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage())
    return flat.numpy().data


def flip(tensor: torch.Tensor, index: int, bit: int) -> None:
    """Change one bit of one element, where it lies."""
    size = tensor.element_size()
    at = [0] * tensor.dim()
    rest = index
    for d in reversed(range(tensor.dim())):
        rest, at[d] = divmod(rest, tensor.shape[d])
    first = (tensor.storage_offset() + sum(i * s for i, s in zip(at, tensor.stride(), strict=True))) * size
    _storage(tensor)[first + bit // 8] ^= 1 << bit % 8


def test_equal_weights_have_equal_digests() -> None:
    a, b = digest_of(Tracked(model=Odd())), digest_of(Tracked(model=Odd()))
    assert a.take() == a.take() == b.take() != 0


def test_every_bit_counts() -> None:
    model = Odd()
    weights = digest_of(Tracked(model=model))
    right = weights.take()
    seen = {right}
    tensors = [*model.parameters(), *(b for _, b in model.named_buffers())]
    for tensor in tensors:
        for index in range(tensor.numel()):
            for bit in (0, 7, 8 * tensor.element_size() - 1):
                flip(tensor, index, bit)
                seen.add(weights.take())
                flip(tensor, index, bit)
        assert weights.take() == right
    assert len(seen) > sum(t.numel() for t in tensors)


def test_a_copied_state_has_the_digest_of_the_live_one() -> None:
    tracked = Tracked(model=Odd())
    weights = digest_of(tracked)
    layout = state.describe(tracked)
    memory = bytearray(layout.total)
    state.copy_out(tracked, layout, memory)
    assert weights.of(layout, memoryview(memory)) == weights.take()
    entry = next(e for e in layout.entries if e.path == "model.image")
    memory[entry.offset + 17] ^= 4
    assert weights.of(layout, memoryview(memory)) != weights.take()


def test_a_parameter_that_got_other_memory_is_read_there() -> None:
    model = torch.nn.Linear(3, 2)
    weights = digest_of(Tracked(model=model))
    before = weights.take()
    model.weight.data = model.weight.data.clone()
    assert weights.take() == before
    model.weight.data = model.weight.data + 1
    assert weights.take() != before


def test_tensors_are_read_where_they_lie() -> None:
    model = torch.nn.Linear(1000, 4000, bias=False)
    weights = digest_of(Tracked(model=model))
    weights.take()
    at, raw = weights._known[0]
    assert at == model.weight.data_ptr()
    assert raw.nbytes == 16_000_000


@pytest.fixture(params=["inline", "beside"])
def watched(request, monkeypatch) -> tuple[torch.nn.Module, WeightsDigest, Watch]:
    if request.param == "beside":
        monkeypatch.setattr(digest, "BESIDE", 0)
    model = torch.nn.Linear(30, 20)
    weights = digest_of(Tracked(model=model))
    return model, weights, Watch(weights)


def test_a_bit_that_changed_by_itself_is_seen(watched) -> None:
    model, weights, watch = watched
    watch.begin(3)
    assert not watch.changed(3, weights.take())
    flip(model.weight, 11, 5)
    assert watch.changed(3, weights.take())


def test_a_change_by_the_script_is_no_fault(watched) -> None:
    model, weights, watch = watched
    watch.begin(3)
    with torch.no_grad():
        model.weight.clamp_(-0.01, 0.01)
    assert not watch.changed(3, weights.take())
    watch.begin(4)
    model.weight.data = model.weight.data.sign()
    assert not watch.changed(4, weights.take())


def test_nothing_is_said_of_a_step_that_was_not_begun_or_after_a_load(watched) -> None:
    model, weights, watch = watched
    watch.begin(3)
    flip(model.weight, 0, 0)
    assert not watch.changed(4, weights.take())
    watch.forget()
    assert not watch.changed(3, weights.take())
    watch.begin(3)
    assert not watch.changed(3, weights.take())


def test_only_the_first_slot_of_a_step_begins_it(watched) -> None:
    model, weights, watch = watched
    watch.begin(3)
    weights.take()
    assert not watch.changed(3, weights.take())  # the thread has read by now
    flip(model.bias, 0, 3)
    watch.begin(3)
    assert watch.changed(3, weights.take())


def test_where_a_majority_tells_who_is_wrong_nobody_watches_itself(watched) -> None:
    model, weights, watch = watched
    watch.begin(3, witnesses=3)
    flip(model.weight, 0, 0)
    assert not watch.changed(3, weights.take())
    watch.begin(4, witnesses=2)
    assert not watch.changed(4, weights.take())
    flip(model.weight, 0, 0)
    assert watch.changed(4, weights.take())


@pytest.mark.parametrize(("digest_seconds", "every"), [(0.001, 1), (0.0049, 1), (0.019, 4), (2.0, 400)])
def test_watching_takes_no_more_than_its_share_of_the_time(digest_seconds, every) -> None:
    model = torch.nn.Linear(30, 20)
    weights = digest_of(Tracked(model=model))
    now, taken, take = [0.0], [], weights.take

    def slow_take() -> int:
        now[0] += digest_seconds
        taken.append(step)
        return take()

    weights.take = slow_take
    watch = Watch(weights, clock=lambda: now[0])
    for step in range(900):
        for _ in range(3):  # slots
            watch.begin(step, witnesses=2)
        now[0] += 1.0 - min(1.0, digest_seconds) * (step in taken)
    gaps = {b - a for a, b in itertools.pairwise(taken)}
    assert gaps == {every}, taken


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 599), st.integers(0, 31))
def test_any_flip_is_seen(index: int, bit: int) -> None:
    model = torch.nn.Linear(30, 20, bias=False)
    weights = digest_of(Tracked(model=model))
    watch = Watch(weights)
    watch.begin(0)
    flip(model.weight, index, bit)
    assert watch.changed(0, weights.take())
