"""HTTP in and out of auth."""

from fastapi import APIRouter, Request, Response

from fleet_contracts.names import HEADER_API_KEY_ID, HEADER_SCOPES, HEADER_TENANT_ID

from .doors import Door


def auth_routes(door: Door, *, api_key_header: str) -> APIRouter:
    router = APIRouter()

    @router.get("/verify")
    async def verify(request: Request) -> Response:
        """For the gateway's auth_request: the identity is in the headers of the answer."""
        identity = door.identify(request.headers.get(api_key_header))
        return Response(
            status_code=204,
            headers={
                HEADER_TENANT_ID: identity.tenant_id,
                HEADER_API_KEY_ID: identity.api_key_id or "",
                HEADER_SCOPES: " ".join(sorted(identity.scopes)),
            },
        )

    return router
