"""Reading and following the logs of the parts."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from typer.testing import CliRunner

from fleet_launcher.cli import app
from fleet_launcher.data_dir.folder import DataFolder
from fleet_launcher.logs.files import follow, last_line, last_lines


def folder_with_logs(path: Path, **logs: str) -> DataFolder:
    folder = DataFolder(path)
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


def test_following_shows_what_has_come_at_once_in_the_order_of_time(tmp_path: Path) -> None:
    folder = folder_with_logs(tmp_path, auth="", nats="")
    lines = follow(folder, None)
    for name, seconds in (("auth", (1, 3)), ("nats", (0, 2))):
        folder.log(name).write_text("".join(f"[7] 2026/01/01 10:20:3{second}.5 [INF] it\n" for second in seconds))
    assert [next(lines)[0] for _ in range(4)] == ["nats", "auth", "nats", "auth"]


def test_the_last_lines_leave_out_empty_ones(tmp_path: Path) -> None:
    folder = folder_with_logs(tmp_path, nats="a\n\nb\n\n")
    assert last_lines(folder.log("nats"), 5) == ["a", "b"]
    assert last_lines(folder.log("none"), 5) == []


def test_as_many_last_lines_are_found_as_were_asked_for(tmp_path: Path) -> None:
    lines = [f"{number} " + "x" * 2000 for number in range(1000)]
    folder = folder_with_logs(tmp_path, nats="\n".join(lines) + "\n")
    assert last_lines(folder.log("nats"), 999) == lines[1:]
    assert last_lines(folder.log("nats"), 5000) == lines
    assert last_lines(folder.log("nats"), 0) == []


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


def test_lines_of_all_formats_are_shown_in_the_order_of_time(tmp_path: Path) -> None:
    noon = datetime(2026, 3, 4, 12, 0, 0).astimezone()

    def said(at: datetime, message: str) -> str:
        return json.dumps({"ts": at.astimezone(UTC).isoformat(), "level": "INFO", "message": message})

    def clock(at: datetime) -> str:
        return at.strftime("%H:%M:%S.%f")[:-3]

    second = timedelta(seconds=1)
    yesterday = noon - timedelta(hours=20)
    text = [
        f"{clock(yesterday)} INFO    auth   starts",
        f"{clock(noon + 2 * second)} ERROR   auth   broke",
        "    Traceback (most recent call last):",
        f"{clock(noon + 6 * second)} INFO    auth   mended",
    ]
    nats = [f"[7] {noon + 3 * second:%Y/%m/%d %H:%M:%S}.500000 [INF] ready", "[7] no time at all"]
    nginx = [f"{noon + 4 * second:%Y/%m/%d %H:%M:%S} [warn] 3#3: slow", said(noon + 5 * second, "GET /")]
    runs = [said(noon - 21 * 3600 * second, "oldest"), said(noon + second, "accepted")]
    logs = {"auth": text, "nats": nats, "gateway": nginx, "runs-api": runs}
    folder = folder_with_logs(tmp_path, **{name: "\n".join(lines) + "\n" for name, lines in logs.items()})
    for log in folder.logs.iterdir():
        os.utime(log, (noon.timestamp() + 7,) * 2)
    shown = CliRunner().invoke(app, ["logs", "--json", "--data-dir", str(tmp_path)]).output.splitlines()
    assert shown == [
        f"runs-api | {runs[0]}",
        f"auth | {text[0]}",
        f"runs-api | {runs[1]}",
        f"auth | {text[1]}",
        f"auth | {text[2]}",
        f"nats | {nats[0]}",
        f"nats | {nats[1]}",
        f"gateway | {nginx[0]}",
        f"gateway | {nginx[1]}",
        f"auth | {text[3]}",
    ]
    as_text = CliRunner().invoke(app, ["logs", "--text", "--data-dir", str(tmp_path)]).output.splitlines()
    assert [line.partition(" |")[0] for line in as_text if " |" in line] == [
        line.partition(" |")[0] for line in shown
    ]
