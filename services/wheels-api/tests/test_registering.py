"""Uploading, listing and deleting wheels: the answers of the spec, and what is refused."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

from fleet_contracts.scopes import Scope
from fleet_testkit.apps import ANONYMOUS, running, until_ready
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.wheels import build_wheel, upload_of
from fleet_wheels_api.main import build
from fleet_wheels_api.settings import Settings


async def upload(client: httpx.AsyncClient, wheel: Path, **fields: str) -> httpx.Response:
    return await client.post("/wheels", files=upload_of(wheel), data=fields)


def refused(answer: httpx.Response, status: int, err_id: str) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["meta"]["err_id"] == err_id
    return str(error["message"])


async def test_a_wheel_is_registered_listed_and_deleted(service: httpx.AsyncClient, tmp_path: Path) -> None:
    assert (await service.get("/wheels")).json() == []
    wheel = build_wheel(tmp_path, "shop")
    answer = await upload(service, wheel, tags="cpu, linux,cpu,,", replace="true")
    assert answer.status_code == 200, answer.text
    registered = answer.json()
    assert registered.pop("nuid")
    assert registered.pop("modified") > 1_700_000_000
    assert registered == {
        "name": "shop-1.0-py3-none-any.whl",
        "size_bytes": wheel.stat().st_size,
        "bucket": "pyoco_wheels",
        "sha256_hex": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "tags": ["cpu", "linux"],
    }
    assert (await service.get("/wheels")).json() == [answer.json()]
    deleted = await service.delete(f"/wheels/{wheel.name}")
    assert deleted.json() == {"name": wheel.name, "deleted": True}
    assert (await service.get("/wheels")).json() == []
    assert "no such wheel" in refused(await service.delete(f"/wheels/{wheel.name}"), 404, "ERR-PYOCO-0023")


async def test_what_peers_look_for_stands_beside_the_object(
    service: httpx.AsyncClient, nats_server: NatsServer, tmp_path: Path
) -> None:
    wheel = build_wheel(tmp_path, "shop")
    await upload(service, wheel, tags="cpu,linux")
    client = await nats.connect(nats_server.url)
    try:
        store = await client.jetstream().object_store("pyoco_wheels")
        headers = (await store.get_info(wheel.name)).headers
        assert headers is not None
        assert headers["x-pyoco-wheel-tags"] == "cpu,linux"
        assert headers["sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert (await store.get(wheel.name)).data == wheel.read_bytes()
    finally:
        await client.close()


async def test_wheels_that_a_peer_has_registered_are_listed_and_count(
    service: httpx.AsyncClient, nats_server: NatsServer, tmp_path: Path
) -> None:
    client = await nats.connect(nats_server.url)
    try:
        store = await client.jetstream().object_store("pyoco_wheels")
        await store.put("shop-2.0-py3-none-any.whl", b"theirs")
        await store.put("notes.txt", b"not a wheel")
    finally:
        await client.close()
    [wheel] = (await service.get("/wheels")).json()
    assert (wheel["name"], wheel["tags"]) == ("shop-2.0-py3-none-any.whl", [])
    assert wheel["sha256_hex"] == hashlib.sha256(b"theirs").hexdigest()
    assert "2.0" in refused(await upload(service, build_wheel(tmp_path, "shop")), 409, "ERR-PYOCO-0022")
    assert (await service.get("/wheels/notes.txt")).status_code == 404


async def test_every_wheel_of_a_package_must_be_newer_than_the_registered_ones(
    service: httpx.AsyncClient, tmp_path: Path
) -> None:
    assert (await upload(service, build_wheel(tmp_path, "shop-tasks", "1.5"))).status_code == 200
    again = refused(
        await upload(service, build_wheel(tmp_path, "shop-tasks", "1.5"), replace="true"), 409, "ERR-PYOCO-0022"
    )
    assert "shop-tasks 1.5 is not newer than the registered 1.5" in again
    older = refused(await upload(service, build_wheel(tmp_path, "Shop_Tasks", "1.4.9")), 409, "ERR-PYOCO-0022")
    assert "shop-tasks 1.4.9 is not newer than the registered 1.5" in older
    other_platform = build_wheel(tmp_path, "shop_tasks", "1.5", python="cp311", abi="cp311", platform="linux_x86_64")
    refused(await upload(service, other_platform), 409, "ERR-PYOCO-0022")
    assert (await upload(service, build_wheel(tmp_path, "shop-tasks", "1.10"))).status_code == 200
    assert (await upload(service, build_wheel(tmp_path, "shop", "0.1"))).status_code == 200
    names = [wheel["name"] for wheel in (await service.get("/wheels")).json()]
    assert names == [
        "shop-0.1-py3-none-any.whl",
        "shop_tasks-1.10-py3-none-any.whl",
        "shop_tasks-1.5-py3-none-any.whl",
    ]
    # Once the newest is deleted, the next one counts, and the name may come back.
    await service.delete("/wheels/shop_tasks-1.10-py3-none-any.whl")
    assert (await upload(service, build_wheel(tmp_path, "shop-tasks", "1.10"))).status_code == 200


async def test_of_many_uploads_of_one_version_at_once_only_one_is_registered_even_by_several_replicas(
    service: httpx.AsyncClient, nats_server: NatsServer, tmp_path: Path
) -> None:
    wheel = build_wheel(tmp_path, "shop", "1.0")
    others = [build_wheel(tmp_path, f"other{number}", "1.0") for number in range(6)]
    async with running(build(Settings(nats_url=nats_server.url))) as replica:
        replica.headers.update(ANONYMOUS)
        await until_ready(replica)
        answers = await asyncio.gather(
            *(upload(client, wheel) for client in (service, replica) for _ in range(5)),
            *(upload(replica, other) for other in others),
        )
    assert sorted(answer.status_code for answer in answers[:10]) == [200] + [409] * 9
    assert [answer.status_code for answer in answers[10:]] == [200] * 6
    assert len((await service.get("/wheels")).json()) == 7
    # No bytes are left without a wheel.
    assert await chunk_subjects(nats_server) == 7
    events = (await service.get("/wheels/history")).json()
    assert len(events) == 7


async def chunk_subjects(nats_server: NatsServer) -> int:
    client = await nats.connect(nats_server.url)
    try:
        info = await client.jetstream().stream_info("OBJ_pyoco_wheels", subjects_filter="$O.pyoco_wheels.C.>")
        return len(info.state.subjects or {})
    finally:
        await client.close()


async def test_of_two_rising_versions_at_once_the_lower_one_never_comes_last(
    service: httpx.AsyncClient, tmp_path: Path
) -> None:
    for round_ in range(5):
        low, high = (build_wheel(tmp_path, "shop", f"{round_}.{minor}") for minor in (1, 2))
        answers = await asyncio.gather(upload(service, high), upload(service, low))
        assert answers[0].status_code == 200
        assert answers[1].status_code in (200, 409)
    events = (await service.get("/wheels/history")).json()
    versions = [event["wheel_name"].split("-")[1] for event in reversed(events)]
    assert versions == sorted(versions)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tags": "two words"}, "tags: 'two words' is no tag"),
        ({"tags": "a.b"}, "tags: 'a.b' is no tag"),
        ({"tags": "ok,店"}, "is no tag"),
        ({"tags": "a\0b"}, "is no tag"),
        ({"tags": "x" * 65}, "is no tag"),
        ({"tags": ",".join(map(str, range(51)))}, "at most 50 tags"),
        ({"tags": "x" * 9000}, "more than 8192 bytes"),
        ({"replace": "maybe"}, "replace: 'maybe' is neither true nor false"),
        ({"color": "red"}, "color: this field is not known; known fields: wheel, tags, replace"),
    ],
)
async def test_fields_that_are_wrong_are_refused(
    service: httpx.AsyncClient, tmp_path: Path, fields: dict[str, str], reason: str
) -> None:
    assert reason in refused(await upload(service, build_wheel(tmp_path, "shop"), **fields), 422, "ERR-PYOCO-0002")
    assert (await service.get("/wheels")).json() == []


@pytest.mark.parametrize(
    ("files", "data", "reason"),
    [
        (
            [("wheel", ("shop-1.0-py3-none-any.whl", b"x")), ("wheel", ("shop-1.0-py3-none-any.whl", b"x"))],
            {},
            "once",
        ),
        ([("other", ("shop-1.0-py3-none-any.whl", b"x"))], {}, "other: this field is not known"),
        ([("tags", ("tags.txt", b"cpu"))], {}, "tags: send it as a field"),
        ([("wheel", ("shop-1.0-py3-none-any.whl", b""))], {}, "no zip archive"),
        ([("wheel", ("shop-1.0-py3-none-any.whl", b"PK\x05\x06"))], {}, "no zip archive"),
        ([("wheel", ("../shop-1.0-py3-none-any.whl", b"x"))], {}, "no file name of a wheel"),
        ([("wheel", ("shop-1.0-py3-none-any.whl\0.exe", b"x"))], {}, "no file name of a wheel"),
        ([("wheel", ("", b"x"))], {}, "wheel"),
    ],
)
async def test_files_that_are_wrong_are_refused(
    service: httpx.AsyncClient, files: list[Any], data: dict[str, str], reason: str
) -> None:
    assert reason in refused(await service.post("/wheels", files=files, data=data), 422, "ERR-PYOCO-0002")


FORM = {"content-type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"x", {"content-type": "multipart/form-data"}),
        (b"x", {"content-type": "multipart/form-data; boundary=" + "b" * 5000}),
        (b"", FORM),
        (b"--b--\r\n", FORM),
        (b"\xff\0\xfe", FORM),
        (b"--b\r\n\r\nx\r\n--b--\r\n", FORM),
        (b"--b\r\ncontent-disposition: form-data; name=wheel\r\n\r\nx\r\n--b--\r\n", FORM),
        (b'--b\r\ncontent-disposition: form-data; name="tags"\r\n\r\ncpu\r\n--b--\r\n', FORM),
        (
            b'--b\r\ncontent-disposition: form-data; name="wheel"; filename="shop-1.0-py3-none-any.whl"\r\n\r\nPK',
            FORM,
        ),
        (b"--b\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n", FORM),
        (b"--b\r\n" + b"x: y\r\n" * 5000 + b"\r\n", FORM),
        (b'--b\r\ncontent-disposition: form-data; name="tags"\r\n\r\n\xff\xfe\r\n--b--\r\n', FORM),
    ],
)
async def test_bodies_that_are_no_such_form_are_refused(
    service: httpx.AsyncClient, body: bytes, headers: dict[str, str]
) -> None:
    refused(await service.post("/wheels", content=body, headers=headers), 422, "ERR-PYOCO-0002")


async def test_fields_may_come_before_and_after_the_file(service: httpx.AsyncClient, tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, "shop")
    part = b'--b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    body = b"".join(
        [
            part % (b"replace", b"", b"false"),
            part % (b"wheel", b'; filename="%b"' % wheel.name.encode(), wheel.read_bytes()),
            part % (b"tags", b"", b"gpu"),
            b"--b--\r\n",
        ]
    )
    answer = await service.post("/wheels", content=body, headers=FORM)
    assert answer.status_code == 200, answer.text
    assert answer.json()["tags"] == ["gpu"]
    [event] = (await service.get("/wheels/history")).json()
    assert event["replace"] is False


async def test_a_wheel_that_is_not_what_its_name_says_is_refused(service: httpx.AsyncClient, tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, "shop", "1.0")
    renamed = wheel.rename(tmp_path / "shop-9.0-py3-none-any.whl")
    reason = refused(await upload(service, renamed), 422, "ERR-PYOCO-0002")
    assert "the file name says version 9.0, its METADATA says '1.0'" in reason
    assert (await service.get("/wheels/history")).json() == []


async def test_a_wheel_that_is_too_large_is_refused_before_all_of_it_was_read(
    service: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The service of these tests takes 300,000 bytes."""
    sent = 0

    async def body() -> Any:
        nonlocal sent
        yield b'--b\r\ncontent-disposition: form-data; name="wheel"; filename="shop-1.0-py3-none-any.whl"\r\n\r\n'
        for _ in range(1000):
            sent += 10_000
            yield b"x" * 10_000

    answer = await service.post("/wheels", content=body(), headers=FORM)
    assert "300000" in refused(answer, 413, "ERR-PYOCO-0002")
    assert answer.json()["error"]["meta"]["limit_bytes"] == 300_000
    assert 300_000 < sent <= 320_000
    # If the length is announced nothing is read at all.
    announced = await service.post("/wheels", content=body(), headers={**FORM, "content-length": "10000000"})
    refused(announced, 413, "ERR-PYOCO-0002")
    assert sent <= 330_000


