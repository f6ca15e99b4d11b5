"""`mcp`: lets an AI assistant read the fleet, and change it if it is allowed to."""

import asyncio

from ..errors import CommandFailed
from ..parser import CommandParser
from ..session import Session
from ..texts import t


def add_mcp(parser: CommandParser) -> None:
    parser.add_argument("--allow-writes", action="store_true", help=t("mcp.allow_writes"))


def mcp(session: Session) -> int:
    try:
        from ..mcp.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise CommandFailed(t("mcp.not_installed")) from error
    asyncio.run(serve(session, allow_writes=session.args.allow_writes))
    return 0
