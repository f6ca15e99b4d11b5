"""Names on the wire: streams, subjects, buckets, durables and headers. All are spelled here only."""

import base64
import re
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

TAG_PATTERN = r"^[A-Za-z0-9_-]+$"
Tag = Annotated[str, StringConstraints(pattern=TAG_PATTERN, min_length=1, max_length=64)]
# Text in one line, whatever the language: no control characters, neither C0 nor DEL nor C1. They would break logs and
# terminals, and PostgreSQL stores no NUL.
LINE_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"
SubjectPrefix = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
BucketName = Annotated[str, StringConstraints(pattern=TAG_PATTERN)]

# The tenant of all callers while authentication is off. Auth never issues a key for it.
ANONYMOUS_TENANT = "anonymous"

# HTTP headers that carry identity from auth through the gateway to the services.
HEADER_TENANT_ID = "X-Pyoco-Tenant-Id"
HEADER_API_KEY_ID = "X-Pyoco-Api-Key-Id"
HEADER_SCOPES = "X-Pyoco-Scopes"
HEADER_REQUEST_ID = "X-Request-Id"
# Its value is a secret of the gateway and the services: a request without it did not come through the gateway.
HEADER_FROM_GATEWAY = "X-Pyoco-From-Gateway"

# NATS headers.
NATS_MSG_ID = "Nats-Msg-Id"
NATS_EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
# The subjects of which the expected sequence is the last; by default the message's own.
NATS_EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
NATS_ROLLUP = "Nats-Rollup"
# Identifies a letter of a run. With Nats-Msg-Id JetStream would drop a letter whose id another sender used before.
DEAD_LETTER_ID = "Pyoco-Dead-Letter-Id"


def is_tag(text: str) -> bool:
    return len(text) <= 64 and re.fullmatch(TAG_PATTERN, text) is not None


class WireNames(BaseModel):
    """Every configurable name; settings classes inherit it, so the env names are those of the spec."""

    default_tag: Tag = "default"

    work_stream: BucketName = "PYOCO_WORK"
    work_subject_prefix: SubjectPrefix = "pyoco.work"
    consumer_prefix: BucketName = "pyoco_workers"

    dlq_stream: BucketName = "PYOCO_DLQ"
    dlq_subject_prefix: SubjectPrefix = "pyoco.dlq"

    events_stream: BucketName = "PYOCO_EVENTS"
    events_subject_prefix: SubjectPrefix = "pyoco.events"

    control_subject_prefix: SubjectPrefix = "pyoco.control"

    declined_subject_prefix: SubjectPrefix = "pyoco.declined"

    runs_kv_bucket: BucketName = "pyoco_runs"
    workers_kv_bucket: BucketName = "pyoco_workers"
    flows_kv_bucket: BucketName = "pyoco_flows"
    auth_kv_bucket: BucketName = "pyoco_auth"
    wheel_object_store_bucket: BucketName = "pyoco_wheels"
    wheel_history_kv_bucket: BucketName = "pyoco_wheel_history"

    def work_subject(self, tag: str) -> str:
        return f"{self.work_subject_prefix}.{tag}"

    def work_durable(self, tag: str) -> str:
        """The durable consumer of a tag; workers of every kind share it."""
        return f"{self.consumer_prefix}_{tag}"

    def tag_of_work_subject(self, subject: str) -> str:
        return subject.removeprefix(self.work_subject_prefix + ".")

    def dlq_subject(self, tag: str) -> str:
        return f"{self.dlq_subject_prefix}.{tag}"

    def events_subject(self, worker_id: str, run_id: str) -> str:
        """The subject of a run's events, which names the writer: a worker may publish below its own id only."""
        return f"{self.events_subject_prefix}.{worker_id}.{run_id}"

    def writer_of_events(self, subject: str) -> str:
        return subject.removeprefix(self.events_subject_prefix + ".").partition(".")[0]

    def control_subject(self, worker_id: str) -> str:
        """The subject of a worker's control messages: core NATS, not stored, so they are hints only."""
        return f"{self.control_subject_prefix}.{worker_id}"

    def handover_subject(self, worker_id: str, tag: str) -> str:
        """The subject on which a worker is handed declined jobs of others, one for each of its tags."""
        return f"{self.control_subject(worker_id)}.{tag}"

    def declined_subject(self, worker_id: str) -> str:
        """The subject on which a worker asks what becomes of a job whose flow it does not offer (core NATS)."""
        return f"{self.declined_subject_prefix}.{worker_id}"

    def ingest_durable(self) -> str:
        """The consumer on the runs bucket that feeds the ledger; replicas of runs-api share it."""
        return "pyoco_runs_ingest"

    def dlq_durable(self) -> str:
        """The consumer on the dead letter stream that feeds the ledger; replicas of runs-api share it."""
        return "pyoco_runs_dlq"


class ConsumerDefaults(BaseModel):
    """Settings with which a tag's missing durable consumer is created (appendix E)."""

    consumer_ack_wait_sec: float = Field(30.0, gt=0)
    consumer_max_deliver: int = Field(20, ge=1)
    consumer_max_ack_pending: int = Field(200, ge=1)


def kv_stream(bucket: str) -> str:
    return f"KV_{bucket}"


def kv_subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def kv_key(bucket: str, subject: str) -> str:
    return subject.removeprefix(f"$KV.{bucket}.")


def object_stream(bucket: str) -> str:
    return f"OBJ_{bucket}"


def object_metas_subject(bucket: str) -> str:
    """The subjects of the meta messages of all objects of a bucket."""
    return f"$O.{bucket}.M.>"


def object_meta_subject(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def object_chunks_subject(bucket: str, nuid: str) -> str:
    return f"$O.{bucket}.C.{nuid}"


def ack_subject(stream: str, durable: str, stream_sequence: int, consumer_sequence: int) -> str:
    """The ack subject of a delivery, to answer it on behalf of the worker that has it.

    JetStream checks that the message is pending, and that the consumer has made a delivery of that number.
    """
    return f"$JS.ACK.{stream}.{durable}.1.{stream_sequence}.{consumer_sequence}.0.0"


def dead_letter_id(run_id: str, *, reopened: int, attempt: int, reason: str) -> str:
    """The id of a dead letter: one for each end of a run, whichever process sends it and however often."""
    return f"{run_id}:{reopened}:{attempt}:{reason}"


def end_of_dead_letter_id(letter_id: str, run_id: str) -> tuple[int, int] | None:
    """`reopened` and `attempt` of the id of a dead letter; None for an id in a peer's own format."""
    found = re.fullmatch(rf"{re.escape(run_id)}:([0-9]{{1,10}}):([0-9]{{1,10}}):.*", letter_id)
    return (int(found[1]), int(found[2])) if found else None


def job_message_id(run_id: str, dispatch: int) -> str:
    """JetStream's deduplication key: a repeated send of one dispatch is one job, a new dispatch is another."""
    return f"{run_id}:{dispatch}"
