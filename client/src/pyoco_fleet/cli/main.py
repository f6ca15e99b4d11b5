"""Runs a command and reports how it failed: exit code 0, 1, 130 after Ctrl-C, 2 for a run that failed."""

import io
import os
import sys
from collections.abc import Sequence

from . import texts
from .errors import CommandFailed, InvalidArgument
from .parser import build_parser
from .registry import COMMANDS, typed
from .texts import t

FAILED = 1
INTERRUPTED = 130
_INVALID_ARGUMENT = "ERR-PYOCO-0018"
# How the caller has started this command, if by another name: the script ./fleet.
_PROGRAM_VARIABLE = "PYOCO_CLIENT_PROGRAM"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    program = os.environ.get(_PROGRAM_VARIABLE) or "pyoco-client"
    texts.use(texts.choose(arguments))
    try:
        return _run(arguments, program)
    except InvalidArgument as error:
        example = typed(program, error.example) if error.example else None
        _report(
            f"{texts.problem(_INVALID_ARGUMENT)}: {error}", _INVALID_ARGUMENT, advice=example, key="error.example"
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone. What is still buffered must not fail again at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        return 0
    except OSError as error:
        _report(f"{error.filename or ''}: {error.strerror}".lstrip(": "))
    return FAILED


def _run(arguments: Sequence[str], program: str) -> int:
    if not arguments:
        build_parser(program).print_help()
        return 0
    args = build_parser(program).parse_args(arguments)
    from ..errors import FleetError
    from .session import Session

    session = Session(args, program)

    try:
        code: int = args.function(session)
        sys.stdout.flush()
    except InvalidArgument as error:
        raise InvalidArgument(str(error), error.example or COMMANDS[args.of_command].example) from error
    except CommandFailed as error:
        _report(str(error), error.err_id, advice=session.command(error.advice) if error.advice else None)
        return FAILED
    except FleetError as error:
        from .failures import explain

        explained = explain(error, session)
        _report(explained.sentence, error.err_id, explained.request_id, explained.advice)
        return FAILED
    return code


def _report(
    sentence: str,
    err_id: str | None = None,
    request_id: str | None = None,
    advice: str | None = None,
    *,
    key: str = "error.advice",
) -> None:
    named = [name for name in (err_id, request_id and t("error.request", id=request_id)) if name]
    suffix = f" ({', '.join(named)})" if named else ""
    lines = [t("error.line", sentence=f"{sentence}{suffix}")]
    if advice:
        lines.append(t(key, line=advice))
    sys.stderr.write("\n".join(lines) + "\n")


def run() -> None:
    """`pyoco-client`"""
    # What a terminal's encoding does not have must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())


if __name__ == "__main__":
    run()
