"""Judges the gateway, the key, the services, and what they need: NATS, the ledger, the disk."""

import ipaddress
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from ...errors import Unreachable
from ..failures import explain
from ..texts import t
from ..times import clock, duration
from .finding import Findings
from .replies import SCOPES, Replies, Reply

_SOON_SECONDS = 14 * 86400.0
# Which route shows that a service answers.
_SERVICES = {"workers-api": "workers", "wheels-api": "wheels"}
_GIVEN_AWAY = ("nats", "ledger", "disk")


def judge_gateway(found: Findings, replies: Replies) -> bool:
    """False if nothing else can be seen."""
    url, health = found.session.client.server.url, replies["health"]
    answered = [reply for reply in replies.of.values() if reply.error is None or reply.error.status is not None]
    _judge_certificate(found, replies)
    if not answered:
        silence = health.error or next(iter(replies.of.values())).error
        assert silence is not None
        explained = explain(silence, found.session)
        unreachable = isinstance(silence, Unreachable)
        found.problem(
            "gateway", "gateway.silent", explained.advice if unreachable else None, url=url, why=explained.sentence
        )
        return False
    if health.error is not None and health.error.status == 421:
        found.problem(
            "gateway", "gateway.unknown_host", t("doctor.gateway.host_advice"), url=url, why=health.error.message
        )
        return False
    if not _is_fleet(replies):
        found.problem("gateway", "gateway.no_fleet", t("doctor.gateway.no_fleet_advice"), url=url)
        return False
    if health.seconds:
        found.ok("gateway", "gateway.answers", url=url, time=duration(health.seconds))
    else:
        found.ok("gateway", "gateway.passes_on", url=url)
    return True


def _is_fleet(replies: Replies) -> bool:
    """Whether anything has answered in the words of a fleet."""
    if replies["health"].error is None:
        return True
    return any(
        reply.error is not None and reply.error.request_id and reply.error.code for reply in replies.of.values()
    )


def _judge_certificate(found: Findings, replies: Replies) -> None:
    shown = replies.certificate
    if shown is None:
        return
    if shown.not_after is None:
        found.problem("certificate", "certificate.refused", t("doctor.certificate.advice"), why=shown.error)
        return
    left = shown.not_after - time.time()
    values = {"at": clock(shown.not_after), "left": duration(left)}
    if left < _SOON_SECONDS:
        found.warning("certificate", "certificate.soon", t("doctor.certificate.renew"), **values)
    else:
        found.ok("certificate", "certificate.valid", **values)


def judge_key(found: Findings, replies: Replies) -> None:
    session, server, auth = found.session, found.session.client.server, replies["auth"]
    guarded = replies.guarded
    if any(reply.is_refused for reply in guarded if reply is not auth):
        found.problem("key", "key.refused", session.how_to_get_a_key())
    elif any(reply.wants_key for reply in guarded):
        found.warning("key", "key.missing", session.how_to_get_a_key())
    elif auth.is_refused:
        if _is_here(server.url):
            found.ok("key", "key.off")
        else:
            found.warning("key", "key.off_in_network", t("doctor.key.off_advice"))
    elif isinstance(auth.value, Mapping) and "tenant_id" in auth.value:
        known = auth.value
        values = {"id": known["key_id"], "tenant": known["tenant_id"], "scopes": ", ".join(known["scopes"])}
        expires = known.get("expires_at")
        if expires is not None and expires - time.time() < _SOON_SECONDS:
            advice = session.command(f"keys create --tenant {known['tenant_id']}")
            found.warning("key", "key.expires", advice, at=clock(expires), **values)
        else:
            found.ok("key", "key.known", **values)
    elif granted := sorted(
        {SCOPES[name] for name, reply in replies.of.items() if name in SCOPES and not reply.error}
    ):
        lacking = sorted({reply.missing_scope for reply in guarded if reply.missing_scope})
        found.ok("key", "key.accepted", scopes=", ".join(granted), lacking=", ".join(lacking) or "-")
    elif any(reply.missing_scope for reply in guarded):
        found.ok("key", "key.no_scope")
    else:
        found.unseen("key", t("doctor.nobody_said"))


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def judge_services(found: Findings, replies: Replies) -> None:
    auth_is_away = _judge_auth(found, replies)
    _judge_runs_api(found, replies, auth_is_away)
    for service, name in _SERVICES.items():
        reply = replies[name]
        if reply.error is None or reply.missing_scope:
            found.ok(service, "service.answers", service=service)
        elif reply.is_away and not (auth_is_away and reply.error.status in (None, 503)):
            found.problem(
                service, "service.away", t("doctor.service.advice"), service=service, why=reply.error.message
            )
        else:
            look_unseen(found, service, name, replies)


def _judge_auth(found: Findings, replies: Replies) -> bool:
    """True if auth gives no verdict, so that nothing behind it can be seen."""
    auth = replies["auth"]
    if auth.is_away:
        assert auth.error is not None
        found.problem("auth", "service.away", t("doctor.service.advice"), service="auth", why=auth.error.message)
        return True
    if auth.says_nats_is_away:
        look_unseen(found, "auth", "auth", replies)
    else:
        # A refusal is its verdict, too.
        found.ok("auth", "service.answers", service="auth")
    return False


def _judge_runs_api(found: Findings, replies: Replies, auth_is_away: bool) -> None:
    health, listed = replies["health"], replies["runs"]
    if health.error is not None:
        why, advice = health.error.message, t("doctor.service.advice")
        found.problem("runs-api", "service.away", advice, service="runs-api", why=why)
    elif listed.error is not None and listed.is_away and not auth_is_away:
        found.problem("runs-api", "runs.no_list", t("doctor.service.advice"), why=listed.error.message)
    elif listed.error is None:
        found.ok("runs-api", "runs.lists")
    else:
        found.ok("runs-api", "service.answers", service="runs-api")


def judge_needs(found: Findings, replies: Replies) -> None:
    """NATS, the ledger and the disk, as runs-api reports them; NATS also as others do."""
    health = replies["health"].value
    if health is None:
        for name in _GIVEN_AWAY:
            found.unseen(name, t("doctor.nobody_said"))
        return
    waiting_for: Mapping[str, str] = health["waiting_for"]
    for name in (*_GIVEN_AWAY, *(set(waiting_for) - set(_GIVEN_AWAY))):
        if name in waiting_for:
            advice = t(f"doctor.{name}.advice") if name in _GIVEN_AWAY else None
            found.problem(name, "needs.missing", advice, name=name, why=waiting_for[name])
        elif name == "nats" and any(reply.says_nats_is_away for reply in replies.guarded):
            found.problem("nats", "nats.partly", t("doctor.nats.advice"))
        else:
            found.ok(name, f"{name}.there")


def look_unseen(found: Findings, check: str, name: str, replies: Replies) -> None:
    """Say why something was not seen, and what would help."""
    why, advice = reason_of(found, replies[name], name)
    found.unseen(check, why, advice)


def reason_of(found: Findings, reply: Reply, name: str) -> tuple[str, str | None]:
    assert reply.error is not None
    session = found.session
    if reply.missing_scope:
        return t("doctor.needs_scope", scope=reply.missing_scope), t("advice.scope", scope=reply.missing_scope)
    if reply.wants_key:
        return t("doctor.needs_key", scope=SCOPES[name]), session.how_to_get_a_key()
    if reply.is_refused:
        return t("doctor.key_refused"), None
    return reply.error.message, None
