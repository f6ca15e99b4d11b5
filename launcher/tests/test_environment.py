"""Each part gets only the variables of the launcher's environment that it needs."""

from typing import get_args

import pytest
from pydantic import SecretStr

from fleet_auth.settings import Settings as AuthSettings
from fleet_kit.settings import FleetSettings
from fleet_launcher.settings import LauncherSettings
from fleet_launcher.stack.environment import SECRETS, environment_of
from fleet_runs_api.settings import RunsSettings
from fleet_wheels_api.settings import Settings as WheelsSettings
from fleet_worker.settings import WorkerSettings
from fleet_workers_api.settings import Settings as WorkersSettings

SETTINGS: list[type[FleetSettings]] = [
    *(LauncherSettings, AuthSettings, RunsSettings, WorkersSettings, WheelsSettings, WorkerSettings)
]
SOUNDS_SECRET = (
    "secret",
    "password",
    "pepper",
    "nkey",
    "key_file",
    "credentials",
    "env_file",
    "database_url",
    "nats_url",
)


@pytest.mark.parametrize(
    ("part", "secrets"),
    [
        ("auth", {"PYOCO_AUTH_PEPPER", "PYOCO_GATEWAY_SECRET", "PYOCO_NATS_URL"}),
        ("runs-api", {"PYOCO_RUNS_DATABASE_URL", "PYOCO_CURSOR_SECRET", "PYOCO_GATEWAY_SECRET", "PYOCO_NATS_URL"}),
        ("workers-api", {"PYOCO_GATEWAY_SECRET", "PYOCO_NATS_URL"}),
        ("worker-2", {"PYOCO_NATS_URL"}),
        ("worker-host-ab12-extra-1", {"PYOCO_NATS_URL"}),
        ("gateway", set()),
        ("nats", set()),
    ],
)
def test_a_part_gets_its_own_secrets_and_no_others(part: str, secrets: set[str]) -> None:
    names = ["PYOCO_AUTH_PEPPER", "PYOCO_RUNS_DATABASE_URL", "PYOCO_CURSOR_SECRET", "PYOCO_GATEWAY_SECRET"]
    environ = dict.fromkeys([*names, "PYOCO_NATS_URL", "PYOCO_LOG_LEVEL", "MY_SETTING"], "x")
    got = environment_of(part, environ)
    assert got.keys() - {"PYOCO_LOG_LEVEL"} == secrets | {"MY_SETTING"}
    assert ("PYOCO_LOG_LEVEL" in got) is (part not in ("gateway", "nats"))


def test_passwords_for_the_ledger_reach_no_flow_and_those_for_other_databases_do() -> None:
    own = {"PGPASSWORD": "x", "PGPASSFILE": "x", "PGSERVICEFILE": "x"}
    assert environment_of("worker-1", {**own, "PGUSER": "me"}) == {**own, "PGUSER": "me"}
    environ = {**own, "PYOCO_RUNS_DATABASE_URL": "postgresql://db/pyoco"}
    assert environment_of("worker-1", environ) == {}
    assert environment_of("runs-api", environ) == environ


def test_every_setting_that_is_a_secret_or_leads_to_one_has_parts_that_need_it() -> None:
    found = {
        f"PYOCO_{name.upper()}"
        for settings in SETTINGS
        for name, field in settings.model_fields.items()
        if SecretStr in (field.annotation, *get_args(field.annotation)) or any(word in name for word in SOUNDS_SECRET)
    }
    assert found == SECRETS.keys()
