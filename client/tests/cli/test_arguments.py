"""Arguments: what is understood, and how a wrong one is answered."""

import io
import json
import shlex
from datetime import datetime
from pathlib import Path

import pytest

from pyoco_fleet.cli import texts, times
from pyoco_fleet.cli.errors import InvalidArgument
from pyoco_fleet.cli.main import main
from pyoco_fleet.cli.params import build_params
from pyoco_fleet.cli.parser import build_parser
from pyoco_fleet.cli.registry import COMMANDS, Command, typed

NOON = datetime(2026, 3, 15, 12).timestamp()


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    texts.use("en")


def test_a_param_is_json_if_it_can_be_read_as_that_else_text() -> None:
    pairs = ["n=3", "ok=true", "name=Ada", 'list=[1, "x"]', "empty=", "eq=a=b", "not_json=NaN", " spaced = 1.5 "]
    assert build_params([], [], pairs) == {
        "n": 3,
        "ok": True,
        "name": "Ada",
        "list": [1, "x"],
        "empty": "",
        "eq": "a=b",
        "not_json": "NaN",
        "spaced": 1.5,
    }


def test_of_one_param_the_later_source_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first.json").write_text('{"a": 1, "b": 1, "c": 1, "d": 1}')
    monkeypatch.setattr("sys.stdin", io.StringIO("b: 2\nday: 2026-01-31\nnested: {1: x}\n"))
    given = build_params([str(tmp_path / "first.json"), "-"], ['{"c": 3}'], ["d=4", "d=5"])
    # YAML gives what JSON can hold: a date stays text.
    assert given == {"a": 1, "b": 2, "c": 3, "d": 5, "day": "2026-01-31", "nested": {"1": "x"}}


@pytest.mark.parametrize("text", ["[1]", "a: [", "a: .nan", "a: !!binary aGk=", "a: &x [*x]", "7"])
def test_a_file_that_is_no_object_of_json_values_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "params").write_text(text)
    with pytest.raises(InvalidArgument):
        build_params([str(tmp_path / "params")], [], [])


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("yesterday", datetime(2026, 3, 14).timestamp()),
        ("today", datetime(2026, 3, 15).timestamp()),
        ("now", NOON),
        ("90s", NOON - 90),
        ("2h", NOON - 7200),
        ("3d ago", NOON - 3 * 86400),
        ("1w", NOON - 7 * 86400),
        ("2026-01-31", datetime(2026, 1, 31).timestamp()),
        ("2026-01-31T09:30:00Z", 1769851800.0),
        ("1769851800.5", 1769851800.5),
    ],
)
def test_a_moment_is_written_as_people_say_it(text: str, moment: float) -> None:
    assert times.moment(text, "--since", now=NOON) == moment


def test_a_span_is_before_now_or_where_the_future_is_meant_after_it() -> None:
    assert times.moment("2h", "--since", now=NOON) == NOON - 7200
    assert times.moment("2h", "--not-before", ahead=True, now=NOON) == NOON + 7200


