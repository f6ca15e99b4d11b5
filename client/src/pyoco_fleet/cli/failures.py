"""Says what a failure means and what one can do about it."""

from typing import NamedTuple

from ..config import InvalidConfiguration
from ..errors import (
    BadAnswer,
    BadRequest,
    Conflict,
    FleetError,
    Forbidden,
    NotAuthenticated,
    NotFound,
    Unavailable,
    Unreachable,
    WaitTimeout,
)
from . import texts
from .session import Session
from .texts import t


class Explained(NamedTuple):
    sentence: str
    request_id: str | None
    advice: str | None


def explain(error: FleetError, session: Session) -> Explained:
    return Explained(_sentence(error, session), error.request_id, _advice(error, session))


def _sentence(error: FleetError, session: Session) -> str:
    if isinstance(error, Unreachable) and not error.sent:
        return t("error.unreachable", url=session.client.server.url, reason=error.__cause__ or error.message)
    named = None if texts.is_english() else texts.problem(error.err_id)
    return f"{named}: {error.message}" if named else error.message


def _advice(error: FleetError, session: Session) -> str | None:
    local = session.is_local
    match error:
        case Unreachable():
            return t("advice.unreachable_local") if local else t("advice.unreachable")
        case NotAuthenticated():
            return session.how_to_get_a_key()
        case Forbidden() if "missing_scope" in error.meta:
            return t("advice.scope", scope=error.meta["missing_scope"])
        # With authentication off nobody may manage keys here, whatever key they have.
        case Forbidden() if error.status == 403 and session.args.of_command != "keys":
            return session.how_to_get_a_key()
        case BadRequest() if session.args.of_command == "submit" and "params" in error.message:
            return session.command(f"flows {session.args.flow or session.args.flow_name}")
        case Conflict() if session.args.of_command == "result":
            return session.command(f"watch {session.args.run_id}")
        case NotFound() if error.err_id == "ERR-PYOCO-0005":
            return session.command("list --limit 5")
        case NotFound() if error.err_id == "ERR-PYOCO-0020":
            return session.command("workers --scope all")
        case NotFound() if error.err_id == "ERR-PYOCO-0023":
            return session.command("wheels")
        case NotFound() if "flow_name" in error.meta:
            return session.command("flows")
        case NotFound() if "letter_id" in error.meta:
            return session.command("dlq list")
        case NotFound() if session.args.of_command == "keys":
            return session.command("keys list")
        case BadAnswer():
            return t("advice.address")
        # Every error of a fleet has a code.
        case _ if error.code is None and error.status is not None:
            return t("advice.address")
        case WaitTimeout():
            return session.command("list --status RUNNING,CANCELLING,PENDING")
        case Unavailable():
            return t("advice.unavailable")
        case InvalidConfiguration():
            return None
        case _:
            return f"{session.command(session.args.of_command)} --help"
