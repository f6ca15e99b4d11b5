"""Reading and following the logs of the parts."""

import json
from pathlib import Path

from typer.testing import CliRunner

from fleet_launcher.cli import app
from fleet_launcher.folder import DataFolder
from fleet_launcher.logs import follow, last_line, last_lines


def folder_with_logs(path: Path, **logs: str) -> DataFolder:
    folder = DataFolder.at(path)
    folder.prepare()
    for name, text in logs.items():
        folder.log(name).write_text(text)
    return folder


def test_following_goes_on_across_rotation_and_sees_new_parts(tmp_path: Path) -> None:
    folder = folder_with_logs(tmp_path, nats="old\n")
    lines = follow(folder, None)
    with folder.log("nats").open("a") as log:
        log.write("one\ntwo\nhal")
    assert [next(lines), next(lines)] == [("nats", "one"), ("nats", "two")]
    with folder.log("nats").open("a") as log:
        log.write("f\n")
    assert next(lines) == ("nats", "half")
    folder.log("nats").rename(folder.logs / "nats.log.1")
    folder.log("nats").write_text("three\n")
    assert next(lines) == ("nats", "three")
    folder.log("worker-1").write_text("hello\n")
    assert next(lines) == ("worker-1", "hello")


def test_the_last_lines_leave_out_empty_ones(tmp_path: Path) -> None:
    folder = folder_with_logs(tmp_path, nats="a\n\nb\n\n")
    assert last_lines(folder.log("nats"), 5) == ["a", "b"]
    assert last_lines(folder.log("none"), 5) == []


def test_a_json_line_is_shown_by_its_message(tmp_path: Path) -> None:
    line = {"level": "ERROR", "message": "it broke", "exc_type": "ValueError", "exc_message": "no"}
    folder = folder_with_logs(tmp_path, auth=json.dumps(line) + "\n")
    assert last_line(folder.log("auth")) == "ERROR it broke (ValueError: no)"


def test_what_a_terminal_would_obey_is_shown_instead(tmp_path: Path) -> None:
    line = {
        "ts": "2026-01-01T10:20:30.456+00:00",
        "level": "INFO",
        "message": "GET /\x1b[2J\x9b2J\x85",
        "event": "request",
        "component": "runs-api.http",
        "status": "failed",
        "duration_ms": 1,
        "request_id": "q1",
    }
    written = json.dumps(line, ensure_ascii=False)
    folder = folder_with_logs(tmp_path, **{"runs-api": f"{written}\n", "nats": "hello \x1b[2J\n"})
    shown = CliRunner().invoke(app, ["logs", "--text", "--data-dir", str(tmp_path)]).output
    assert r"GET /\x1b[2J\x9b2J\x85 1 ms request=q1" in shown
    assert r"nats | hello \x1b[2J" in shown
    assert not {"\x1b", "\x9b"} & set(shown)
    assert last_line(folder.log("runs-api")) == r"INFO GET /\x1b[2J\x9b2J\x85"
