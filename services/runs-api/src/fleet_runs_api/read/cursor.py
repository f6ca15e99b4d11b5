"""The cursor: where a list goes on. Opaque to its holder, and good only for the query that it came from."""

import base64
import binascii
import hashlib
import hmac
from dataclasses import astuple, dataclass

import orjson

from ..errors import InvalidCursor

_VERSION = b"\x02"
_SIGNATURE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Walk:
    """Through all runs, the newest accepted first: those accepted before this one are still to come."""

    before_seq: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Through what changed after `updated_after` and not after `shown_until`, the earliest change first."""

    updated_after: float
    # Where the next difference begins: no change up to this moment is yet to be committed.
    settled_until: float
    # The latest change that could be seen when the difference began.
    shown_until: float
    # The change that was shown last.
    changed_at: float
    seq: int


Position = Walk | Difference

_KINDS: dict[str, type[Walk] | type[Difference]] = {"w": Walk, "d": Difference}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}


class CursorSigner:
    """Every replica has the same secret, so that any of them takes the cursor of any other."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def encode(self, position: Position, *, scope: bytes) -> str:
        """`scope` says whose cursor this is and for which filters; it is signed and not contained."""
        body = _VERSION + orjson.dumps([_LETTERS[type(position)], *astuple(position)])
        return base64.urlsafe_b64encode(self._signature(body, scope) + body).rstrip(b"=").decode()

    def decode(self, text: str, *, scope: bytes) -> Position:
        """InvalidCursor for everything that `encode` has not made for the same scope."""
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidCursor() from None
        signature, body = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(body, scope)) or not body.startswith(_VERSION):
            raise InvalidCursor()
        letter, *fields = orjson.loads(body[len(_VERSION) :])
        return _KINDS[letter](*fields)

    def _signature(self, body: bytes, scope: bytes) -> bytes:
        signed = hashlib.sha256(scope).digest() + body
        return hmac.digest(self._secret, signed, "sha256")[:_SIGNATURE_BYTES]
