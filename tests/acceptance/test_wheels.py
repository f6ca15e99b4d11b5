"""Wheels through the gateway: registered, fetched, deleted, remembered; refusals reach the client in one piece."""

import hashlib
import http.client
import json
import os
import socket
import zipfile
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet_testkit.api_keys import issue_key
from fleet_testkit.fleet import Fleet
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel, upload_of

MEGABYTE = 1_000_000


def large_wheel(folder: Path, name: str, size: int) -> Path:
    path = build_wheel(folder, name)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}/data.bin", os.urandom(size))
    return path


@pytest.mark.also_composed("uploads have a volume")
def test_a_wheel_goes_in_comes_out_and_is_deleted(stack: Fleet, tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, "accepted")
    path = f"/wheels/{wheel.name}"
    answer = stack.client.post("/wheels", files=upload_of(wheel), data={"tags": "cpu,linux"})
    assert answer.status_code == 200, answer.text
    assert answer.json() in stack.client.get("/wheels").json()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    fetched = stack.client.get(path)
    assert fetched.content == wheel.read_bytes()
    assert fetched.headers["etag"] == f'"{digest}"'
    assert fetched.headers["content-disposition"] == f'attachment; filename="{wheel.name}"'
    assert stack.client.head(path).headers["content-length"] == str(wheel.stat().st_size)
    assert stack.client.get(path, headers={"if-none-match": fetched.headers["etag"]}).status_code == 304
    part = stack.client.get(path, headers={"range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, wheel.read_bytes()[10:20])
    beyond = stack.client.get(path, headers={"range": "bytes=9999999-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{wheel.stat().st_size}")
    assert stack.client.delete(path).json() == {"name": wheel.name, "deleted": True}
    gone = stack.client.get(path)
    assert (gone.status_code, gone.json()["error"]["meta"]["err_id"]) == (404, "ERR-PYOCO-0023")


@pytest.mark.also_composed("networks and identity")
def test_the_history_records_who_did_it_from_where_and_nobody_can_forge_it(guarded: Fleet, tmp_path: Path) -> None:
    caller = issue_key(guarded, "acme")
    lies = {
        "X-Real-IP": "192.0.2.1",
        "X-Forwarded-For": "192.0.2.2",
        "X-Pyoco-Tenant-Id": "other",
        "User-Agent": "me/1",
    }
    wheel = build_wheel(tmp_path, "remembered")
    answer = guarded.client.post("/wheels", files=upload_of(wheel), headers={**caller, **lies})
    assert answer.status_code == 200, answer.text
    query = {"wheel_name": wheel.name, "action": "upload"}
    [event] = guarded.client.get("/wheels/history", params=query, headers=caller).json()
    assert event["actor"]["tenant_id"] == "acme"
    assert event["actor"]["api_key_id"]
    # Ours, as the gateway sees it: in a container the engine's own address stands for this machine's.
    address = event["source"]["remote_addr"]
    assert ip_address(address).is_private
    assert address not in lies.values()
    assert event["source"] == {
        "remote_addr": address,
        "x_real_ip": address,
        # The addresses that proxies claim are kept, with the one that the gateway saw at the end.
        "x_forwarded_for": f"192.0.2.2, {address}",
        "user_agent": "me/1",
        "host": f"127.0.0.1:{guarded.port}",
        "scheme": "http",
    }


def plain_upload(stack: Fleet, wheel: Path, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """As a simple client does it: send everything, then read the answer."""
    head = b'--b\r\nContent-Disposition: form-data; name="wheel"; filename="%b"\r\n\r\n' % wheel.name.encode()
    tail = b"\r\n--b--\r\n"
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=60)
    try:
        connection.putrequest("POST", "/wheels")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader("Content-Length", str(len(head) + wheel.stat().st_size + len(tail)))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(head)
        with wheel.open("rb") as file:
            while block := file.read(MEGABYTE):
                connection.send(block)
        connection.send(tail)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.also_composed("limits")
def test_an_upload_that_is_refused_early_is_answered_even_if_the_client_sends_all_of_it(
    stack: Fleet, guarded: Fleet, tmp_path: Path
) -> None:
    wheel = large_wheel(tmp_path, "refused", 60 * MEGABYTE)
    status, body = plain_upload(guarded, wheel, {})
    assert (status, body["error"]["meta"]["err_id"]) == (401, "ERR-PYOCO-0014")
    status, body = plain_upload(guarded, wheel, {"X-API-Key": "nobody's"})
    assert (status, body["error"]["meta"]["err_id"]) == (403, "ERR-PYOCO-0015")
    assert plain_upload(stack, wheel, {})[0] == 200
    status, body = plain_upload(stack, wheel, {})
    assert (status, body["error"]["meta"]["err_id"]) == (409, "ERR-PYOCO-0022")
    assert body["error"]["meta"]["request_id"]
    wrong_name = wheel.rename(tmp_path / "not-a-wheel.whl")
    status, body = plain_upload(stack, wrong_name, {})
    assert (status, body["error"]["meta"]["err_id"]) == (422, "ERR-PYOCO-0002")


@pytest.mark.also_composed("limits")
def test_a_wheel_that_is_too_large_is_refused_by_the_gateway_before_it_is_sent(stack: Fleet) -> None:
    with socket.create_connection(("127.0.0.1", stack.port), timeout=30) as connection:
        connection.sendall(
            b"POST /wheels HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: 700000000\r\n\r\n"
        )
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        body = httpx.Response(answer.status, content=answer.read()).json()
        assert answer.status == 413
        assert answer.headers["x-request-id"] == body["error"]["meta"]["request_id"]
    assert body["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"
    assert body["error"]["meta"]["limit_bytes"] == 536_870_912 + 1024 * 1024


def test_a_wheel_that_vanishes_while_it_is_fetched_does_not_look_complete(stack: Fleet, tmp_path: Path) -> None:
    wheel = large_wheel(tmp_path, "vanishing", 60 * MEGABYTE)
    stack.client.post("/wheels", files=upload_of(wheel)).raise_for_status()
    received: list[int] = []

    def fetch() -> None:
        with stack.client.stream("GET", f"/wheels/{wheel.name}") as answer:
            for piece in answer.iter_raw():
                if not received:
                    assert stack.client.delete(f"/wheels/{wheel.name}").status_code == 200
                received.append(len(piece))

    with pytest.raises(httpx.RemoteProtocolError):
        fetch()
    assert 0 < sum(received) < wheel.stat().st_size


@pytest.mark.embedded_only("a file of the data dir; in a container uploads have a volume, see tests/containers")
def test_an_upload_in_progress_lies_in_the_data_dir_without_a_name(stack: Stack) -> None:
    """Not in the system's temporary folder, which may be one in memory."""
    handles = Path(f"/proc/{stack.pid('wheels-api')}/fd")

    def nameless_files() -> list[str]:
        links = [os.readlink(handle) for handle in handles.iterdir() if handle.is_symlink()]
        return [link for link in links if link.startswith(str(stack.data_dir)) and link.endswith("(deleted)")]

    head = b'--b\r\nContent-Disposition: form-data; name="wheel"; filename="slow-1.0-py3-none-any.whl"\r\n\r\n'
    with socket.create_connection(("127.0.0.1", stack.port), timeout=30) as connection:
        connection.sendall(
            b"POST /wheels HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: 70000000\r\n\r\n" + head + b"x" * 1000
        )
        assert len(wait_until(nameless_files, what="the upload's file")) == 1
    wait_until(lambda: not nameless_files(), what="the file gone with its client")
