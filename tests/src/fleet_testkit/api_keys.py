"""API keys for tests: written into auth's bucket as an operator's command would."""

import hashlib
import json
import time
import uuid

from nats.aio.client import Client

from fleet_contracts.names import WireNames
from fleet_contracts.scopes import ALL_SCOPES

from .stack import Stack
from .waiting import wait_until
from .wire import Wire


def issue_key(stack: Stack, tenant_id: str) -> dict[str, str]:
    """The header with a new key of a tenant that may do everything, once auth knows it."""
    key = f"{tenant_id}-{uuid.uuid4().hex}"
    record = {
        "key_id": f"key-of-{tenant_id}",
        "tenant_id": tenant_id,
        "key_hash": hashlib.sha256(key.encode()).hexdigest(),
        "scopes": sorted(ALL_SCOPES),
        "created_at": time.time(),
    }

    async def put(client: Client) -> None:
        bucket = await client.jetstream().key_value(WireNames().auth_kv_bucket)
        await bucket.put(f"key-of-{tenant_id}", json.dumps(record).encode())

    Wire(stack.nats_url).use(put)
    header = {"X-API-Key": key}
    wait_until(lambda: stack.client.get("/runs", headers=header).is_success, what=f"the key of {tenant_id} known")
    return header
