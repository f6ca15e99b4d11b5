"""The parser of the command line. The arguments of a command are added when that command is parsed, not before."""

from __future__ import annotations

import argparse
import importlib
import re
import sys

from .errors import InvalidArgument
from .registry import COMMANDS, GROUPS, Command, typed
from .texts import LANGUAGES, t

# Not imported to show help: `typing` alone takes as long as all of argparse.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

# argparse says these in English only.
_COMPLAINTS = (
    (re.compile(r"the following arguments are required: (?P<names>.+)"), "usage.required"),
    (re.compile(r"argument (?P<name>.+): expected one argument"), "usage.one_argument"),
    (re.compile(r"argument (?P<name>.+): expected at least one argument"), "usage.one_argument"),
    (re.compile(r"argument (?P<name>.+): invalid int value: (?P<value>.+)"), "usage.whole_number"),
    (re.compile(r"argument (?P<name>.+): invalid float value: (?P<value>.+)"), "usage.number"),
)
_WRONG_CHOICE = re.compile(
    r"argument (?P<name>.+): invalid choice: (?P<value>'.*?'|\".*?\") \(choose from (?P<known>.+)\)"
)


class CommandParser(argparse.ArgumentParser):
    """A parser whose complaints are exceptions with an example, and that `fill` completes on first use."""

    def __init__(
        self, *, fill: Callable[[CommandParser], None] | None = None, example: str | None = None, **options: Any
    ) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._fill = fill
        self.example = example
        self._positionals.title = t("usage.positionals")
        self._optionals.title = t("usage.options")

    def filled(self) -> CommandParser:
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.filled()
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            raise self._unknown(unknown)
        return parsed, unknown

    def format_help(self) -> str:
        self.usage = self.usage or self._short_usage()
        return super().format_help()

    def _short_usage(self) -> str:
        """What must be given; the options are listed below it."""
        words = [self.prog]
        for action in self._actions:
            name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            if action.required and action.option_strings:
                words.append(f"{action.option_strings[-1]} {name}")
            elif not action.option_strings:
                several = f"{name} ..." if action.nargs in ("*", argparse.PARSER) else name
                words.append(several if action.required and action.nargs != "*" else f"[{several}]")
        return " ".join([*words, t("usage.any_options")]).replace("%", "%%")

    def _unknown(self, arguments: Sequence[str]) -> InvalidArgument:
        import difflib

        first, sentence = arguments[0], t("usage.unknown", names=" ".join(arguments))
        if first.startswith("-"):
            near = difflib.get_close_matches(first.partition("=")[0], self._option_string_actions, n=1)
            said = f"{sentence}{t('usage.unknown_near', near=near[0])}" if near else sentence
            return InvalidArgument(said, self.example)
        if "=" in first and "--param" in self._option_string_actions:
            return InvalidArgument(
                f"{sentence}{t('usage.unknown_near', near=f'-p {first}')}", "submit hello -p name=Ada"
            )
        return InvalidArgument(sentence, self.example)

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(_sentence(message), self.example)


class _Version(argparse.Action):
    """Looks the version up when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"pyoco-client {version('pyoco-fleet-client')}\n")
        parser.exit()


def _sentence(message: str) -> str:
    wrong = _WRONG_CHOICE.fullmatch(message)
    if wrong is not None:
        value = wrong["value"].strip("'\"")
        known = [word.strip("' ") for word in wrong["known"].split(",")]
        import difflib

        near = difflib.get_close_matches(value, known, n=1)
        advice = t("usage.near", near=near[0]) if near else t("usage.known", known=", ".join(known))
        return f"{t('usage.choice', name=wrong['name'], value=value)}{advice}"
    for pattern, key in _COMPLAINTS:
        found = pattern.fullmatch(message)
        if found is not None:
            return t(key, **found.groupdict())
    return message


def build_parser(program: str) -> CommandParser:
    """The parser of all commands; of each its name only."""
    parser = CommandParser(
        prog=program,
        usage=t("usage.program", program=program),
        description=_overview(),
        epilog=t("help.epilog", program=program),
        example="submit --help",
        add_help=False,
    )
    parser.add_argument("--version", action=_Version, help=t("option.version"))
    add_common_options(parser)
    commands = parser.add_subparsers(
        dest="command", metavar=t("usage.command"), required=True, parser_class=CommandParser, help=argparse.SUPPRESS
    )
    for command in COMMANDS.values():
        commands.add_parser(
            command.name,
            prog=typed(program, command.name),
            aliases=command.aliases,
            fill=_filler(command),
            example=command.example,
            add_help=False,
        )
    return parser


def _filler(command: Command) -> Callable[[CommandParser], None]:
    def fill(parser: CommandParser) -> None:
        module = importlib.import_module(f".commands.{command.module}", __package__)
        parser.description = t(f"help.{command.name}")
        parser.epilog = t("help.example", line=typed(parser.prog.split()[0], command.example))
        getattr(module, f"add_{command.function}")(parser)
        add_common_options(parser)
        parser.set_defaults(function=getattr(module, command.function), of_command=command.name)

    return fill


def _overview() -> str:
    lines = [t("help.program")]
    for group, commands in GROUPS.items():
        lines += ["", f"{t(f'group.{group}')}:"]
        lines += [f"  {command.name:<15}{t(f'help.{command.name}')}" for command in commands]
    return "\n".join(lines)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command. They may stand before and after its name, so none has a default."""
    group = parser.add_argument_group(t("usage.common"))
    if not parser.add_help:
        group.add_argument("-h", "--help", action="help", help=t("option.help"))
    absent = argparse.SUPPRESS
    group.add_argument("--server", metavar="URL", default=absent, help=t("option.server"))
    group.add_argument("--api-key", metavar="KEY", default=absent, help=t("option.api_key"))
    group.add_argument("--api-key-header", metavar="NAME", default=absent, help=t("option.api_key_header"))
    group.add_argument("--profile", metavar="NAME", default=absent, help=t("option.profile"))
    group.add_argument("--lang", choices=LANGUAGES, default=absent, help=t("option.lang"))
    group.add_argument("--no-color", action="store_true", default=absent, help=t("option.no_color"))


def add_action(actions: Any, command: CommandParser, name: str, help: str, example: str) -> CommandParser:
    """An action of a command that has several, such as `dlq list`."""
    epilog = t("help.example", line=typed(command.prog.split()[0], example))
    action: CommandParser = actions.add_parser(
        name, help=help, description=help, epilog=epilog, add_help=False, example=example
    )
    return action


def add_output(parser: argparse.ArgumentParser, *forms: str) -> None:
    """`--output`: json and table, and what else the command has."""
    parser.add_argument("--output", choices=("json", "table", *forms), help=t("option.output"))


def add_run_id(parser: argparse.ArgumentParser, **options: Any) -> None:
    parser.add_argument("run_id", metavar="RUN_ID", help=t("option.run_id"), **options)


def words_of(text: str | None) -> list[str] | None:
    """A list separated by commas; None if there is nothing in it."""
    return [word for word in (part.strip() for part in (text or "").split(",")) if word] or None


def flatten(lists: Sequence[Sequence[str]] | None) -> list[str]:
    return [word for words in lists or () for word in words]
