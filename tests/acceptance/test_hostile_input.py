"""Input that wants to break something, through the gateway: a clear refusal each, bounded memory, nobody dies."""

import json
import socket
import uuid
from collections.abc import Iterator

import httpx
import psutil
import pytest

from fleet_testkit.api_keys import issue_key
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import submit

MEBIBYTE = 1024 * 1024
# However hostile, a test of this file may not make a service grow by more than this.
MOST_GROWTH_BYTES = 64 * MEBIBYTE

# Every route that reads a JSON body.
JSON_ROUTES = [
    ("POST", "/runs"),
    ("POST", "/runs/batch"),
    ("POST", "/runs/{run_id}/cancel"),
    ("POST", "/dlq/requeue"),
    ("PATCH", "/workers/nobody"),
    ("POST", "/auth/keys"),
]
# What can stand where JSON is expected and never is a good request.
BAD_BODIES = {
    "a list in a list in a list": b"[" * 200_000,
    "an object in an object": b'{"params":' * 50_000 + b"1" + b"}" * 50_000,
    "deep params": b'{"flow_name":"x","hidden":true,"params":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "a number with a million digits": b'{"flow_name":"x","limit":1' + b"0" * 1_000_000 + b"}",
    "a number that no float holds": b'{"flow_name":1e999,"limit":1e999,"hidden":1e999,"reason":1e999}',
    "not a number": b'{"flow_name":NaN,"hidden":NaN,"limit":NaN,"tenant_id":NaN}',
    "bytes that are no UTF-8": b'{"flow_name":"\xff\xfe","reason":"\xff","tenant_id":"\xff"}',
    "half a surrogate": b'{"flow_name":"\\ud800","reason":"\\ud800","tenant_id":"\\ud800"}',
    "a NUL in a name": b'{"flow_name":"a\\u0000b","reason":"a\\u0000b","tenant_id":"a\\u0000b"}',
    "a NUL between the values": b'{"flow_name":\x00"x"}',
    "another encoding": '{"flow_name":"x"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"flow_name":"x"}',
    "a scalar": b"7",
    "a list": b"[1]",
    "the wrong types": b'{"flow_name":[],"runs":7,"filter":"x","hidden":"yes","reason":{},"tenant_id":{},"scopes":1}',
    "half an object": b'{"flow_name": "x',
    "sixty thousand unknown keys": json.dumps({"reason": 7} | {f"k{i}": i for i in range(60_000)}).encode(),
    "a compressed body": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\x00" * 1000,
}


@pytest.fixture(scope="module")
def client(guarded: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.url, headers=issue_key(guarded, "hostile"), timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def processes(guarded: Fleet) -> dict[str, psutil.Process]:
    return guarded.processes()


@pytest.fixture(autouse=True)
def nobody_dies_or_grows(processes: dict[str, psutil.Process]) -> Iterator[None]:
    sizes = {name: _resident_bytes(process) for name, process in processes.items()}
    yield
    for name, process in processes.items():
        assert process.is_running(), f"{name} has died"
        grown = _resident_bytes(process) - sizes[name]
        assert grown < MOST_GROWTH_BYTES, f"{name} grew by {grown // MEBIBYTE} MiB"


def _resident_bytes(process: psutil.Process) -> int:
    return sum(map(_own_bytes, (process, *process.children(recursive=True))))


def _own_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0  # a child that came and went


def refused(answer: httpx.Response, *statuses: int) -> None:
    assert answer.status_code in (statuses or range(400, 500)), (answer.status_code, answer.text[:300])
    body = answer.json()
    assert body["ok"] is False
    assert body["detail"]
    assert len(answer.content) < 16 * 1024, "a refusal does not repeat what it refuses"
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(("method", "path"), JSON_ROUTES)
@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_bad_body_is_refused_wherever_json_is_read(
    client: httpx.Client, method: str, path: str, body: bytes
) -> None:
    run_id = submit(client, "hello", tag="nobody-hostile") if "{run_id}" in path else ""
    answer = client.request(
        method, path.format(run_id=run_id), content=body, headers={"Content-Type": "application/json"}
    )
    refused(answer, 404, 413, 422)


@pytest.mark.parametrize(("method", "path"), JSON_ROUTES)
@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
def test_a_body_without_an_end_is_cut_off(client: httpx.Client, method: str, path: str, chunked: bool) -> None:
    body = b'{"flow_name": "' + b"x" * (20 * MEBIBYTE) + b'"}'
    content = (body[start : start + MEBIBYTE] for start in range(0, len(body), MEBIBYTE)) if chunked else body
    try:
        answer = client.request(method, path.format(run_id=uuid.uuid4()), content=content)
    except httpx.WriteError:
        return  # The connection was closed before all was sent: that is a refusal as well.
    refused(answer, 413)


ODD_PATHS = [
    "/runs/%00",
    "/runs/%ff%fe",
    "/runs/" + "x" * 6000,
    "/runs/..%2f..%2fetc%2fpasswd",
    "/runs/%2e%2e/%2e%2e/workers",
    "/runs/\N{HIRAGANA LETTER A}",
    "/workers/%00",
    "/workers/%ff",
    "/workers/*",
    "/workers/%3E",
    "/workers/" + "w" * 6000,
    "/wheels/..%2f..%2fetc%2fpasswd",
    "/wheels/%00.whl",
    "/wheels/%ff.whl",
    "/wheels/" + "w" * 6000 + ".whl",
    "/dlq/99999999999999999999999999",
    "/dlq/-1",
    "/dlq/%00",
    "/auth/keys/%00",
    "/auth/keys/*",
    "/auth/keys/" + "k" * 6000,
]


@pytest.mark.parametrize("path", ODD_PATHS, ids=lambda path: path[:40])
@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH", "POST"])
def test_an_odd_path_finds_nothing(client: httpx.Client, method: str, path: str) -> None:
    refused(client.request(method, path))


ODD_QUERIES = [
    "limit=99999999999999999999999",
    "limit=1e999",
    "limit=-1",
    "limit=%00",
    "limit=%ff",
    "cursor=%00",
    "cursor=" + "x" * 6000,
    "&".join(f"tag=t{n}" for n in range(1500)),
    "status=%00",
    "state=%00",
    "since=NaN",
    "since=1e999",
    "updated_after=inf",
    "wheel_name=%00",
]


@pytest.mark.parametrize("path", ["/runs", "/dlq", "/workers", "/wheels/history", "/auth/keys"])
@pytest.mark.parametrize("query", ODD_QUERIES, ids=lambda query: query[:20])
def test_an_odd_query_is_refused_or_not_looked_at(client: httpx.Client, path: str, query: str) -> None:
    answer = client.get(f"{path}?{query}")
    if answer.status_code != 200:
        refused(answer, 404, 414, 422)


POST = b"POST /runs HTTP/1.1\r\nHost: x\r\n"
RAW = {
    "a header of a megabyte": b"GET /runs HTTP/1.1\r\nHost: x\r\nX-Big: " + b"x" * MEBIBYTE + b"\r\n\r\n",
    "ten thousand headers": b"GET /runs HTTP/1.1\r\nHost: x\r\n"
    + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)),
    "an address of a megabyte": b"GET /" + b"a" * MEBIBYTE + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a NUL in a header": b"GET /runs HTTP/1.1\r\nHost: x\r\nX-API-Key: a\x00b\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length below nothing": POST + b"Content-Length: -5\r\n\r\n",
    "a chunk of a size that no integer holds": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    "not HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
    "a line that folds": b"GET /runs HTTP/1.1\r\nHost: x\r\nX-A: b\r\n c: d\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", RAW.values(), ids=RAW.keys())
