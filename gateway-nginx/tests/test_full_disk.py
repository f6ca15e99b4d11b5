"""A full disk under the gateway: what fits into memory is answered as ever, the rest with an error that says so."""

from collections.abc import Callable

import pytest

from fleet_testkit.small_disk import SmallDisk

from .conftest import Gateway


@pytest.mark.parametrize("disk", [1], indirect=True)
def test_small_requests_and_large_answers_need_no_disk(
    start_gateway: Callable[..., Gateway], disk: SmallDisk
) -> None:
    gateway = start_gateway(temp_dir=disk.path)
    gateway.services["workers"].answer = lambda exchange: exchange.reply(200, b"w" * 3_000_000)
    disk.fill()
    for number in range(5):
        # A key of its own each time: nobody has been asked about it before.
        with gateway.client(f"good-{number}") as client:
            assert client.post("/runs", content=b"x" * 60_000).json()["body_bytes"] == 60_000
            assert client.get("/runs").status_code == 200
            assert client.get("/health").status_code == 200
    with gateway.client() as client:
        assert len(client.get("/workers").content) == 3_000_000
        refused = client.post("/runs", content=b"x" * 500_000)
    assert (refused.status_code, refused.json()["ok"]) == (503, False)
