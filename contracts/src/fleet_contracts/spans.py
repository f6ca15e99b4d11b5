"""Names of spans and their attributes. `observability/schema.yaml` describes each; a test compares the two."""

from typing import Protocol

from .job import Job
from .names import ANONYMOUS_TENANT
from .snapshot import RunSnapshot

# A request is named by its method and route, a task by its own name; both are listed as templates there.
RUN_ACCEPT = "run.accept"
RUN_RELAY = "run.relay"
RUN_PROCESS = "run.process"
RUN_CLAIM = "run.claim"
RUN_EXECUTE = "run.execute"
RUN_SNAPSHOT_WRITE = "run.snapshot.write"
RUN_INGEST = "run.ingest"
RUN_REPAIR = "run.repair"
DEAD_LETTER_PUBLISH = "dead_letter.publish"
DEAD_LETTER_INGEST = "dead_letter.ingest"


def task_span(task: str) -> str:
    return f"task {task}"


RUN_ID = "pyoco.run.id"
RUN_STATUS = "pyoco.run.status"
RUN_COUNT = "pyoco.run.count"
FLOW_NAME = "pyoco.flow.name"
ATTEMPT = "pyoco.attempt"
DISPATCH = "pyoco.dispatch"
OUTCOME = "pyoco.outcome"
WORKER_ID = "pyoco.worker.id"
TENANT_ID = "pyoco.tenant.id"
TAG = "pyoco.tag"
TASK_NAME = "pyoco.task.name"
QUEUE_WAIT_MS = "pyoco.queue.wait_ms"
QUEUE_DELIVERIES = "pyoco.queue.deliveries"
SNAPSHOT_REVISION = "pyoco.snapshot.revision"
REASON = "pyoco.reason"
REQUEST_ID = "pyoco.request.id"

# Names of the OpenTelemetry conventions.
ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS_CODE = "http.response.status_code"
URL_PATH = "url.path"
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION = "messaging.operation.type"
MESSAGING_DESTINATION = "messaging.destination.name"


def about_run(run: Job | RunSnapshot) -> dict[str, str | None]:
    """Attributes of every span of a run. Never its params or its result."""
    return {
        RUN_ID: run.run_id,
        FLOW_NAME: run.flow_name,
        TAG: run.tag,
        TENANT_ID: run.tenant_id or ANONYMOUS_TENANT,
    }


class LetterLike(Protocol):
    """A dead letter, on the wire or in the ledger."""

    @property
    def run_id(self) -> str | None: ...
    @property
    def flow_name(self) -> str | None: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def tenant_id(self) -> str | None: ...
    @property
    def worker_id(self) -> str | None: ...
    @property
    def attempt(self) -> int | None: ...
    @property
    def reason(self) -> str: ...


def about_letter(letter: LetterLike) -> dict[str, str | int | None]:
    return {
        RUN_ID: letter.run_id,
        FLOW_NAME: letter.flow_name,
        TAG: letter.tag,
        TENANT_ID: letter.tenant_id or ANONYMOUS_TENANT,
        WORKER_ID: letter.worker_id,
        ATTEMPT: letter.attempt,
        REASON: letter.reason,
    }


def about_message(subject: str, operation: str) -> dict[str, str]:
    return {MESSAGING_SYSTEM: "nats", MESSAGING_DESTINATION: subject, MESSAGING_OPERATION: operation}
