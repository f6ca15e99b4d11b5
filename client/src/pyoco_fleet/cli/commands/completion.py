"""`completion`: completes commands and options in bash, zsh and fish."""

import argparse
from collections.abc import Iterator

from ..parser import CommandParser, build_parser
from ..registry import COMMANDS
from ..session import Session
from ..texts import t


def add_completion(parser: CommandParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help=t("completion.shell"))


def completion(session: Session) -> int:
    words = dict(_words(build_parser("pyoco-client")))
    shells = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    session.out.raw(shells[session.args.shell](words))
    return 0


def _words(parser: CommandParser) -> Iterator[tuple[str, list[str]]]:
    """What may follow each command: its actions and options."""
    [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    for name in COMMANDS:
        words: list[str] = []
        for action in commands.choices[name].filled()._actions:  # noqa: SLF001
            words += [word for word in action.option_strings if word.startswith("--")]
            if not action.option_strings and action.choices:
                words += [str(choice) for choice in action.choices]
                if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                    for one in action.choices.values():
                        words += [word for inner in one._actions for word in inner.option_strings if word[:2] == "--"]  # noqa: SLF001
        yield name, list(dict.fromkeys(words))


def _cases(words: dict[str, list[str]]) -> str:
    return "\n".join(f"    {name}) words='{' '.join(following)}' ;;" for name, following in words.items())


def _bash(words: dict[str, list[str]]) -> str:
    return f"""# eval "$(pyoco-client completion bash)"
_pyoco_client() {{
  local command= word words
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) ;; *) command=$word; break ;; esac
  done
  case "$command" in
{_cases(words)}
    *) words='{" ".join(words)}' ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _pyoco_client pyoco-client
"""


def _zsh(words: dict[str, list[str]]) -> str:
    return f"""#compdef pyoco-client
# eval "$(pyoco-client completion zsh)"
_pyoco_client() {{
  local command= word words
  local -a given
  given=("${{(@)${{(z)BUFFER}}[2,-1]}}")
  (( CURRENT > 2 )) && for word in $given; do
    case "$word" in -*) ;; *) command=$word; break ;; esac
  done
  case "$command" in
{_cases(words)}
    *) words='{" ".join(words)}' ;;
  esac
  compadd -- ${{=words}}
  _files
}}
compdef _pyoco_client pyoco-client
"""


def _fish(words: dict[str, list[str]]) -> str:
    lines = ["# pyoco-client completion fish | source"]
    known = " ".join(words)
    lines.append(f"complete -c pyoco-client -n 'not __fish_seen_subcommand_from {known}' -f -a '{known}'")
    for name, following in words.items():
        for word in following:
            option = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c pyoco-client -n '__fish_seen_subcommand_from {name}' {option}")
    return "\n".join(lines) + "\n"
