"""Which transports are refused, and in what words; what a choice gives to the session."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from reknit.core.errors import StateError, UsageError
from reknit.core.layout import Layout
from reknit.core.settings import resolve
from reknit.worker import state
from reknit.worker.ring.pieces import Section, Shape
from reknit.worker.tracked import Tracked
from reknit.worker.transport.choice import NAMES, Choice, check
from reknit.worker.transport.collective import Collective
from reknit.worker.transport.port import Tcp

SHAPE = Shape((Section("f4", 0, 40), Section("f8", 40, 48)))
BUCKETS = [Section("f4", 0, 20), Section("f4", 20, 40), Section("f8", 40, 48)]
HERE = [torch.zeros(1)]


def test_the_setting_knows_the_same_names(tmp_path):
    for name in NAMES:
        assert resolve({"transport": name}, {}, tmp_path).job.transport == name
    assert resolve({}, {"REKNIT_TRANSPORT": "gloo"}, tmp_path).job.transport == "gloo"
    assert resolve({}, {}, tmp_path).job.transport == "tcp"
    with pytest.raises(UsageError, match=r"transport must be tcp or gloo or nccl, not 'mpi'"):
        resolve({"transport": "mpi"}, {}, tmp_path)


def test_an_unknown_one_is_named_with_those_there_are():
    with pytest.raises(UsageError, match="there is no transport 'mpi'") as caught:
        check("mpi", HERE)
    assert "tcp, gloo, nccl" in caught.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_nccl_without_cuda_says_why():
    with pytest.raises(UsageError, match=r"needs CUDA, and (this torch is built without|torch finds no)"):
        check("nccl", HERE)


def test_gloo_where_torch_has_none(monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(UsageError, match="has no gloo"):
        check("gloo", HERE)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [([], "none"), (HERE, "cpu"), ([torch.zeros(1), torch.zeros(1, device="meta")], "cpu, meta")],
)
def test_nccl_with_parameters_elsewhere(monkeypatch, tensors, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    with pytest.raises(UsageError, match=f"all parameters on one GPU, here they are on {words}"):
        check("nccl", tensors)


def test_nccl_where_torch_has_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(UsageError, match="has no NCCL"):
        check("nccl", HERE)


def test_tcp_changes_nothing():
    choice = Choice("tcp", SHAPE, BUCKETS, 4, HERE)
    assert choice.shape is SHAPE
    assert choice.bounds is None
    assert isinstance(choice.make("127.0.0.1", lambda: False), Tcp)
    choice.applied(SHAPE.empty())


def test_gloo_has_room_for_bounds_behind_the_buffer():
    choice = Choice("gloo", SHAPE, BUCKETS, 4, HERE)
    assert choice.shape.sections[:-1] == SHAPE.sections
    assert choice.shape.nbytes == SHAPE.nbytes + 16
    transport = choice.make("127.0.0.1", lambda: False)
    assert isinstance(transport, Collective)
    transport.close()
    result = choice.shape.empty()
    choice.bounds.write(result, np.array([1, -2, 3], np.int32))
    choice.applied(result)
    state = choice.bounds.state_dict()
    assert state["exponents"].tolist() == [1, -2, 3]
    other = Choice("gloo", SHAPE, BUCKETS, 4, HERE).bounds
    other.load_state_dict(state)
    assert other.exponents.tolist() == [1, -2, 3]


@pytest.mark.parametrize("state", [{}, {"exponents": torch.zeros(7, dtype=torch.int32)}])
def test_a_state_of_another_transport_begins_without_bounds(state):
    bounds = Choice("gloo", SHAPE, BUCKETS, 4, HERE).bounds
    bounds.exponents = np.array([1, 2, 3], np.int32)
    bounds.load_state_dict(state)
    assert (bounds.exponents < -1000).all()


def test_more_slots_than_add_up_exactly_are_refused():
    choice = Choice("gloo", SHAPE, BUCKETS, (1 << 20) + 1, HERE)
    with pytest.raises(UsageError, match="at most 1048576 slots"):
        choice.make("127.0.0.1", lambda: False)
    assert isinstance(Choice("tcp", SHAPE, BUCKETS, (1 << 20) + 1, HERE).make("127.0.0.1", lambda: False), Tcp)


def copied(**objects) -> tuple[Layout, bytearray]:
    tracked = Tracked(**objects)
    layout = state.describe(tracked)
    memory = bytearray(layout.total)
    state.copy_out(tracked, layout, memory)
    return layout, memory


def test_bounds_travel_in_copies_of_the_state_and_may_be_missing():
    def bounds(*exponents):
        made = Choice("gloo", SHAPE, BUCKETS, 4, HERE).bounds
        made.exponents = np.array(exponents, np.int32)
        return made

    model = torch.nn.Linear(2, 1)
    ours, theirs = bounds(7, -3, 11), bounds(0, 0, 0)
    layout, memory = copied(model=model, reknit_bounds=ours)
    state.load(Tracked(model=model, reknit_bounds=theirs), layout, memory)
    assert theirs.exponents.tolist() == [7, -3, 11]
    state.load(Tracked(model=model), layout, memory)  # over tcp nobody asks for them
    layout, memory = copied(model=model)
    state.load(Tracked(model=model, reknit_bounds=theirs), layout, memory)
    assert (theirs.exponents < -1000).all()
    with pytest.raises(StateError, match="the state holds"):
        state.load(Tracked(model=model, other=bounds(1, 1, 1)), layout, memory)
