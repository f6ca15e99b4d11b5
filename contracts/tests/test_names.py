"""Names on the wire are those of the spec, and every one can be configured."""

import pytest
from pydantic import TypeAdapter, ValidationError

from fleet_contracts.names import (
    ConsumerDefaults,
    SubjectPrefix,
    Tag,
    WireNames,
    dead_letter_id,
    end_of_dead_letter_id,
    is_tag,
    job_message_id,
    kv_key,
    kv_stream,
    kv_subject,
)
from fleet_contracts.scopes import ALL_SCOPES, Scope


def test_the_defaults_are_those_of_the_spec() -> None:
    names = WireNames()
    assert names.default_tag == "default"
    assert (names.work_stream, names.dlq_stream) == ("PYOCO_WORK", "PYOCO_DLQ")
    assert (names.runs_kv_bucket, names.workers_kv_bucket) == ("pyoco_runs", "pyoco_workers")
    assert names.auth_kv_bucket == "pyoco_auth"
    assert (names.wheel_object_store_bucket, names.wheel_history_kv_bucket) == ("pyoco_wheels", "pyoco_wheel_history")
    consumer = ConsumerDefaults()
    assert (consumer.consumer_ack_wait_sec, consumer.consumer_max_deliver) == (30.0, 20)
    assert consumer.consumer_max_ack_pending == 200


def test_subjects_and_durables_follow_their_tag() -> None:
    names = WireNames()
    assert names.work_subject("gpu") == "pyoco.work.gpu"
    assert names.tag_of_work_subject("pyoco.work.gpu") == "gpu"
    assert names.work_durable("gpu") == "pyoco_workers_gpu"
    assert names.dlq_subject("gpu") == "pyoco.dlq.gpu"
    assert names.events_subject("w1", "r1") == "pyoco.events.w1.r1"
    assert names.writer_of_events("pyoco.events.w1.r1") == "w1"


def test_the_id_of_a_dead_letter_names_the_end_of_its_run() -> None:
    letter_id = dead_letter_id("r.1", reopened=2, attempt=3, reason="execution_error")
    assert end_of_dead_letter_id(letter_id, "r.1") == (2, 3)
    assert end_of_dead_letter_id(letter_id, "rx1") is None
    assert end_of_dead_letter_id("7:execution_error", "r.1") is None


def test_configured_prefixes_are_used() -> None:
    names = WireNames(work_subject_prefix="acme.jobs", dlq_subject_prefix="acme.dead")
    assert names.work_subject("a") == "acme.jobs.a"
    assert names.tag_of_work_subject("acme.jobs.a") == "a"
    assert names.dlq_subject("a") == "acme.dead.a"


def test_a_kv_key_survives_the_way_through_its_subject() -> None:
    assert kv_stream("pyoco_runs") == "KV_pyoco_runs"
    assert kv_subject("pyoco_runs", "r1") == "$KV.pyoco_runs.r1"
    assert kv_key("pyoco_runs", kv_subject("pyoco_runs", "r1")) == "r1"


def test_a_second_dispatch_is_another_job() -> None:
    assert job_message_id("r1", 0) != job_message_id("r1", 1)


@pytest.mark.parametrize("tag", ["default", "GPU_1", "a-b", "x" * 64])
def test_good_tags(tag: str) -> None:
    assert is_tag(tag)
    assert TypeAdapter(Tag).validate_python(tag) == tag


@pytest.mark.parametrize("tag", ["", "a.b", "a b", "a*", ">", "é", "x" * 65, "a\n"])
def test_bad_tags(tag: str) -> None:
    assert not is_tag(tag)
    with pytest.raises(ValidationError):
        TypeAdapter(Tag).validate_python(tag)


@pytest.mark.parametrize("prefix", ["", ".a", "a.", "a..b", "a.*", "a b"])
def test_bad_subject_prefixes(prefix: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(SubjectPrefix).validate_python(prefix)


def test_scopes_fit_into_one_header() -> None:
    assert frozenset(Scope) == ALL_SCOPES
    assert all(" " not in scope for scope in ALL_SCOPES)
