"""`keys`: API keys, for those who have one with the scope admin."""

from ..errors import InvalidArgument
from ..output import Column, Item, Table
from ..parser import CommandParser, add_action, add_common_options, add_output, words_of
from ..session import Session
from ..texts import t
from ..times import ago, clock, seconds

_EXAMPLES = {
    "list": "keys list --tenant acme",
    "create": "keys create --tenant acme --expires 90d",
    "show": "keys show 2aeb577854de11df",
    "revoke": "keys revoke 2aeb577854de11df",
}


def add_keys(parser: CommandParser) -> None:
    actions = parser.add_subparsers(
        dest="action", metavar="list|create|show|revoke", required=True, parser_class=CommandParser
    )
    for name, example in _EXAMPLES.items():
        action = add_action(actions, parser, name, t(f"keys.{name}"), example)
        _add_arguments(action, name)
        add_output(action)
        add_common_options(action)


def _add_arguments(parser: CommandParser, action: str) -> None:
    add = parser.add_argument
    match action:
        case "list":
            add("--tenant", help=t("keys.of_tenant"))
            add("--include-revoked", action="store_true", help=t("keys.include_revoked"))
        case "create":
            add("--tenant", required=True, help=t("keys.tenant"))
            add("--scopes", metavar="A,B", help=t("keys.scopes"))
            add("--name", help=t("keys.name"))
            add("--expires", metavar="SPAN", help=t("keys.expires"))
        case _:
            add("key_id", metavar="KEY_ID", help=t("keys.key_id"))


def keys(session: Session) -> int:
    args, client = session.args, session.client
    match args.action:
        case "list":
            return _list(session)
        case "create":
            expires = None if args.expires is None else seconds(args.expires, "--expires")
            if expires is not None and expires <= 0:
                raise InvalidArgument(
                    t("usage.duration", option="--expires", value=args.expires), _EXAMPLES["create"]
                )
            key = client.issue_key(args.tenant, scopes=words_of(args.scopes), name=args.name, expires_in_sec=expires)
            session.out.show(key, lambda: _show_new(session, key))
        case "show":
            found = client.get_key(args.key_id)
            session.out.show(found, lambda: _show(session, found))
        case _:
            revoked = client.revoke_key(args.key_id)
            session.out.show(revoked, lambda: session.out.line(t("keys.revoked", key_id=revoked["key_id"])))
    return 0


def _list(session: Session) -> int:
    found: list[Item] = []
    cursor: str | None = None
    while True:
        page = session.client.list_keys(
            tenant=session.args.tenant, include_revoked=session.args.include_revoked or None, cursor=cursor
        )
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    table = Table(
        found,
        [
            Column(t("column.key"), lambda key: key["key_id"], style="bold"),
            Column(t("column.tenant"), lambda key: key["tenant_id"]),
            Column(t("column.name"), lambda key: key["name"]),
            Column(t("column.state"), lambda key: key["state"], is_state=True),
            Column(t("column.expires"), lambda key: ago(key["expires_at"])),
            Column(t("column.scopes"), lambda key: key["scopes"]),
        ],
        empty=t("keys.none"),
        wraps=True,
    )
    session.out.show({"items": found, "next_cursor": None}, lambda: session.out.table(table))
    return 0


def _show_new(session: Session, key: Item) -> None:
    _show(session, key)
    session.out.line(str(key["api_key"]))
    session.out.note(t("keys.only_once"))


def _show(session: Session, key: Item) -> None:
    session.out.fields(
        [
            (t("field.key"), key["key_id"]),
            (t("field.tenant"), key["tenant_id"]),
            (t("field.name"), key["name"]),
            (t("field.state"), key["state"]),
            (t("field.scopes"), key["scopes"]),
            (t("field.created"), clock(key["created_at"])),
            (t("field.expires"), key["expires_at"] and clock(key["expires_at"])),
        ],
        state=key["state"],
    )
