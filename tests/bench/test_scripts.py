"""The training scripts' own parts."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from diary import Diary
from exact_net import data, net, sha256
from meter import Meter
from steplog import Reader
from workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_the_same_each_time(name):
    workload = WORKLOADS[name]
    one, two = workload.model(), workload.model()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    items = [workload.data()[i] for i in (0, 1)]
    x, y = (torch.stack(parts) for parts in zip(*items, strict=True))
    assert workload.loss(one(x), y).ndim == 0


@pytest.mark.parametrize(
    ("name", "count"), [("mlp", 1_008_610), ("wide", 25_076_712), ("conv", 554_922), ("transformer", 25_333_856)]
)
def test_models_have_as_many_parameters_as_is_said(name, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in WORKLOADS[name].model().parameters()) == count


def test_the_hash_sees_every_bit_of_every_state():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.cross_entropy(model(torch.stack([data()[i][0] for i in range(4)])), torch.arange(4)).backward()
    optimizer.step()
    state, moments = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    before = sha256(state, moments)
    assert before == sha256(copy.deepcopy(state), copy.deepcopy(moments))
    changed = copy.deepcopy(moments)
    first = changed["state"][0]["exp_avg"]
    first.view(-1)[0] = torch.nextafter(first.view(-1)[0], torch.tensor(1.0))
    assert sha256(state, changed) != before
    state["1.num_batches_tracked"] += 1
    assert sha256(state, moments) != before


def test_the_last_batch_is_uneven():
    assert len(data()) % 48 not in (0, 8, 16, 24, 32, 40)


def test_what_a_diary_notes_the_reader_reads(tmp_path):
    diary = Diary(str(tmp_path), "w1")
    diary.completed(3, 2, 4)
    (done,) = Reader(tmp_path).look()
    assert (done.step, done.generation, done.worker, done.slots) == (3, 2, "w1", 4)


def test_a_meter_leaves_the_warm_up_out(tmp_path, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("meter.time.perf_counter", lambda: float(next(clock)))
    meter = Meter(str(tmp_path), "w1", warm=3.0, seconds=5.0)
    for _ in range(20):
        meter.completed(64)
    (file,) = tmp_path.glob("*.metered")
    found = json.loads(file.read_text())
    assert (found["steps"], found["samples_per_s"], found["step_ms_median"]) == (5, 64.0, 1000.0)
