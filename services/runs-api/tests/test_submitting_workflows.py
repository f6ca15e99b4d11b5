"""Submitting a workflow file: the form, its limits, and what becomes of the file."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet_contracts.job import Job
from fleet_kit.nats.messages import stored_message
from fleet_testkit.nats_server import NatsServer

from .conftest import RunsUnderTest, runs_running, runs_settings

FILE = b"""flow:
  graph: choose >> greet
  defaults: {name: Ada}
tasks:
  choose: {callable: hello:choose}
  greet: {callable: hello:greet}
"""


async def post(service: RunsUnderTest, file: bytes = FILE, **fields: Any) -> httpx.Response:
    files = {"workflow": ("flow.yaml", file, "application/x-yaml")}
    return await service.client.post("/runs/yaml", files=files, data={"flow_name": "mine", **fields})


def form(*parts: tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    """A form as somebody would write it by hand: the head of each part, and its content."""
    body = b"".join(
        b"--x\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (head.encode(), content)
        for head, content in parts
    )
    return body + b"--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}


WORKFLOW = ('name="workflow"; filename="flow.yaml"', FILE)
NAME = ('name="flow_name"', b"mine")


async def test_the_job_carries_the_file_and_the_snapshot_only_its_hash(service: RunsUnderTest) -> None:
    answer = await post(service, tag="gpu", tags=["a", "b"])
    assert answer.status_code == 200, answer.text
    run_id = answer.json()["run_id"]
    assert answer.json() == {"run_id": run_id, "status": "PENDING"}

    message = await stored_message(service.link, "PYOCO_WORK", 1)
    assert message is not None
    job = Job.decode(message.data)
    assert (job.run_id, job.flow_name, job.tag, job.tags) == (run_id, "mine", "gpu", ["a", "b"])
    assert (job.workflow_yaml, job.params) == (FILE.decode(), {"name": "Ada"})
    assert (job.workflow_yaml_sha256, job.workflow_yaml_bytes) == (hashlib.sha256(FILE).hexdigest(), len(FILE))

    snapshot = await service.snapshot(run_id)
    assert (snapshot.flow_name, snapshot.params) == ("mine", {"name": "Ada"})
    assert (snapshot.workflow_yaml_sha256, snapshot.workflow_yaml_bytes) == (job.workflow_yaml_sha256, len(FILE))
    assert b"hello:choose" not in snapshot.encode()
    assert (await service.listed(run_id))["workflow_yaml_sha256"] == job.workflow_yaml_sha256


async def test_the_rules_of_a_submit_may_be_fields_of_the_form(service: RunsUnderTest) -> None:
    answer = await post(service, timeout_sec="60", retry='{"max_attempts": 3}', tag=" ")
    assert answer.status_code == 200, answer.text
    message = await stored_message(service.link, "PYOCO_WORK", 1)
    assert message is not None
    job = Job.decode(message.data)
    assert job.retry is not None
    assert (job.retry.max_attempts, job.tag) == (3, "default")
    assert job.deadline_at == pytest.approx(job.submitted_at + 60)


async def test_a_key_makes_the_same_file_one_run_and_another_file_a_conflict(service: RunsUnderTest) -> None:
    service.client.headers["Idempotency-Key"] = "orders:1:1760000000000"
    first, again = await post(service), await post(service)
    assert first.json() == again.json()
    other = await post(service, FILE + b"# another\n")
    assert other.status_code == 409
    assert other.json()["error"]["meta"]["run_id"] == first.json()["run_id"]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([NAME], "workflow: send one file"),
        ([NAME, ('name="workflow"', FILE)], "workflow: send one file, such as curl -F workflow=@flow.yaml"),
        ([NAME, WORKFLOW, WORKFLOW], "workflow: send one file"),
        ([WORKFLOW], "flow_name: Field required"),
        ([WORKFLOW, ('name="flow_name"', b"  ")], "flow_name: Field required"),
        ([WORKFLOW, NAME, NAME], "flow_name: send it once"),
        ([WORKFLOW, ('name="flow_name"; filename="x"', b"x")], "flow_name: send it as a field, not as a file"),
        ([WORKFLOW, NAME, ('name="tag"', b"a.b")], "tag: "),
        ([WORKFLOW, NAME, ('name="tags"', b"")], "tags.0: "),
        ([WORKFLOW, NAME, ('name="params"', b"{}")], "params: this field is not known; known fields: workflow"),
        ([WORKFLOW, NAME, ('name="retry"', b"{")], "retry: not valid JSON"),
        ([WORKFLOW, NAME, ('name="retry"', b'{"times": 3}')], 'retry: unknown key "times"'),
        ([WORKFLOW, NAME, ('name="tag"', b"x" * 20_000)], "body: Part exceeded maximum size"),
        ([WORKFLOW, NAME] + [('name="tags"', b"x")] * 200, "body: Too many fields"),
        ([WORKFLOW, ("filename=x", b"x")], 'body: The Content-Disposition header field "name" must be provided'),
    ],
)  # fmt: skip
async def test_a_bad_form_is_refused_and_the_field_named(
    service: RunsUnderTest, parts: list[tuple[str, bytes]], says: str
) -> None:
    body, headers = form(*parts)
    answer = await service.client.post("/runs/yaml", content=body, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"
    assert says in answer.json()["detail"]
    assert service.rows("SELECT * FROM runs") == []


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "multipart/form-data"),
        (b"no form", "multipart/form-data; boundary=x"),
        (b"--x\r\nContent-Disposition: form-data; name=", "multipart/form-data; boundary=x"),
        (form(WORKFLOW, NAME)[0][:-30], "multipart/form-data; boundary=x"),
        (b"--x", "multipart/form-data; boundary=" + "x" * 1000),
        (form(NAME)[0], "multipart/form-data; boundary=x; charset=no-such"),
    ],
)
async def test_a_body_that_is_no_form_is_refused(service: RunsUnderTest, body: bytes, content_type: str) -> None:
    answer = await service.client.post("/runs/yaml", content=body, headers={"content-type": content_type})
    assert answer.status_code == 422
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"


async def test_a_bad_file_is_refused_with_its_line_and_leaves_nothing(service: RunsUnderTest) -> None:
    answer = await post(service, FILE + b"    retires: 3\n")
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["message"].startswith("line 7: ")
    assert (error["meta"]["err_id"], error["meta"]["line"]) == ("ERR-PYOCO-0002", 7)
    assert service.rows("SELECT * FROM runs") == []
    assert await service.jobs() == []


async def test_a_file_above_the_limit_is_refused_without_being_read_to_the_end(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield form(NAME)[0].removesuffix(b"--x--\r\n") + form(WORKFLOW)[0].removesuffix(b"\r\n--x--\r\n")
        for _ in range(1000):
            sent += 1
            yield b"#" * 4096

    async with runs_running(runs_settings(nats_server, tmp_path, workflow_yaml_max_bytes=1000)) as service:
        for answer in (
            await post(service, FILE + b"#" * 1000),
            await service.client.post("/runs/yaml", content=endless(), headers=form()[1]),
        ):
            assert answer.status_code == 413
            assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0016"
            assert "more than 1000 bytes" in answer.json()["detail"]
        assert sent < 50
        assert (await post(service, FILE + b"#" * (1000 - len(FILE)))).status_code == 200


@pytest.mark.parametrize("padding", ["# あ\n", "\n", '#"""""""\n', "##"])
async def test_a_file_of_the_full_size_is_accepted(service: RunsUnderTest, padding: str) -> None:
    """However much longer JSON makes it: its size is its own, and not taken from what params may have."""
    file = FILE + padding.encode() * ((262_144 - len(FILE)) // len(padding.encode()))
    answer = await post(service, file)
    assert answer.status_code == 200, answer.text
