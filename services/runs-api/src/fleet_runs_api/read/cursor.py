"""The cursor of a list: the position of the next page. It is opaque, signed, and valid only for its own query."""

import base64
import binascii
import hashlib
import hmac
from dataclasses import astuple, dataclass

import orjson

from ..errors import InvalidCursor, LedgerUnavailable

_VERSION = b"\x03"
_SIGNATURE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Walk:
    """A position in the list of all runs, newest first: runs accepted before this one follow."""

    before_seq: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A position among the runs that changed after `updated_after` and up to `shown_until`, earliest change first."""

    updated_after: float
    # Where the next difference begins: all changes up to this time are committed.
    settled_until: float
    # The latest change that was visible when the difference began.
    shown_until: float
    # The last change that was shown.
    changed_at: float
    seq: int


Position = Walk | Difference

_KINDS: dict[str, type[Walk] | type[Difference]] = {"w": Walk, "d": Difference}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}


class CursorSigner:
    """Signs and checks cursors. All replicas share the secret, so each accepts the cursors of the others."""

    def __init__(self, secret: bytes | None = None) -> None:
        # None: the ledger, which may keep the secret, is not open yet.
        self.secret = secret

    def encode(self, position: Position, *, scope: bytes) -> str:
        """`scope` is the tenant and the filters of the cursor; it is signed but not contained."""
        body = _VERSION + orjson.dumps([_LETTERS[type(position)], *astuple(position)])
        # The version comes first: a cursor that began with "-" would look like an option on a command line.
        return base64.urlsafe_b64encode(body + self._signature(body, scope)).rstrip(b"=").decode()

    def decode(self, text: str | None, *, scope: bytes) -> Position | None:
        """The position in a cursor, None without one; InvalidCursor if `encode` did not make it for the same scope.

        LedgerUnavailable, also without a cursor, if there is no secret yet.
        """
        self._require_secret()
        if not text:
            return None
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidCursor() from None
        body, signature = data[:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(body, scope)) or not body.startswith(_VERSION):
            raise InvalidCursor()
        letter, *fields = orjson.loads(body[len(_VERSION) :])
        return _KINDS[letter](*fields)

    def _signature(self, body: bytes, scope: bytes) -> bytes:
        signed = hashlib.sha256(scope).digest() + body
        return hmac.digest(self._require_secret(), signed, "sha256")[:_SIGNATURE_BYTES]

    def _require_secret(self) -> bytes:
        if self.secret is None:
            raise LedgerUnavailable(reason="the ledger is not open yet")
        return self.secret
