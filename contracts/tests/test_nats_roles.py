"""The permissions of the roles on NATS, by the lists; tests/acceptance asks the server itself."""

import pytest

from fleet_contracts.names import WireNames
from fleet_contracts.nats_roles import SERVICE_ROLES, NatsUser, Permissions, accounts_config, worker

NAMES = WireNames()
KEY = "U" + "A" * 55


def test_only_the_operator_may_use_a_wildcard_over_everything() -> None:
    for role, permissions in SERVICE_ROLES.items():
        broad = [s for s in (*permissions(NAMES).publish, *permissions(NAMES).subscribe) if s.startswith((">", "*"))]
        assert bool(broad) == (role == "operator")


def test_only_auth_and_the_operator_have_permissions_on_the_keys() -> None:
    for role, permissions in SERVICE_ROLES.items():
        names_keys = any("pyoco_auth" in subject for subject in permissions(NAMES).publish)
        assert names_keys == (role == "auth")


def test_a_worker_makes_changes_and_removes_nothing() -> None:
    may = worker(NAMES, "w1", ["default"]).publish
    verbs = {tuple(subject.split(".")[2:4]) for subject in may if subject.startswith("$JS.API")}
    assert verbs == {("DIRECT", "GET"), ("STREAM", "MSG"), ("CONSUMER", "INFO"), ("CONSUMER", "MSG")}
    # Of the leader it may ask what it may read anyway.
    assert [subject for subject in may if "STREAM.MSG" in subject] == ["$JS.API.STREAM.MSG.GET.KV_pyoco_runs"]


def test_configured_names_are_the_ones_that_are_allowed() -> None:
    names = WireNames(
        work_stream="JOBS", work_subject_prefix="my.jobs", workers_kv_bucket="crew", consumer_prefix="c"
    )
    may = worker(names, "w1", ["gpu", "gpu"]).publish
    assert {"$KV.crew.w1", "$JS.API.CONSUMER.MSG.NEXT.JOBS.c_gpu"} <= set(may)
    assert "my.jobs.*" in SERVICE_ROLES["runs-api"](names).publish
    assert not [subject for subject in may if "PYOCO_WORK" in subject]


def test_a_worker_is_handed_jobs_of_its_own_tags_only() -> None:
    hears = worker(NAMES, "w1", ["gpu", "cpu"]).answer
    assert hears == ("pyoco.control.w1", "pyoco.control.w1.gpu", "pyoco.control.w1.cpu")
    # A wildcard of the services for hints does not reach them.
    reaches = {role: "pyoco.control.*.*" in permissions(NAMES).publish for role, permissions in SERVICE_ROLES.items()}
    assert [role for role, may in reaches.items() if may] == ["runs-api"]


@pytest.mark.parametrize("worker_id", ["", "a.b", "*", ">", "a b", 'a"', "x" * 129, "ä"])
def test_a_worker_id_that_would_mean_more_than_one_worker_is_refused(worker_id: str) -> None:
    with pytest.raises(ValueError, match="is no worker id"):
        worker(NAMES, worker_id, ["default"])


@pytest.mark.parametrize("tag", ["", "a.b", "*", ">", "a b", 'a"', "x" * 65])
def test_a_tag_that_would_mean_more_than_one_queue_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="is no tag"):
        worker(NAMES, "w1", [tag])


@pytest.mark.parametrize("key", ["", "SU" + "A" * 56, "U" + "a" * 55, KEY + "}", KEY[:-1]])
def test_what_is_no_public_key_does_not_get_into_the_configuration(key: str) -> None:
    with pytest.raises(ValueError, match="is no public key"):
        accounts_config([NatsUser("x", key, Permissions(("a",)))], [])


@pytest.mark.parametrize("name", ["", "w1\n} evil {", "a b", "#"])
def test_what_is_no_name_does_not_get_into_the_configuration(name: str) -> None:
    with pytest.raises(ValueError, match="is no name"):
        accounts_config([], [NatsUser(name, KEY, Permissions(("a",)))])


def test_what_a_worker_may_do_is_exported_to_its_account_alone() -> None:
    users = [NatsUser(name, KEY, worker(NAMES, name, [name])) for name in ("one", "two")]
    lines = accounts_config([], users).splitlines()
    [record] = [
        line.strip()
        for line in lines
        if "service" in line and '"$KV.pyoco_workers.one"' in line and "accounts" in line
    ]
    assert record == '{ service: "$KV.pyoco_workers.one", accounts: [WORKER_one] }'
    [runs] = [line.strip() for line in lines if '{ service: "$KV.pyoco_runs.*", accounts' in line]
    assert runs.endswith("accounts: [WORKER_one, WORKER_two] }")
