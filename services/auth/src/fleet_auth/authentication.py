"""Authenticates callers: all as anonymous, or each by an API key."""

import logging
import time
from collections.abc import Callable, Sequence

from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.scopes import ALL_SCOPES
from fleet_kit.http.identity import Identity

from .errors import ApiKeyInvalid, ApiKeyRequired
from .keys import Keys
from .records import KeyState

logger = logging.getLogger(__name__)


# The identity that the API keys of a request prove; raises a FleetError if they prove none.
Authenticate = Callable[[Sequence[str]], Identity]

_ANONYMOUS = Identity(tenant_id=ANONYMOUS_TENANT, api_key_id=None, scopes=ALL_SCOPES)


def as_anonymous(_: Sequence[str]) -> Identity:
    """Mode `none`: all callers are the same anonymous caller and may do everything."""
    return _ANONYMOUS


def by_api_key(keys: Keys) -> Authenticate:
    """Mode `api_key`: a caller needs exactly one key that is known, not revoked and not expired."""

    def authenticate(api_keys: Sequence[str]) -> Identity:
        if not any(api_keys):
            raise ApiKeyRequired()
        # Several keys are refused: another program on the way may have checked a different one.
        record = keys.find(api_keys[0]) if len(api_keys) == 1 else None
        if record is None:
            raise ApiKeyInvalid()
        if (state := record.state_at(time.time())) is not KeyState.ACTIVE:
            logger.info("key %s is %s", record.key_id, state, extra={"meta": {"key_id": record.key_id}})
            raise ApiKeyInvalid()
        return Identity(tenant_id=record.tenant_id, api_key_id=record.key_id, scopes=frozenset(record.scopes))

    return authenticate
