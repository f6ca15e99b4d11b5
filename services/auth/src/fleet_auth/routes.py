"""The HTTP routes of auth: verification for the gateway, key management for operators."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from fleet_contracts.names import HEADER_API_KEY_ID, HEADER_SCOPES, HEADER_TENANT_ID
from fleet_kit.errors import NatsUnavailable
from fleet_kit.http.app import fleet_error_response, new_router
from fleet_kit.http.bodies import read
from fleet_kit.http.identity import Admin, Identity
from fleet_kit.http.openapi import json_body, refusals

from .authentication import Authenticate
from .errors import ApiKeyInvalid, ApiKeyRequired, KeyNotFound, KeysNeedAuthentication
from .issuing import issue, revoke
from .keys import Keys
from .listing import CURSOR_PATTERN, select_keys
from .metrics import AuthMetrics, Verdict
from .schemas import KeyList, KeyView, NewKey, NewKeyView

# A new key is shown once and must not stay in a cache.
_NOT_KEPT = {"Cache-Control": "no-store"}


def verify_routes(authenticate: Authenticate, metrics: AuthMetrics, *, api_key_header: str) -> APIRouter:
    """The /verify route, for which the gateway waits in every request."""
    router = new_router()

    @router.get("/verify", status_code=204)
    async def verify(request: Request) -> Response:
        """For the gateway's auth_request: the identity is in the headers of the answer."""
        try:
            identity = authenticate(request.headers.getlist(api_key_header))
        except ApiKeyRequired:
            metrics.count(Verdict.KEY_MISSING)
            raise
        except ApiKeyInvalid:
            metrics.count(Verdict.KEY_REFUSED)
            raise
        except NatsUnavailable as error:
            metrics.count(Verdict.UNDECIDED)
            # The connection logs the outage once; a traceback for every request would only fill the disk.
            return fleet_error_response(request, error)
        metrics.count(Verdict.ADMITTED)
        return Response(
            status_code=204,
            headers={
                HEADER_TENANT_ID: identity.tenant_id,
                HEADER_API_KEY_ID: identity.api_key_id or "",
                HEADER_SCOPES: " ".join(sorted(identity.scopes)),
            },
        )

    return router


async def _operator(caller: Admin) -> Identity:
    """Requires an admin with a key: without authentication every caller is admin, and could issue keys for later."""
    if caller.is_anonymous:
        raise KeysNeedAuthentication()
    return caller


Operator = Annotated[Identity, Depends(_operator)]


def key_routes(keys: Keys) -> APIRouter:
    router = new_router("/auth/keys")

    @router.post("", status_code=201, response_model=NewKeyView, openapi_extra=json_body(NewKey))
    async def issue_key(operator: Operator, request: Request, response: Response) -> NewKeyView:
        """Issue a key for a tenant. The answer is the only place where it can be read."""
        wanted = await read(NewKey, request)
        issued = await issue(keys, wanted.key_request(), created_by=operator.api_key_id)
        response.headers.update(_NOT_KEPT)
        return NewKeyView.once(issued)

    @router.get("", response_model=KeyList)
    async def list_keys(
        _: Operator,
        tenant: Annotated[str | None, Query(max_length=64, description="only the keys of this tenant")] = None,
        include_revoked: bool = False,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[
            str | None, Query(max_length=100, pattern=CURSOR_PATTERN, description="`next_cursor` of the page before")
        ] = None,
    ) -> KeyList:
        """The keys of all tenants, the newest first."""
        page, next_cursor = select_keys(
            keys.all(), tenant_id=tenant, include_revoked=include_revoked, limit=limit, cursor=cursor
        )
        return KeyList(items=[KeyView.of(record) for record in page], next_cursor=next_cursor)

    @router.get("/{key_id}", response_model=KeyView, responses=refusals(KeyNotFound))
    async def read_key(_: Operator, key_id: str) -> KeyView:
        """One key, without the key itself."""
        if (record := keys.get(key_id)) is None:
            raise KeyNotFound(key_id=key_id)
        return KeyView.of(record)

    @router.post("/{key_id}/revoke", response_model=KeyView, responses=refusals(KeyNotFound))
    async def revoke_key(_: Operator, key_id: str) -> KeyView:
        """Revoke a key: it is refused within three seconds. Revoking it again changes nothing."""
        return KeyView.of(await revoke(keys, key_id))

    return router
