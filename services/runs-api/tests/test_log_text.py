"""Output as text: exactly what was said, lines kept whole, and whose they are if that is wanted."""

from hypothesis import given
from hypothesis import strategies as st

from fleet_contracts.events import EventKind, RunEvent
from fleet_runs_api.read.timeline.log_text import LogText
from fleet_runs_api.read.timeline.timeline import Entry


def said(
    text: str, *, task: str | None = "a", stream: str = "stdout", attempt: int = 1, level: str | None = None
) -> Entry:
    event = RunEvent(at=1.0, kind=EventKind.LOG, task=task, stream=stream, text=text, level=level)
    return Entry(position=0, attempt=attempt, worker_id="w1", event=event)


def text_of(*entries: Entry, prefixed: bool = False) -> str:
    text = LogText(prefixed=prefixed)
    return "".join([*(text.add(entry) for entry in entries), text.finish()])


@given(st.lists(st.text(alphabet="ab\n\r語😀")))
def test_the_output_of_one_speaker_keeps_every_character(pieces: list[str]) -> None:
    assert text_of(*(said(piece) for piece in pieces)) == "".join(pieces)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text(alphabet="xy\n"))))
def test_what_each_of_several_speakers_said_stays_whole(pieces: list[tuple[str, str]]) -> None:
    text_out = text_of(*(said(text, task=task) for task, text in pieces), prefixed=True)
    for task in "abc":
        own = "".join(text for speaker, text in pieces if speaker == task)
        lines = own.removesuffix("\n").split("\n") if own else []
        prefix = f"[{task}] "
        assert [line.removeprefix(prefix) for line in text_out.split("\n") if line.startswith(prefix)] == lines


def test_lines_of_tasks_that_talk_at_the_same_time_are_not_mixed() -> None:
    entries = [said("hel"), said("good", task="b"), said("lo\n"), said("bye\n", task="b"), said("end")]
    assert text_of(*entries) == "hello\ngoodbye\nend"


def test_a_logged_message_has_its_level_in_front() -> None:
    entries = [said("prin"), said("no\nTraceback\n", stream="stderr", level="ERROR"), said("ted\n")]
    assert text_of(*entries) == "ERROR no\nTraceback\nprinted\n"
    assert text_of(*entries, prefixed=True) == "[a] ERROR no\n[a] Traceback\n[a] printed\n"
    # A long one comes in pieces.
    assert text_of(said("lo", level="INFO"), said("ng\n", level="INFO"), said("b\n", level="INFO")) == (
        "INFO long\nINFO b\n"
    )


def test_a_prefix_says_task_attempt_and_stream() -> None:
    text_out = text_of(
        said("one\ntwo"),
        said("oops\n", stream="stderr"),
        said("again\n", attempt=2),
        said("worse\n", attempt=2, stream="stderr"),
        said("from outside\n", task=None, attempt=2),
        said("no end", attempt=2),
        prefixed=True,
    )
    assert text_out.splitlines() == [
        "[a] one",
        "[a stderr] oops",
        "[a] two",
        "[a attempt 2] again",
        "[a attempt 2 stderr] worse",
        "[- attempt 2] from outside",
        "[a attempt 2] no end",
    ]
    assert text_out.endswith("\n")


def test_an_endless_line_is_not_held_back_for_ever() -> None:
    text = LogText(prefixed=True)
    piece = "x" * 30_000
    text_out = [text.add(said(piece)) for _ in range(10)]
    assert sum(map(len, text_out)) > 200_000
    text_out += [text.add(said("y\n", task="b")), text.add(said("z\n")), text.finish()]
    # Output of another speaker ends it; nothing is lost.
    assert "".join(text_out) == f"[a] {piece * 9}\n[b] y\n[a] {piece}z\n"
