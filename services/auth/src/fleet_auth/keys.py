"""API keys: records in the bucket, known by the hash of the key only, kept in memory from a watch."""

import hashlib
import hmac
import logging
from typing import Annotated

from pydantic import AfterValidator, SecretStr, StringConstraints

from fleet_contracts.messages import Document, MalformedMessage
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_kit.kv import Mirror
from fleet_kit.nats import NatsLink
from fleet_kit.resources import ensure_bucket

logger = logging.getLogger(__name__)


def _refuse_anonymous(tenant_id: str) -> str:
    if tenant_id == ANONYMOUS_TENANT:
        raise ValueError(f"{ANONYMOUS_TENANT} is the tenant of callers without a key")
    return tenant_id


# All of these travel in HTTP headers.
KeyId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
TenantId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$"), AfterValidator(_refuse_anonymous)]
GrantedScope = Annotated[str, StringConstraints(pattern=r"^[a-z]+(:[a-z]+)?$")]


class KeyRecord(Document):
    key_id: KeyId
    tenant_id: TenantId
    key_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    scopes: list[GrantedScope] = []
    created_at: float
    revoked_at: float | None = None


def hash_key(api_key: str, pepper: SecretStr | None) -> str:
    """Keys are long and random, so one round is enough; the pepper makes it an HMAC."""
    if pepper is None:
        return hashlib.sha256(api_key.encode()).hexdigest()
    return hmac.new(pepper.get_secret_value().encode(), api_key.encode(), hashlib.sha256).hexdigest()


class Keys:
    def __init__(self, link: NatsLink, bucket: str, *, pepper: SecretStr | None) -> None:
        self._link = link
        self._bucket = bucket
        self._pepper = pepper
        self._mirror = Mirror(link, bucket, on_change=self._apply)
        self._by_id: dict[str, KeyRecord] = {}
        self._by_hash: dict[str, KeyRecord] = {}

    async def load(self) -> None:
        """Read the whole bucket and follow it. A hook of the link."""
        await ensure_bucket(self._link.jetstream, self._bucket)
        await self._mirror.restart()

    async def stop(self) -> None:
        await self._mirror.stop()

    def find(self, api_key: str) -> KeyRecord | None:
        """The record of a key, also while NATS is away; an unknown key is only unknown if NATS is there."""
        key_hash = hash_key(api_key, self._pepper)
        record = self._by_hash.get(key_hash)
        if record is not None and hmac.compare_digest(record.key_hash, key_hash):
            return record
        self._link.require()
        return None

    def _apply(self, key: str, value: bytes | None) -> None:
        if (former := self._by_id.pop(key, None)) is not None:
            self._by_hash.pop(former.key_hash, None)
        if value is None:
            return
        try:
            record = KeyRecord.decode(value)
        except MalformedMessage as error:
            logger.warning("an unreadable key record is ignored: %s", error, extra={"meta": {"key": key}})
            return
        self._by_id[key] = record
        self._by_hash[record.key_hash] = record
