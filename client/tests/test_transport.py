"""What the clients do when the server is away, busy, half there, or something else altogether."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyoco_fleet import (
    BadAnswer,
    BadRequest,
    Conflict,
    FleetError,
    Forbidden,
    NotAuthenticated,
    NotFound,
    PyocoHttpClient,
    Retries,
    Unavailable,
    Unreachable,
    transport,
)

from .conftest import HANG_UP, QUICK, Both, ScriptedServer, answer, events, problem

SUBMITTED = answer(200, {"run_id": "r1", "status": "PENDING"})
AWAY = problem(503, "NATS is away", "ERR-PYOCO-0003", retryable=True)


@pytest.mark.parametrize("trouble", [AWAY, problem(502, "restarting"), problem(504, "no answer"), HANG_UP])
def test_a_submit_is_repeated_with_the_same_idempotency_key(
    server: ScriptedServer, client: Both, trouble: bytes
) -> None:
    server.answers = [trouble, trouble, SUBMITTED]

    assert client.do(lambda c: c.submit_run("hello"))["run_id"] == "r1"

    keys = server.headers("idempotency-key")
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert keys[0]


def test_every_submit_has_a_key_of_its_own(server: ScriptedServer, client: Both) -> None:
    server.answers = [SUBMITTED]
    for _ in range(2):
        client.do(lambda c: c.submit_run("hello"))
    client.do(lambda c: c.submit_run("hello", idempotency_key="mine"))
    first, second, third = server.headers("idempotency-key")
    assert first != second
    assert third == "mine"


def test_retries_end_and_the_last_error_is_raised(server: ScriptedServer, client: Both) -> None:
    server.answers = [AWAY]
    with pytest.raises(Unavailable, match="NATS is away") as caught:
        client.do(lambda c: c.get_run("r1"), retries=Retries(attempts=3, first_wait_seconds=0.005))
    assert len(server.requests) == 3
    assert (caught.value.err_id, caught.value.request_id, caught.value.code) == (
        "ERR-PYOCO-0003",
        "req-1",
        "SOME_CODE",
    )
    assert caught.value.retryable


def test_retry_after_is_waited_for(server: ScriptedServer, client: Both) -> None:
    server.answers = [answer(503, {}, Retry_After="1"), SUBMITTED]
    begun = time.monotonic()
    client.do(lambda c: c.submit_run("hello"))
    # With attempts of its own it would have waited 0.2 s, with all of them 60 s.
    assert 1.0 <= time.monotonic() - begun < 10


@pytest.mark.parametrize("when", ["3600", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_retry_after_that_is_too_far_away_is_not_waited_for(
    server: ScriptedServer, client: Both, when: str
) -> None:
    server.answers = [answer(503, {}, Retry_After=when), SUBMITTED]
    with pytest.raises(Unavailable) as caught:
        client.do(lambda c: c.submit_run("hello"))
    assert caught.value.retry_after >= 3600
    assert len(server.requests) == 1


@pytest.mark.parametrize("when", ["-5", "nan", "soon", "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"])
def test_a_retry_after_that_means_nothing_is_passed_over(server: ScriptedServer, client: Both, when: str) -> None:
    server.answers = [answer(503, {}, Retry_After=when), SUBMITTED]
    assert client.do(lambda c: c.submit_run("hello"))["run_id"] == "r1"


def test_a_redirect_is_neither_followed_nor_an_answer(server: ScriptedServer, client: Both) -> None:
    server.answers = [answer(302, b"<html>", Location="http://elsewhere.example/")]
    for use in (lambda c: c.get_metrics(), lambda c: c.download_wheel("x"), lambda c: c.watch_run("r1")):
        with pytest.raises(FleetError, match=r"was redirected to 'http://elsewhere\.example/'"):
            client.do(use)
    with pytest.raises(FleetError, match="was redirected"):
        client.do(lambda c: c.request("get", "/x"))
    assert len(server.requests) == 4


def test_an_error_of_a_submit_has_the_key_with_which_it_can_be_sent_again(
    server: ScriptedServer, client: Both
) -> None:
    server.answers = [HANG_UP]
    with pytest.raises(Unreachable) as caught:
        client.do(lambda c: c.rerun_run("r1"), retries=Retries(attempts=2, first_wait_seconds=0.005))
    assert {caught.value.meta["idempotency_key"]} == set(server.headers("idempotency-key"))


@pytest.mark.parametrize("key", ["a\nb", "a ", "é", "x" * 256])
def test_an_idempotency_key_that_no_header_can_have_is_refused_at_once(
    server: ScriptedServer, client: Both, key: str
) -> None:
    server.answers = [SUBMITTED]
    with pytest.raises(BadRequest, match="printable ASCII"):
        client.do(lambda c: c.submit_run("hello", idempotency_key=key))
    assert server.requests == []


def test_a_delete_with_a_limit_is_not_repeated_as_it_would_delete_more(server: ScriptedServer, client: Both) -> None:
    server.answers = [HANG_UP]
    with pytest.raises(Unreachable):
        client.do(lambda c: c.delete_dead_letters(all=True, limit=10))
    assert len(server.requests) == 1


def test_a_fleet_on_this_machine_is_not_asked_by_a_proxy(
    server: ScriptedServer, client: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    server.answers = [answer(200, {"status": "RUNNING"})]
    assert client.do(lambda c: c.get_run("r1"))["status"] == "RUNNING"


@pytest.mark.parametrize("trouble", [AWAY, HANG_UP])
def test_what_may_not_happen_twice_is_not_repeated(server: ScriptedServer, client: Both, trouble: bytes) -> None:
    server.answers = [trouble]
    with pytest.raises((Unavailable, Unreachable)):
        client.do(lambda c: c.issue_key("tenant"))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *[(401, NotAuthenticated), (403, Forbidden), (404, NotFound), (409, Conflict), (413, BadRequest)],
        *[(415, BadRequest), (421, Forbidden), (422, BadRequest), (500, FleetError)],
    ],
)
def test_an_error_of_the_server_is_an_exception_with_its_sentence(
    server: ScriptedServer, client: Both, status: int, kind: type[FleetError]
) -> None:
    server.answers = [problem(status, "this is wrong", "ERR-PYOCO-0002", fields=["x"])]
    with pytest.raises(kind, match=r"this is wrong \(ERR-PYOCO-0002, request req-1\)") as caught:
        client.do(lambda c: c.get_run("r1"))
    assert type(caught.value).__name__ == kind.__name__
    assert (caught.value.status, caught.value.meta["fields"]) == (status, ["x"])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "garbage",
    [answer(200, b"<html>hello</html>"), answer(200, b""), answer(200, b"\xff\xfe")],
)
def test_an_answer_that_is_not_json_says_so(server: ScriptedServer, client: Both, garbage: bytes) -> None:
    server.answers = [garbage]
    with pytest.raises(BadAnswer, match="is not JSON"):
        client.do(lambda c: c.get_run("r1"))


@pytest.mark.parametrize(
    "body", [b"<html>Bad Gateway</html>", b'"text"', b'{"error": "text"}', b'{"error": {"meta": 3}}']
)
def test_an_error_of_a_stranger_is_an_exception_as_well(server: ScriptedServer, client: Both, body: bytes) -> None:
    server.answers = [answer(404, body, X_Request_Id="of-header")]
    with pytest.raises(NotFound, match="answered with HTTP 404") as caught:
        client.do(lambda c: c.get_run("r1"))
    assert caught.value.request_id == "of-header"


def test_what_is_no_http_is_unreachable(server: ScriptedServer, client: Both) -> None:
    server.answers = [b"SSH-2.0-OpenSSH_9.2\r\n"]
    with pytest.raises(Unreachable, match="was lost"):
        client.do(lambda c: c.get_run("r1"), retries=Retries(attempts=2, first_wait_seconds=0.005))


def test_a_server_that_takes_connections_and_says_nothing_is_asked_once(server: ScriptedServer, client: Both) -> None:
    server.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"]
    with pytest.raises(Unreachable, match="has not answered GET /flows in time"):
        client.do(lambda c: c.list_flows(), timeout=0.1)
    assert len(server.requests) == 1


def test_nothing_at_the_address_is_said_soon_with_the_address(server: ScriptedServer, client: Both) -> None:
    server.close()
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=f"nothing answers at {server.url}.*PYOCO_SERVER") as caught:
        client.do(lambda c: c.submit_run("hello"), retries=Retries())
    # Far less than the 60 s of one that has answered before.
    assert time.monotonic() - begun < 20
    assert caught.value.err_id == "ERR-PYOCO-0001"
    assert caught.value.retryable
    with pytest.raises(Unreachable):
        client.do(lambda c: c.watch_run("r1"), retries=Retries())


def test_a_stream_that_breaks_goes_on_after_the_last_event(server: ScriptedServer, client: Both) -> None:
    server.answers = [
        events('id: s-1\nevent: snapshot\ndata: {"n": 1}\n\n', "event: snapshot\nda", complete=False),
        HANG_UP,
        AWAY,
        events('event: heartbeat\ndata: {}\n\nid: s-2\nevent: snapshot\ndata: {"n": 2}\n\n'),
    ]
    seen = client.do(lambda c: c.watch_run("r1"))
    assert [event["data"].get("n") for event in seen] == [1, None, 2]
    assert server.headers("last-event-id") == [None, "s-1", "s-1", "s-1"]


def test_what_is_no_stream_says_so(server: ScriptedServer, client: Both) -> None:
    server.answers = [answer(200, {})]
    with pytest.raises(BadAnswer, match="cannot be read"):
        client.do(lambda c: c.watch_run("r1"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("when", ["3600", "1e400"])
def test_a_stream_does_not_wait_for_a_retry_after_that_is_too_far_away(
    server: ScriptedServer, client: Both, when: str
) -> None:
    server.answers = [answer(503, {}, Retry_After=when), events("data: 1\n\n")]
    with pytest.raises(Unavailable):
        client.do(lambda c: c.watch_run("r1"))
    assert len(server.requests) == 1


def test_the_first_stream_is_not_soon_given_up_once_it_has_been_there(
    server: ScriptedServer, client: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_SECONDS_TO_MEET", 0.0)
    server.answers = [events("data: 1\n\n", complete=False), HANG_UP, events("data: 2\n\n")]
    assert [event["data"] for event in client.do(lambda c: c.watch_run("r1"))] == [1, 2]


def test_a_stream_that_stays_lost_raises(server: ScriptedServer, client: Both) -> None:
    server.answers = [events("event: a\ndata: 1\n\n", complete=False), HANG_UP]
    with pytest.raises(Unreachable):
        client.do(lambda c: c.watch_run("r1"), retries=Retries(first_wait_seconds=0.005, seconds=0.2))


def test_a_stream_of_what_does_not_exist_raises(server: ScriptedServer, client: Both) -> None:
    server.answers = [problem(404, "no such run")]
    with pytest.raises(NotFound, match="no such run"):
        client.do(lambda c: c.watch_run("r1"))
    assert len(server.requests) == 1


def test_events_in_pieces_are_put_together(server: ScriptedServer, client: Both) -> None:
    text = ': comment\r\nid: 7\r\nevent: log\r\ndata: {"text":\r\ndata: "é"}\r\n\r\ndata: plain\n\n'
    server.answers = [events(*text)]
    seen = client.do(lambda c: c.events("/x"))
    assert [(event.id, event.event, event.data) for event in seen] == [
        ("7", "log", {"text": "é"}),
        ("7", "message", {"raw": "plain"}),
    ]


def test_ids_and_queries_are_escaped_and_the_key_is_sent_in_its_header(server: ScriptedServer, client: Both) -> None:
    server.answers = [answer(200, {})]
    client.do(lambda c: c.get_run("../wheels?x=1#y"), api_key="secret", api_key_header="X-Key")
    assert server.requests[0].startswith("GET /runs/..%2Fwheels%3Fx%3D1%23y HTTP/1.1")
    assert server.headers("x-key") == ["secret"]


def test_any_request_can_be_sent(server: ScriptedServer, client: Both) -> None:
    server.answers = [answer(200, {"a": 1})]
    assert client.do(lambda c: c.request("post", "/x/{y}", params={"q": True, "n": None}, json=[1])) == {"a": 1}
    assert server.requests[0].startswith("POST /x/%7By%7D?q=true HTTP/1.1")
    assert json.loads(server.requests[0].split("\r\n\r\n")[1]) == [1]


def test_threads_share_a_client(server: ScriptedServer) -> None:
    server.answers = [answer(200, {"status": "RUNNING"})]
    with PyocoHttpClient(server.url, retries=QUICK) as client, ThreadPoolExecutor(16) as pool:
        states = list(pool.map(client.get_run, map(str, range(200))))
    assert len(states) == len(server.requests) == 200
