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
from fleet_testkit.routes import applications
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
CONTENT_TYPES = {"application/json", "multipart/form-data", "application/x-www-form-urlencoded", "text/plain", ""}
# Bodies in the place of JSON that never are a good request.
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
def processes(guarded: Fleet) -> list[psutil.Process]:
    """Listed once: to look for children costs more than most of these tests."""
    firsts = guarded.processes().values()
    return [one for first in firsts for one in (first, *first.children(recursive=True))]


@pytest.fixture(autouse=True)
def nobody_dies_or_grows(processes: list[psutil.Process]) -> Iterator[None]:
    sizes = [process.memory_info().rss for process in processes]
    yield
    for process, size in zip(processes, sizes, strict=True):
        assert process.is_running(), f"{process} has died"
        grown = process.memory_info().rss - size
        assert grown < MOST_GROWTH_BYTES, f"{process} grew by {grown // MEBIBYTE} MiB"


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
        answer = client.request(
            method, path.format(run_id=uuid.uuid4()), content=content, headers={"Content-Type": "application/json"}
        )
    except httpx.WriteError:
        return  # The connection was closed before all was sent: that is a refusal as well.
    refused(answer, 413)


def test_a_batch_of_a_million_unknown_keys_is_refused_before_it_is_parsed(client: httpx.Client) -> None:
    body = json.dumps(dict.fromkeys((f"{n:x}" for n in range(1_450_000)), 1), separators=(",", ":")).encode()
    answer = client.post("/runs/batch", content=body, headers={"Content-Type": "application/json"})
    refused(answer, 422)
    assert "more than 100,000 values" in answer.json()["detail"]


def test_a_body_is_read_only_as_the_content_type_that_its_route_names(client: httpx.Client) -> None:
    """A page of another origin can send any of the other types without asking the gateway first."""
    asked = set()
    for app in applications().values():
        for path, operations in app.openapi()["paths"].items():
            for method, operation in operations.items():
                if (body := operation.get("requestBody")) is None:
                    continue
                [wanted] = body["content"]
                for other in CONTENT_TYPES - {wanted}:
                    headers = {"Content-Type": other} if other else {}
                    answer = client.request(method, path.format_map(AnyName()), content=b"{}", headers=headers)
                    refused(answer, 415)
                    assert wanted in answer.json()["detail"], (method, path, other)
                asked.add(path)
    assert asked >= {"/runs", "/runs/batch", "/runs/yaml", "/wheels", "/workers/{worker_id}", "/auth/keys"}


class AnyName(dict[str, str]):
    def __missing__(self, _: str) -> str:
        return "any"


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


POST = b"POST /runs HTTP/1.1\r\nHost: localhost\r\n"
RAW = {
    "a header of a megabyte": b"GET /runs HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * MEBIBYTE + b"\r\n\r\n",
    "ten thousand headers": b"GET /runs HTTP/1.1\r\nHost: localhost\r\n"
    + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)),
    "an address of a megabyte": b"GET /" + b"a" * MEBIBYTE + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a NUL in a header": b"GET /runs HTTP/1.1\r\nHost: localhost\r\nX-API-Key: a\x00b\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length below nothing": POST + b"Content-Length: -5\r\n\r\n",
    "a chunk of a size that no integer holds": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
    "not HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
    "a control character in a header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: b\x01c\r\n\r\n",
    "bytes of no text in an address": b"GET /runs/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a method that nobody knows": b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a version of HTTP that there is not": b"GET /health HTTP/7.7\r\nHost: localhost\r\n\r\n",
    "a preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a coding that nobody knows": POST + b"Transfer-Encoding: rot13\r\n\r\n",
    "a line that folds": b"GET /runs HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n c: d\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", RAW.values(), ids=RAW.keys())
def test_bytes_that_are_no_good_request_are_refused_by_the_gateway(guarded: Fleet, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as connection:
        try:
            connection.sendall(request_bytes)
            # Head and body may come one after the other.
            answer = connection.recv(65536)
            while answer and b"}" not in answer and (more := connection.recv(65536)):
                answer += more
        except ConnectionError:
            answer = b""
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        assert 400 <= status < 500 or status in (501, 505), answer[:200]
        assert json.loads(body)["error"]["message"], answer[:200]
        assert b"content-type: application/json" in head.lower()
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
