"""A line of a program that writes no JSON becomes one of the log contract."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from fleet_kit.settings import FleetSettings
from fleet_launcher.logs.files import for_people
from fleet_launcher.logs.foreign_lines import ForeignLines
from fleet_testkit.log_check import check_log_lines, whole_lines


async def written(tmp_path: Path, part: str, *texts: bytes, settings: FleetSettings | None = None) -> list[str]:
    log = tmp_path / f"{part}.log"
    lines, pipe = await ForeignLines.of(part, log, settings or FleetSettings())
    for text in texts:
        os.write(pipe, text)
        await asyncio.sleep(0)
    os.close(pipe)
    await lines.end()
    return list(whole_lines(log))[:-1] if log.exists() else []


@pytest.mark.parametrize(
    ("part", "text", "level", "message", "service"),
    [
        ("nats", "[12] 2026/11/16 13:40:30.123456 [INF] Server is ready", "INFO", "Server is ready", "launcher"),
        ("nats", "[12] 2026/11/16 13:40:30.123456 [ERR] no room", "ERROR", "no room", "launcher"),
        ("nats", "[12] 2026/11/16 13:40:30.123456 [FTL] the end", "CRITICAL", "the end", "launcher"),
        ("gateway", "2026/11/16 13:40:30 [warn] 12#34: *5 a body is kept", "WARNING", "*5 a body is kept", "http"),
        ("gateway", "nginx: [emerg] no such directive", "CRITICAL", "no such directive", "http"),
        (
            "gateway",
            '2026/11/16 13:40:30 [error] 12#34: *5 no answer, request: "GET /runs?flow=x HTTP/1.1", host: "a"',
            "ERROR",
            '*5 no answer, request: "GET /runs?… HTTP/1.1", host: "a"',
            "http",
        ),
        ("worker-1", "Segmentation fault", "WARNING", "Segmentation fault", "worker"),
        ("runs-api", 'odd " \\ \x01 text', "WARNING", 'odd " \\ \x01 text', "http"),
    ],
)
async def test_its_level_and_its_message_are_logged(
    tmp_path: Path, part: str, text: str, level: str, message: str, service: str
) -> None:
    lines = await written(tmp_path, part, text.encode() + b"\n")
    assert check_log_lines(lines, of=part) == 1
    line = json.loads(lines[0])
    assert (line["level"], line["message"], line["component"]) == (level, message, part)
    assert (line["service"], line["event"]) == (f"pyoco-server:{service}", "foreign_line")


async def test_a_disk_that_is_full_costs_the_lines_and_not_the_pipe(caplog: pytest.LogCaptureFixture) -> None:
    lines, pipe = await ForeignLines.of("nats", Path("/dev/full"), FleetSettings())
    for _ in range(100):
        # More than the pipe holds in all: a reader that stops would block the part that writes.
        os.write(pipe, b"x" * 4096 + b"\n")
        await asyncio.sleep(0)
    os.close(pipe)
    await lines.end()
    assert not caplog.records


async def test_lines_are_put_together_and_the_last_one_needs_no_end(tmp_path: Path) -> None:
    banner = b"[12] 2026/11/16 13:40:30.123456 [INF] \n"
    lines = await written(tmp_path, "nats", b"on", b"e\n\n", banner, b"tw", b"o\nthree")
    assert [json.loads(line)["message"] for line in lines] == ["one", "two", "three"]


async def test_what_is_no_text_is_logged_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = await written(tmp_path, "nats", b"\xff" * 40_000)
    assert check_log_lines(lines, of="nats") >= 1


async def test_in_the_text_format_they_stay_as_they_are(tmp_path: Path) -> None:
    lines = await written(tmp_path, "nats", b"[12] hello\n", settings=FleetSettings(log_format="text"))
    assert lines == ["[12] hello"]


async def test_a_log_is_shown_to_people_as_text(tmp_path: Path) -> None:
    [line] = await written(tmp_path, "worker-2", b"Segmentation fault\n")
    assert for_people("worker-2", line, coloured=False).endswith("WARNING worker-2               Segmentation fault")
    assert for_people("nats", "no JSON", coloured=False) == "nats | no JSON"
