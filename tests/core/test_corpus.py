"""Bytes that somebody's log holds go on decoding to what they meant (see tests/support/samples.py)."""

from __future__ import annotations

import typing

import msgspec
import pytest

from reknit.core import wire
from reknit.core.errors import WireError
from reknit.core.events import AREAS, AnyEvent, AnyPulse, Event, Pulse, kind_of
from reknit.core.subjects import STORED_SUBJECTS, job_and_area, subject_of
from support.samples import CORPUS, SAMPLES, name_of

IDS = [name_of(sample) for sample in SAMPLES]


def area_of(sample: Event | Pulse) -> object:
    return AREAS[name_of(sample).partition(".")[0]]


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_stored_bytes_decode_to_the_same_value(sample: Event | Pulse) -> None:
    data = (CORPUS / f"{name_of(sample)}.bin").read_bytes()
    assert wire.decode(data, area_of(sample)) == sample
    assert wire.decode(data, AnyEvent if isinstance(sample, Event) else AnyPulse) == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_what_is_sent_today_arrives(sample: Event | Pulse) -> None:
    assert wire.decode(wire.encode(sample), area_of(sample)) == sample


def test_every_type_is_in_the_corpus_and_nothing_else() -> None:
    types = {kind for union in AREAS.values() for kind in (typing.get_args(union) or (union,))}
    assert types == {type(sample) for sample in SAMPLES}
    assert {path.stem for path in CORPUS.iterdir()} == set(IDS)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_samples_tell_fields_apart(sample: Event | Pulse) -> None:
    """A default in a sample would prove nothing about its field. Fields younger than the bytes are at their default."""
    data = wire.unpack((CORPUS / f"{name_of(sample)}.bin").read_bytes())
    for field in msgspec.structs.fields(sample):
        if field.encode_name in data and field.default is not msgspec.NODEFAULT:
            assert getattr(sample, field.name) != field.default, field.name


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_a_field_of_a_newer_version_is_ignored(sample: Event | Pulse) -> None:
    plain = wire.unpack(wire.encode(sample))
    assert wire.decode(wire.pack({**plain, "from_the_future": [1, {"a": b"b"}]}), area_of(sample)) == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_fields_with_defaults_may_be_missing_others_not(sample: Event | Pulse) -> None:
    plain = wire.unpack(wire.encode(sample))
    for field in msgspec.structs.fields(sample):
        without = wire.pack({k: v for k, v in plain.items() if k != field.encode_name})
        if field.required:
            with pytest.raises(WireError, match=f"`{field.encode_name}`"):
                wire.decode(without, area_of(sample))
        else:
            wire.decode(without, area_of(sample))


@pytest.mark.parametrize("sample", [s for s in SAMPLES if isinstance(s, Event)], ids=kind_of)
def test_the_subject_of_an_event_is_stored_and_tells_job_and_area(sample: Event) -> None:
    subject = subject_of("job-1", sample)
    job, area = job_and_area(subject)
    assert (job, area) == job_and_area(f"live.{subject}") == ("job-1", kind_of(sample).partition(".")[0])
    assert f"reknit.*.{area}.>" in STORED_SUBJECTS


def test_all_areas_but_heartbeats_are_stored() -> None:
    assert {subject.split(".")[2] for subject in STORED_SUBJECTS} == set(AREAS) - {"heartbeat"}
