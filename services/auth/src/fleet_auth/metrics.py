"""The metrics of auth: verifications by verdict, and the number of keys."""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge

from .keys import Keys


class Verdict(StrEnum):
    ADMITTED = "admitted"
    KEY_MISSING = "key_missing"
    KEY_REFUSED = "key_refused"
    # NATS is unavailable, and the known keys are too old to decide.
    UNDECIDED = "undecided"


class AuthMetrics:
    def __init__(self, registry: CollectorRegistry, keys: Keys) -> None:
        verifications = Counter(
            "pyoco_auth_verifications",
            "Callers that the gateway asked about, by verdict; it remembers a verdict for a second.",
            ["verdict"],
            registry=registry,
        )
        self._verdicts = {verdict: verifications.labels(verdict.value) for verdict in Verdict}
        known = Gauge("pyoco_auth_keys", "API keys in the bucket, revoked and expired ones too.", registry=registry)
        known.set_function(lambda: keys.count)

    def count(self, verdict: Verdict) -> None:
        self._verdicts[verdict].inc()
