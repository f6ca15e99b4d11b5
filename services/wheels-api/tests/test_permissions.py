"""With the permissions of its role and nothing more, wheels-api does all of its work."""

from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig

from fleet_contracts.names import WireNames
from fleet_contracts.nats_roles import NatsUser, accounts_config, operator, wheels_api
from fleet_kit.errors import NatsUnavailable
from fleet_kit.files.nkeys import make_nkey
from fleet_kit.nats.link import NatsLink
from fleet_testkit.apps import ANONYMOUS, running, until_ready
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_testkit.wheels import build_wheel, upload_of
from fleet_wheels_api.main import build
from fleet_wheels_api.settings import Settings


async def test_the_permissions_of_its_role_are_enough_and_let_it_make_no_consumer(tmp_path: Path) -> None:
    own, theirs = tmp_path / "wheels-api.nk", tmp_path / "operator.nk"
    users = [
        NatsUser("wheels-api", make_nkey(own).public_key, wheels_api(WireNames())),
        NatsUser("operator", make_nkey(theirs).public_key, operator(WireNames())),
    ]
    server = NatsServer(tmp_path / "nats", more_config=accounts_config(users, []))
    server.start()
    chief = await nats.connect(server.url, nkeys_seed=str(theirs))
    try:
        # A store that somebody else made, without direct gets, with the bytes of an upload that was never finished.
        subjects = ["$O.pyoco_wheels.C.>", "$O.pyoco_wheels.M.>"]
        await chief.jetstream().add_stream(
            StreamConfig(name="OBJ_pyoco_wheels", subjects=subjects, allow_rollup_hdrs=True)
        )
        await chief.jetstream().publish("$O.pyoco_wheels.C.orphan", b"x")
        settings = Settings.load(
            nats_url=server.url, nats_nkey_file=own, wheel_sweep_interval_sec=0.2, wheel_orphan_sec=0.4
        )
        wheel = build_wheel(tmp_path, "shop")
        async with running(build(settings)) as service:
            service.headers.update(ANONYMOUS)
            await until_ready(service)
            assert (await service.post("/wheels", files=upload_of(wheel))).status_code == 200
            assert len((await service.get("/wheels")).json()) == 1
            assert (await service.get(f"/wheels/{wheel.name}")).content == wheel.read_bytes()
            part = await service.get(f"/wheels/{wheel.name}", headers={"range": "bytes=-5"})
            assert part.content == wheel.read_bytes()[-5:]

            async def is_swept() -> bool:
                return "pyoco_wheel_orphans_swept_total 1.0" in (await service.get("/metrics")).text

            await eventually(is_swept, what="the orphan gone")
            assert (await service.delete(f"/wheels/{wheel.name}")).status_code == 200
            actions = [event["action"] for event in (await service.get("/wheels/history")).json()]
            assert actions == ["delete", "upload"]
        async with NatsLink(settings, name="test") as link:
            await link.wait_ready()
            with pytest.raises(NatsUnavailable):
                await link.request("$JS.API.CONSUMER.CREATE.OBJ_pyoco_wheels", b"{}")
    finally:
        await chief.close()
        server.kill()
