"""The NATS permissions of each role, and the server configuration that grants them."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .names import WireNames, is_tag, kv_stream, kv_subject, object_metas_subject, object_stream

_API = "$JS.API"
# The account of JetStream's storage and of the services.
FLEET_ACCOUNT = "FLEET"
# The prefix of JetStream's API in a worker's account, where the usual prefix answers that there is no JetStream.
WORKER_API = f"$JS.{FLEET_ACCOUNT}.API"
# A NATS user's public nkey.
_PUBLIC_KEY = re.compile(r"U[A-Z2-7]{55}")
# It is part of a route's URL.
_CLUSTER_PASSWORD = re.compile(r"[A-Za-z0-9_-]{16,256}")
_WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class Permissions:
    """Allowed subjects; all others are refused. Every user may also subscribe below its own inbox."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...] = ()
    # Subscribed as well, with the permission to answer requests there.
    answer: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NatsUser:
    # A role, or the id of a worker.
    name: str
    public_key: str
    permissions: Permissions


def inbox_prefix(public_key: str) -> str:
    """The inbox prefix of a user; other users may not subscribe below it."""
    return f"_INBOX.{public_key}"


def runs_api(names: WireNames) -> Permissions:
    """Creates the streams, the runs bucket and the queues of all tags; queues jobs, watches runs, ends them."""
    work, dlq, events = names.work_stream, names.dlq_stream, names.events_stream
    runs, workers = kv_stream(names.runs_kv_bucket), kv_stream(names.workers_kv_bucket)
    flows = kv_stream(names.flows_kv_bucket)
    return Permissions(
        publish=(
            names.work_subject("*"),
            names.dlq_subject("*"),
            names.control_subject("*"),
            names.handover_subject("*", "*"),
            kv_subject(names.runs_kv_bucket, "*"),
            # Deletes the catalogues of workers that are gone.
            kv_subject(names.flows_kv_bucket, "*"),
            *_owned(work, dlq, events, runs, flows),
            # It may start before workers-api, and needs the registry.
            *_made(workers),
            *_read(work, events, runs, flows),
            f"{_API}.STREAM.MSG.DELETE.{work}",
            f"{_API}.STREAM.PURGE.{runs}",
            *_watched(runs, workers, flows),
            f"{_API}.CONSUMER.DURABLE.CREATE.{work}.*",
            f"{_API}.CONSUMER.INFO.{work}.*",
            *_acked(work, "*"),
            *_pulled(runs, names.ingest_durable()),
            *_pulled(dlq, names.dlq_durable()),
        ),
        # Events of runs that a client follows are streamed at once.
        subscribe=(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{work}.>", names.events_subject("*", "*")),
        # Workers ask what becomes of a job whose flow they do not offer.
        answer=(names.declined_subject("*"),),
    )


def workers_api(names: WireNames) -> Permissions:
    """Creates and watches the registry, and changes the fields that belong to the operators."""
    workers = kv_stream(names.workers_kv_bucket)
    return Permissions(
        publish=(
            names.control_subject("*"),
            kv_subject(names.workers_kv_bucket, "*"),
            *_owned(workers),
            # Purges the delete markers of removed records.
            f"{_API}.STREAM.PURGE.{workers}",
            *_read(workers),
            *_watched(workers),
        )
    )


def wheels_api(names: WireNames) -> Permissions:
    """Creates and writes the wheel store and its history."""
    wheels, history = object_stream(names.wheel_object_store_bucket), kv_stream(names.wheel_history_kv_bucket)
    return Permissions(
        publish=(
            f"$O.{names.wheel_object_store_bucket}.>",
            kv_subject(names.wheel_history_kv_bucket, ">"),
            *_owned(wheels, history),
            f"{_API}.STREAM.PURGE.{wheels}",
            *_read(wheels, history),
        )
    )


def auth(names: WireNames) -> Permissions:
    """Creates, watches and writes the API keys: no other service may even read them."""
    keys = kv_stream(names.auth_kv_bucket)
    return Permissions(publish=(kv_subject(names.auth_kv_bucket, "*"), *_owned(keys), *_read(keys), *_watched(keys)))


def worker(names: WireNames, worker_id: str, tags: Iterable[str]) -> Permissions:
    """Takes jobs of its tags, writes runs and its own record. It creates nothing: the owners do.

    Each worker has an account of its own, which imports these subjects from the fleet's account. NATS does not check
    the reply subject of a request, so within one account a user with read access could have data sent anywhere.
    """
    if not _WORKER_ID.fullmatch(worker_id):
        raise ValueError(f"{worker_id!r} is no worker id: use letters, digits, - and _, 128 at most")
    tags = _checked(tags)
    work = names.work_stream
    record = kv_subject(names.workers_kv_bucket, worker_id)
    snapshots = kv_subject(names.runs_kv_bucket, "*")
    wheels = object_stream(names.wheel_object_store_bucket)
    return Permissions(
        publish=(
            snapshots,
            f"{_API}.DIRECT.GET.{kv_stream(names.runs_kv_bucket)}.{snapshots}",
            # The linearizable read of the same, by the bucket's leader.
            f"{_API}.STREAM.MSG.GET.{kv_stream(names.runs_kv_bucket)}",
            record,
            f"{_API}.DIRECT.GET.{kv_stream(names.workers_kv_bucket)}.{record}",
            kv_subject(names.flows_kv_bucket, worker_id),
            names.declined_subject(worker_id),
            names.events_subject(worker_id, "*"),
            f"{_API}.DIRECT.GET.{wheels}",
            f"{_API}.DIRECT.GET.{wheels}.>",
            *(
                subject
                for tag in tags
                for subject in (
                    names.dlq_subject(tag),
                    f"{_API}.CONSUMER.INFO.{work}.{names.work_durable(tag)}",
                    f"{_API}.CONSUMER.MSG.NEXT.{work}.{names.work_durable(tag)}",
                    *_acked(work, names.work_durable(tag)),
                )
            ),
        ),
        # Receives every change of a wheel, and fetches those that concern it.
        subscribe=(object_metas_subject(names.wheel_object_store_bucket),),
        # A worker may name any tag in its record; jobs that others declined reach it by those of this list only.
        answer=(names.control_subject(worker_id), *(names.handover_subject(worker_id, tag) for tag in tags)),
    )


def operator(_: WireNames) -> Permissions:
    """May do everything: for administrators with a NATS client of their own."""
    return Permissions(publish=(">",), subscribe=(">",))


# Roles that are described by the names alone.
SERVICE_ROLES: Mapping[str, Callable[[WireNames], Permissions]] = {
    "runs-api": runs_api,
    "workers-api": workers_api,
    "wheels-api": wheels_api,
    "auth": auth,
    "operator": operator,
}


def accounts_config(services: Iterable[NatsUser], workers: Iterable[NatsUser]) -> str:
    """The `accounts` of a NATS server: public keys only, nothing in it is secret."""
    workers = list(workers)
    imports = [_import("service", _account(user), subject) for user in workers for subject in user.permissions.answer]
    fleet = _block(
        FLEET_ACCOUNT,
        "jetstream: enabled",
        _lines("users", [_user(user, may_publish=user.permissions.publish) for user in services]),
        _lines("exports", _exports(workers)),
        _lines("imports", imports),
    )
    return f"accounts {{\n{fleet}{''.join(map(_worker_account, workers))}}}\n"


def cluster_config(password: str, hosts: Iterable[str]) -> str:
    """The part of a server's `cluster` block that admits only the other servers. The password is a secret."""
    if not _CLUSTER_PASSWORD.fullmatch(password):
        raise ValueError("the password of a NATS cluster must have 16 to 256 letters, digits, - and _")
    routes = [f"nats://cluster:{password}@{host}:6222" for host in hosts]
    return f"authorization {{ user: cluster, password: {json.dumps(password)} }}\nroutes: {json.dumps(routes)}\n"


def open_config() -> str:
    """The fleet's account without authentication: every client that reaches the server may do everything."""
    anybody = "{ user: anybody, password: anybody }"
    fleet = _block(FLEET_ACCOUNT, "jetstream: enabled", _lines("users", [anybody]))
    return f"accounts {{\n{fleet}}}\nno_auth_user: anybody\n"


def _worker_account(user: NatsUser) -> str:
    permissions = user.permissions
    may_publish = (*map(_in_worker_account, permissions.publish), *permissions.answer)
    imports = [
        *(
            _import("service", FLEET_ACCOUNT, subject, to=_in_worker_account(subject))
            for subject in permissions.publish
        ),
        *(_import("stream", FLEET_ACCOUNT, subject) for subject in permissions.subscribe),
    ]
    exports = [f"{{ service: {json.dumps(subject)}, accounts: [{FLEET_ACCOUNT}] }}" for subject in permissions.answer]
    return _block(
        _account(user),
        _lines("users", [_user(user, may_publish=may_publish)]),
        _lines("imports", imports),
        _lines("exports", exports),
    )


def _user(user: NatsUser, *, may_publish: Iterable[str]) -> str:
    if not _PUBLIC_KEY.fullmatch(user.public_key):
        raise ValueError(f"{user.public_key!r} is no public key of a NATS user")
    if not _WORKER_ID.fullmatch(user.name):
        raise ValueError(f"{user.name!r} is no name of a NATS user")
    permissions = user.permissions
    listens = (f"{inbox_prefix(user.public_key)}.>", *permissions.subscribe, *permissions.answer)
    answers = ", allow_responses: { max: 1, expires: 10s }" if permissions.answer else ""
    return (
        f"{{ nkey: {user.public_key}, permissions: {{ "
        f"publish: {{ allow: {_list(may_publish)} }}, subscribe: {{ allow: {_list(listens)} }}{answers} }} }}"
        f" # {user.name}"
    )


def _exports(workers: Iterable[NatsUser]) -> list[str]:
    """The exports of the fleet's account, each for the worker accounts that import it."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for user in workers:
        for subject in user.permissions.publish:
            wanted.setdefault(("service", subject), []).append(_account(user))
        for subject in user.permissions.subscribe:
            wanted.setdefault(("stream", subject), []).append(_account(user))
    return [
        f"{{ {kind}: {json.dumps(subject)}, accounts: [{', '.join(accounts)}]{_answers_of(subject)} }}"
        for (kind, subject), accounts in wanted.items()
    ]


def _answers_of(subject: str) -> str:
    """The stream response type for requests with several answers; the server drops one idle for the threshold."""
    if "CONSUMER.MSG.NEXT" in subject or "DIRECT.GET.OBJ_" in subject:
        return ', response_type: stream, threshold: "15s"'
    return ""


def _import(kind: str, account: str, subject: str, *, to: str | None = None) -> str:
    """`to`: the subject in the importing account, if it is another one there."""
    renamed = f", to: {json.dumps(to)}" if to not in (None, subject) else ""
    return f"{{ {kind}: {{ account: {account}, subject: {json.dumps(subject)} }}{renamed} }}"


def _in_worker_account(subject: str) -> str:
    for verb in ("CONSUMER.INFO", "STREAM.MSG.GET"):
        subject = subject.replace(f"{_API}.{verb}.", f"{WORKER_API}.{verb}.")
    return subject


def _account(user: NatsUser) -> str:
    return f"WORKER_{user.name}"


def _block(name: str, *parts: str) -> str:
    return f"  {name} {{\n" + "".join(f"    {part}\n" for part in parts if part) + "  }\n"


def _lines(name: str, entries: list[str]) -> str:
    return f"{name}: [\n" + "".join(f"      {entry}\n" for entry in entries) + "    ]" if entries else ""


def _list(subjects: Iterable[str]) -> str:
    return json.dumps([*dict.fromkeys(subjects)])


def _checked(tags: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(tags))
    for tag in found:
        if not is_tag(tag):
            raise ValueError(f"{tag!r} is no tag: use letters, digits, - and _, 64 at most")
    return found


def _made(*streams: str) -> tuple[str, ...]:
    """Permission to create a stream, but not to change, purge or delete it."""
    return tuple(f"{_API}.STREAM.{verb}.{stream}" for stream in streams for verb in ("INFO", "CREATE"))


def _owned(*streams: str) -> tuple[str, ...]:
    """Permission to create and update a stream: its replicas are raised when NATS has become a cluster.

    NATS has no narrower permission than to update all settings of a stream, so only its owner has it.
    """
    return (*_made(*streams), *(f"{_API}.STREAM.UPDATE.{stream}" for stream in streams))


def _read(*streams: str) -> tuple[str, ...]:
    """Permission to read single messages without a consumer; the last is for streams without direct gets."""
    verbs = ("DIRECT.GET.{}", "DIRECT.GET.{}.>", "STREAM.MSG.GET.{}")
    return tuple(f"{_API}.{verb.format(stream)}" for stream in streams for verb in verbs)


def _watched(*streams: str) -> tuple[str, ...]:
    """Permission to watch a stream by ephemeral consumers."""
    return tuple(
        subject
        for stream in streams
        for subject in (
            f"{_API}.STREAM.INFO.{stream}",
            f"{_API}.CONSUMER.CREATE.{stream}",
            f"{_API}.CONSUMER.CREATE.{stream}.>",
            f"{_API}.CONSUMER.INFO.{stream}.*",
            f"{_API}.CONSUMER.DELETE.{stream}.*",
            f"$JS.FC.{stream}.>",
        )
    )


def _pulled(stream: str, durable: str) -> tuple[str, ...]:
    """Permission to create a durable consumer and to pull from it."""
    return (
        f"{_API}.CONSUMER.DURABLE.CREATE.{stream}.{durable}",
        f"{_API}.CONSUMER.INFO.{stream}.{durable}",
        f"{_API}.CONSUMER.MSG.NEXT.{stream}.{durable}",
        *_acked(stream, durable),
    )


def _acked(stream: str, durable: str) -> tuple[str, ...]:
    """Permission to ack, in the older and in the newer form, which begins with domain and account."""
    return (f"$JS.ACK.{stream}.{durable}.>", f"$JS.ACK.*.*.{stream}.{durable}.>")