def test_bytes_that_are_no_good_request_are_refused_by_the_gateway(guarded: Fleet, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as connection:
        try:
            connection.sendall(request_bytes)
            first = connection.recv(65536)
        except ConnectionError:
            first = b""
    assert first == b"" or first.split(b" ", 2)[1].startswith(b"4"), first[:200]
    assert guarded.client.get("/health").status_code == 200


WORKFLOW_BOMBS = {
    "aliases of aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(8)),
    "an object of Python": "flow: !!python/object/apply:os.system ['true']\n",
    "a deep list": "flow: " + "[" * 50_000,
    "a list of empty maps": "flow:\n" + "  - {}\n" * 30_000,
    "a NUL": "flow: {graph: 'a\0b'}\n",
    "many documents": "---\nflow: {}\n" * 10_000,
}


@pytest.mark.parametrize("text", WORKFLOW_BOMBS.values(), ids=WORKFLOW_BOMBS.keys())
def test_a_workflow_file_that_is_a_bomb_is_refused(client: httpx.Client, text: str) -> None:
    refused(
        client.post("/runs/yaml", data={"flow_name": "bomb"}, files={"workflow": ("flow.yaml", text.encode())}),
        413,
        422,
    )


FORM = "multipart/form-data; boundary=b"
WHEEL = b'--b\r\nContent-Disposition: form-data; name="wheel"; filename="'
FORMS = {
    "no boundary": (b"hello", "multipart/form-data"),
    "no end": (
        b"--b\r\nContent-Disposition: form-data; name=wheel; filename=a.whl\r\n\r\n" + b"x" * 1000,
        FORM,
    ),
    "a boundary of a kilobyte": (b"--" + b"b" * 1000, "multipart/form-data; boundary=" + "b" * 1000),
    "ten thousand parts": (
        b"".join(b'--b\r\nContent-Disposition: form-data; name="f%d"\r\n\r\nx\r\n' % n for n in range(10_000))
        + b"--b--\r\n",
        FORM,
    ),
    "a part with endless headers": (
        b"--b\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(50_000)) + b"\r\n\r\nx\r\n--b--\r\n",
        FORM,
    ),
    "a name that climbs": (
        WHEEL + b'../../a-1-py3-none-any.whl"\r\n\r\nPK\r\n--b--\r\n',
        FORM,
    ),
    "a name with a NUL": (
        WHEEL + b'a\x00-1-py3-none-any.whl"\r\n\r\nPK\r\n--b--\r\n',
        FORM,
    ),
}


@pytest.mark.parametrize("path", ["/runs/yaml", "/wheels"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_form_that_is_none_is_refused(client: httpx.Client, path: str, form: tuple[bytes, str]) -> None:
    body, content_type = form
    refused(client.post(path, content=body, headers={"Content-Type": content_type}), 404, 405, 413, 422)
