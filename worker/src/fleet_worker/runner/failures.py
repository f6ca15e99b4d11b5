"""Describes an exception that was raised in a runner, for the agent's log."""

import traceback
from collections.abc import Iterator

from fleet_kit.logs.json_values import describe

from ..boundary.frames import Failure
from ..boundary.masking import SECRETS

# Endless recursion has a thousand frames, of which the last ones are enough.
_MOST_FRAMES = 50
_MOST_CAUSES = 50
# Limits of one log line, so that people and log collectors can handle it whatever a flow raises.
_MOST_MESSAGE_CHARACTERS = 8 * 1024
_MOST_TRACEBACK_CHARACTERS = 64 * 1024


class ShownPaths:
    """Names the files of a copied flows folder by the paths that people know."""

    def __init__(self) -> None:
        self._copy, self._shown = "", ""

    def set(self, copy: str, shown: str) -> None:
        self._copy, self._shown = f"{copy}/", f"{shown}/"

    def __call__(self, text: str) -> str:
        return text.replace(self._copy, self._shown) if self._copy else text


# One per process: a runner has one flows folder.
shown_paths = ShownPaths()


def describe_failure(error: BaseException) -> Failure:
    return Failure(
        exc_type=type(error).__name__,
        exc_message=_shortened(shown_paths(describe(error, str)), _MOST_MESSAGE_CHARACTERS),
        exc_traceback=_shortened(shown_paths(_whole_text_of(error)), _MOST_TRACEBACK_CHARACTERS),
        exc_origin=shown_paths(_origin_of(error)),
        exc_frames=shown_paths("".join(_frames_of(error))),
    )


def _origin_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"  # no frame is there: nothing of the file was executed
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


def _frames_of(error: BaseException) -> Iterator[str]:
    """Tracebacks without messages: those of the causes first, that of the exception last."""
    for number, one in enumerate(reversed(_chain_of(error))):
        if number:
            yield "\nand then:\n\n"
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(one.__traceback__, limit=-_MOST_FRAMES)
        yield f"{type(one).__name__}\n"


def _chain_of(error: BaseException) -> list[BaseException]:
    """The exception and its causes, the latest first. A flow may make the chain endless or link it to itself."""
    chain = [error]
    while len(chain) < _MOST_CAUSES:
        last = chain[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None or any(before is one for one in chain):
            break
        chain.append(before)
    return chain


def _whole_text_of(error: BaseException) -> str:
    """The library recurses over causes: a chain that is too long for that is shortened to its frames."""
    try:
        return "".join(traceback.format_exception(error))
    except RecursionError:
        return "".join(_frames_of(error))


def _shortened(text: str, characters: int) -> str:
    """A traceback begins where the run began and ends with what was raised: the middle can be left out."""
    text = SECRETS.mask(text)  # before it is cut
    if (left_out := len(text) - characters) <= 0:
        return text
    half = characters // 2
    return f"{text[:half]}\n… ({left_out} characters are left out) …\n{text[-half:]}"
