"""Refuses requests without the gateway's secret: they did not come through the gateway."""

import hmac
import logging

from fastapi import Request
from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet_contracts.names import HEADER_FROM_GATEWAY

from ..errors import NotFromGateway
from ..logs.rate_limit import RateLimitedLog
from .app import RequestMiddleware, ServiceApp, fleet_error_response
from .request_metrics import INTERNAL_PATHS

logger = logging.getLogger(__name__)

_HEADER = HEADER_FROM_GATEWAY.lower().encode()


class GatewayOnly:
    """Wraps the whole application of a service, its express lane included.

    A client that reaches the service's port or socket could forge the identity headers; without the secret its
    request is refused before anything reads them.
    """

    def __init__(self, app: ServiceApp, secret: SecretStr) -> None:
        self._app = app
        self._secret = secret.get_secret_value().encode()
        self._refusal: ASGIApp = RequestMiddleware(self._refuse, app.request_metrics)
        self._refusals = RateLimitedLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in INTERNAL_PATHS or self._is_from_gateway(scope):
            await self._app(scope, receive, send)
        else:
            await self._refusal(scope, receive, send)

    def _is_from_gateway(self, scope: Scope) -> bool:
        # A repeated header is refused.
        given = [value for name, value in scope["headers"] if name == _HEADER]
        return len(given) == 1 and hmac.compare_digest(given[0], self._secret)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        sentence = "refused a request that did not come through the gateway; if it did, their secrets differ"
        logger.log(self._refusals.level(sentence), sentence)
        await fleet_error_response(Request(scope), NotFromGateway())(scope, receive, send)
