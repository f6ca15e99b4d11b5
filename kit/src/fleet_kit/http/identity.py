"""The identity of the caller, read from headers that only the gateway may set."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from fleet_contracts.names import ANONYMOUS_TENANT, HEADER_API_KEY_ID, HEADER_SCOPES, HEADER_TENANT_ID
from fleet_contracts.scopes import Scope

from ..errors import IdentityMissing, ScopeMissing


@dataclass(frozen=True, slots=True)
class Identity:
    tenant_id: str
    api_key_id: str | None
    scopes: frozenset[str]

    @property
    def is_anonymous(self) -> bool:
        return self.tenant_id == ANONYMOUS_TENANT

    def require(self, scope: Scope) -> None:
        """Raise ScopeMissing without the scope. An admin may do everything."""
        if scope not in self.scopes and Scope.ADMIN not in self.scopes:
            raise ScopeMissing(
                f"the API key may not do this: it lacks the scope {scope.value}; use a key that has it",
                missing_scope=scope.value,
            )


async def identity_of(request: Request) -> Identity:
    tenant_id = request.headers.get(HEADER_TENANT_ID)
    if not tenant_id:
        raise IdentityMissing()
    return Identity(
        tenant_id=tenant_id,
        api_key_id=request.headers.get(HEADER_API_KEY_ID) or None,
        scopes=frozenset(request.headers.get(HEADER_SCOPES, "").split()),
    )


@dataclass(frozen=True, slots=True)
class CallerWith:
    """The dependency of a route that requires a scope; a test checks that every route has one."""

    scope: Scope

    async def __call__(self, request: Request) -> Identity:
        identity = await identity_of(request)
        identity.require(self.scope)
        return identity


RunsReader = Annotated[Identity, Depends(CallerWith(Scope.RUNS_READ))]
RunsWriter = Annotated[Identity, Depends(CallerWith(Scope.RUNS_WRITE))]
WorkersReader = Annotated[Identity, Depends(CallerWith(Scope.WORKERS_READ))]
WorkersWriter = Annotated[Identity, Depends(CallerWith(Scope.WORKERS_WRITE))]
WheelsReader = Annotated[Identity, Depends(CallerWith(Scope.WHEELS_READ))]
WheelsWriter = Annotated[Identity, Depends(CallerWith(Scope.WHEELS_WRITE))]
MetricsReader = Annotated[Identity, Depends(CallerWith(Scope.METRICS_READ))]
Admin = Annotated[Identity, Depends(CallerWith(Scope.ADMIN))]
