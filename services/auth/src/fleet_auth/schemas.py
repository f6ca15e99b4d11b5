"""The bodies of auth's HTTP requests and responses."""

import time
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fleet_contracts.scopes import Scope
from fleet_kit.http.bodies import Body

from .issuing import IssuedKey, KeyRequest
from .records import DEFAULT_SCOPES, KeyName, KeyRecord, KeyState, TenantId

Moment = Annotated[float, Field(ge=0, le=32503680000, allow_inf_nan=False, description="unix seconds")]


class NewKey(Body):
    """A key to issue. Without scopes it may read and write the runs of its tenant."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tenant_id": "acme", "name": "nightly import"}]})

    tenant_id: TenantId = Field(description="whose key it is; not `anonymous`")
    scopes: list[Scope] = Field(list(DEFAULT_SCOPES), min_length=1, max_length=50, description="what the key may do")
    name: KeyName | None = Field(None, description="what it is for")
    expires_at: Moment | None = Field(
        None, description="unix seconds, in the future; it does not expire if not given"
    )
    expires_in_sec: Annotated[float, Field(gt=0, le=3_162_240_000, allow_inf_nan=False)] | None = Field(
        None, description="the same in seconds from now; give one of the two"
    )

    @model_validator(mode="after")
    def _check_expiry(self) -> Self:
        if self.expires_at is not None and self.expires_in_sec is not None:
            raise ValueError("give expires_at or expires_in_sec, not both")
        if self.expires_at is not None and self.expires_at <= time.time():
            raise ValueError("expires_at has passed already; give a moment in the future, in unix seconds")
        return self

    def key_request(self) -> KeyRequest:
        expires_at = self.expires_at
        if self.expires_in_sec is not None:
            expires_at = time.time() + self.expires_in_sec
        return KeyRequest(self.tenant_id, tuple(self.scopes), name=self.name, expires_at=expires_at)


class KeyView(BaseModel):
    """A key as it is shown: neither the key itself nor its hash."""

    key_id: str
    tenant_id: str
    name: str | None
    scopes: list[str]
    state: KeyState
    created_at: float
    created_by: str | None
    expires_at: float | None
    revoked_at: float | None

    @classmethod
    def of(cls, record: KeyRecord) -> Self:
        shown = record.model_dump(include=set(cls.model_fields) - {"state"})
        return cls(**shown, state=record.state_at(time.time()))


class NewKeyView(KeyView):
    """A key as it is issued: the only answer with the key itself."""

    api_key: str

    @classmethod
    def once(cls, issued: IssuedKey) -> Self:
        return cls(**KeyView.of(issued.record).model_dump(), api_key=issued.api_key)


class KeyList(BaseModel):
    items: list[KeyView]
    next_cursor: str | None