async def test_a_version_that_has_no_chance_is_refused_before_all_of_it_was_read(
    service: httpx.AsyncClient, tmp_path: Path
) -> None:
    assert (await upload(service, build_wheel(tmp_path, "shop"))).status_code == 200
    sent = 0

    async def body() -> Any:
        nonlocal sent
        yield b'--b\r\ncontent-disposition: form-data; name="wheel"; filename="shop-1.0-py3-none-any.whl"\r\n\r\n'
        for _ in range(20):
            sent += 10_000
            yield b"x" * 10_000

    refused(await service.post("/wheels", content=body(), headers=FORM), 409, "ERR-PYOCO-0022")
    assert sent == 0


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/wheels", Scope.WHEELS_READ),
        ("GET", "/wheels/history", Scope.WHEELS_READ),
        ("GET", "/wheels/x-1-py3-none-any.whl", Scope.WHEELS_READ),
        ("HEAD", "/wheels/x-1-py3-none-any.whl", Scope.WHEELS_READ),
        ("POST", "/wheels", Scope.WHEELS_WRITE),
        ("DELETE", "/wheels/x-1-py3-none-any.whl", Scope.WHEELS_WRITE),
    ],
)
async def test_each_request_needs_its_scope(service: httpx.AsyncClient, method: str, path: str, scope: Scope) -> None:
    others = " ".join({s.value for s in Scope} - {scope.value, Scope.ADMIN.value})
    without = await service.request(method, path, headers={"X-Pyoco-Scopes": others})
    assert without.status_code == 403
    with_it = await service.request(method, path, headers={"X-Pyoco-Scopes": scope.value})
    assert with_it.status_code != 403
    del service.headers["X-Pyoco-Tenant-Id"]
    assert (await service.request(method, path)).status_code == 401


@pytest.mark.parametrize(
    "name",
    [
        "nope-1.0-py3-none-any.whl",
        "nope",
        "..%2F..%2Fetc",
        "x" * 5000 + ".whl",
        "%00.whl",
        "%E5%BA%97.whl",
        "%FF.whl",
    ],
)
async def test_wheels_that_are_not_there_are_not_found(service: httpx.AsyncClient, name: str) -> None:
    for method in ("GET", "HEAD", "DELETE"):
        answer = await service.request(method, f"/wheels/{name}")
        assert answer.status_code == 404
        if method != "HEAD" and "%2F" not in name:
            refused(answer, 404, "ERR-PYOCO-0023")


async def test_the_description_of_the_service_names_form_and_answers(service: httpx.AsyncClient) -> None:
    paths = (await service.get("/openapi.json")).json()["paths"]
    form = paths["/wheels"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(form["properties"]) == {"wheel", "tags", "replace"}
    assert {"200", "409", "413", "422", "default"} <= set(paths["/wheels"]["post"]["responses"])
    assert {"200", "206", "304", "404", "416", "default"} <= set(paths["/wheels/{wheel_name}"]["get"]["responses"])
