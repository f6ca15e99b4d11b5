"""Who is asking: read from the headers that only the gateway may set."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from fleet_contracts.names import ANONYMOUS_TENANT, HEADER_API_KEY_ID, HEADER_SCOPES, HEADER_TENANT_ID

from .errors import IdentityMissing


@dataclass(frozen=True, slots=True)
class Identity:
    tenant_id: str
    api_key_id: str | None
    scopes: frozenset[str]

    @property
    def is_anonymous(self) -> bool:
        return self.tenant_id == ANONYMOUS_TENANT


async def identity_of(request: Request) -> Identity:
    tenant_id = request.headers.get(HEADER_TENANT_ID)
    if not tenant_id:
        raise IdentityMissing()
    return Identity(
        tenant_id=tenant_id,
        api_key_id=request.headers.get(HEADER_API_KEY_ID) or None,
        scopes=frozenset(request.headers.get(HEADER_SCOPES, "").split()),
    )


Caller = Annotated[Identity, Depends(identity_of)]