def test_durations_and_times_are_short() -> None:
    lengths = [None, 0.0001, 0.25, 3.14, 185, 7380, 349200]
    assert list(map(times.duration, lengths)) == [
        "–",
        "<1 ms",
        "250 ms",
        "3.1 s",
        "3 min 5 s",
        "2 h 3 min",
        "4 d 1 h",
    ]
    assert [times.ago(NOON - 150, now=NOON), times.ago(NOON + 90000, now=NOON)] == ["2 min ago", "in 1 d"]
    assert [times.ago(NOON + 90 * 86400 - 2, now=NOON), times.ago(NOON + 3599, now=NOON)] == ["in 90 d", "in 1 h"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["sumbit"], 'cannot be "sumbit"; did you mean "submit"?'),
        (["list", "--stauts", "FAILED"], "unknown: --stauts FAILED; did you mean --status?"),
        (["submit", "hello", "name=Ada"], "unknown: name=Ada; did you mean -p name=Ada?"),
        (["submit", "hello", "--not-before", "soon"], "--not-before needs a time such as 2h"),
        (["submit", "hello", "--retry", "often"], '--retry needs a number of attempts or a JSON object, not "often"'),
        (["submit", "hello", "--delay", "soon"], "--delay needs a span of time"),
        (["list", "--status", "done"], '--status cannot be "done"; it is one of PENDING, RUNNING'),
        (["dlq", "show"], "missing: LETTER_ID"),
        (["list", "--limit", "ten"], "--limit needs a whole number, not 'ten'"),
        (["list", "--since", "20260131"], "--since needs a time such as yesterday"),
        (["get"], "missing: RUN_ID"),
        (["cancel"], "missing: RUN_ID"),
        (["get", "hello"], '"hello" is not the id of a run'),
        (["submit", "hello", "-p", "name"], '--param needs KEY=VALUE, not "name"'),
        (["submit", "hello", "--params", "{"], "--params needs a JSON object"),
        (["submit", "hello", "--params-file", "/nowhere"], "/nowhere cannot be read"),
        (["submit", "hello", "--flow-name", "other"], "two flows were named"),
        (["requeue"], "say which letters are meant"),
        (["workers", "drain"], "missing: WORKER_ID"),
        (["wheel-upload", "nowhere.whl"], "there is no file nowhere.whl"),
        (["keys", "create"], "missing: --tenant"),
        (["dlq", "shwo"], 'did you mean "show"?'),
    ],
)
def test_a_wrong_argument_ends_with_1_and_an_example(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    out, err = capsys.readouterr()
    first, example = err.splitlines()
    assert out == ""
    assert says in first
    assert "ERR-PYOCO-0018" in first
    # The example is one that the parser understands.
    words = example.partition("pyoco-client ")[2]
    if not words.endswith("--help"):
        assert build_parser("pyoco-client").parse_args(shlex.split(words)).of_command in COMMANDS


def test_a_wrong_argument_is_answered_in_japanese(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", "--lang", "ja"]) == 1
    assert "CLI引数が不正です（入力形式を確認してください）: RUN_ID がありません" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_example_of_every_command_is_one_that_it_takes(command: Command) -> None:
    args = build_parser("pyoco-client").parse_args(shlex.split(command.example))
    assert args.of_command == command.name


def test_options_of_every_command_stand_before_or_after_its_name() -> None:
    parser = build_parser("pyoco-client")
    before = parser.parse_args(["--server", "http://a", "--api-key", "k", "list"])
    after = parser.parse_args(["list", "--server", "http://a", "--api-key", "k"])
    assert (before.server, before.api_key) == (after.server, after.api_key) == ("http://a", "k")


# What scripts for the client of pyoco-server say.
@pytest.mark.parametrize(
    "line",
    [
        """--server http://x --api-key k --api-key-header X-Key submit --flow-name main --params '{"a":1}'
        --params-file f --param a=1 --param b=2 --tag default --tags a,b""",
        "submit-yaml --workflow-file flow.yaml --flow-name main --tag default",
        "get 3c23bc64-317a-4025-8744-a6a0db6212bd --records",
        "tasks 3c23bc64-317a-4025-8744-a6a0db6212bd",
        "list --status FAILED --flow main --tag default --full --limit 10 --output table",
        """list-vnext --status FAILED --flow main --tag default --full --limit 10 --updated-after 1.5 --cursor c
        --workflow-yaml-sha256 abc --output json""",
        """watch 3c23bc64-317a-4025-8744-a6a0db6212bd --records --since 1.5 --timeout-sec 5 --max-events 3
        --until-terminal --output status""",
        "cancel --run-id 3c23bc64-317a-4025-8744-a6a0db6212bd --wait --timeout-sec 5",
        "workers --scope all --state IDLE --include-hidden --limit 5 --output plugins",
        "wheels",
        "wheel-history --limit 5 --wheel-name a.whl --action upload",
        """wheel-upload --wheel-file a.whl --tags a,b --no-replace --preflight strict --allow-no-entry-points
        --allow-missing-usage-doc""",
        "wheel-delete --name a.whl",
        "metrics",
    ],
)
def test_the_options_of_the_peers_client_are_understood(line: str) -> None:
    assert build_parser("pyoco-client").parse_args(shlex.split(line)).of_command in line


def test_commands_are_named_as_the_caller_types_them() -> None:
    assert typed("pyoco-client", "logs 7d4b -f") == "pyoco-client logs 7d4b -f"
    assert typed("./fleet", "logs 7d4b -f") == "./fleet logs-of 7d4b -f"
    assert typed("./fleet", "attempts 7d4b") == "./fleet client attempts 7d4b"


def test_the_help_of_a_command_shows_how_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    for program, typed_as in (("pyoco-client", "pyoco-client logs"), ("./fleet", "./fleet logs-of")):
        with pytest.raises(SystemExit):
            build_parser(program).parse_args(["logs", "--help"])
        out = capsys.readouterr().out
        assert out.startswith(f"usage: {typed_as} RUN_ID [OPTIONS]\n")
        assert f"for example: {typed_as} 01a1e30e-8505 -f" in out


def test_params_go_over_the_wire_as_they_were_given() -> None:
    assert json.loads(json.dumps(build_params([], [], ["x=1e3", "y=12345678901234567890"]))) == {
        "x": 1000.0,
        "y": 12345678901234567890,
    }
