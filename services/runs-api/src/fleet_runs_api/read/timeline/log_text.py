"""Formats the output of a run as text: lines stay whole although tasks write at the same time."""

from typing import NamedTuple

from .timeline import Entry

# How much of incomplete lines is buffered; beyond that they are returned as they are.
_HELD_CHARACTERS = 64 * 1024


class Speaker(NamedTuple):
    attempt: int
    task: str | None
    stream: str | None

    @property
    def prefix(self) -> str:
        """`[greet] `, `[greet stderr] `, `[greet attempt 2] `; `[-] ` for output that belongs to no task.

        A message that was logged has its level in place of the stream: `[greet] WARNING …`.
        """
        words = [self.task or "-"]
        if self.attempt > 1:
            words.append(f"attempt {self.attempt}")
        if self.stream == "stderr":
            words.append("stderr")
        return f"[{' '.join(words)}] "


class LogText:
    """Merges entries into text; write out what each call returns. A single speaker's output keeps every character."""

    def __init__(self, *, prefixed: bool) -> None:
        self._prefixed = prefixed
        self._attempt: int | None = None
        # Incomplete lines, by speaker.
        self._held: dict[Speaker, str] = {}
        self._held_characters = 0
        # The speaker of the last text, if that was not a whole line.
        self._mid_line: Speaker | None = None

    def add(self, entry: Entry) -> str:
        said = ""
        if entry.attempt != self._attempt:
            self._attempt = entry.attempt
            said += self._release()
        event, text = entry.event, entry.event.text or ""
        # A logged message has its level in place of the stream.
        speaker = Speaker(entry.attempt, event.task, event.stream if event.level is None else None)
        begun = self._held.pop(speaker, "")
        if event.level is not None and not begun and speaker != self._mid_line:
            text = f"{event.level} {text}"
        lines, newline, rest = (begun + text).rpartition("\n")
        self._held_characters += len(rest) - len(begun)
        if newline:
            said += self._format(speaker, lines + newline)
        if rest:
            self._held[speaker] = rest
        if self._held_characters > _HELD_CHARACTERS:
            said += self._release()
        return said

    def finish(self) -> str:
        """The remaining text; with prefixes it ends with a newline."""
        said = self._release()
        return said + "\n" if self._prefixed and self._mid_line else said

    def _release(self) -> str:
        held, self._held, self._held_characters = self._held, {}, 0
        return "".join(self._format(speaker, text) for speaker, text in held.items())

    def _format(self, speaker: Speaker, text: str) -> str:
        goes_on = speaker == self._mid_line
        end_of_line = "\n" if self._mid_line is not None and not goes_on else ""
        self._mid_line = None if text.endswith("\n") else speaker
        if self._prefixed:
            whole = text.endswith("\n")
            text = text.removesuffix("\n").replace("\n", f"\n{speaker.prefix}") + ("\n" if whole else "")
            text = text if goes_on else speaker.prefix + text
        return end_of_line + text
