"""Answers for language models stay short, whatever flows have written."""

import json

from pyoco_fleet.cli.mcp.bounds import ANSWER_CHARS, fitting


def test_the_more_texts_a_list_has_the_shorter_each_of_them_is() -> None:
    few = [{"run_id": "r" * 36, "error": "x" * 500}] * 2
    assert fitting(few) == few
    many = [{"run_id": "r" * 36, "error": "x" * 500}] * 50
    shown = fitting(many)
    assert len(json.dumps(shown)) <= ANSWER_CHARS
    assert [run["run_id"] for run in shown] == ["r" * 36] * 50
    assert shown[0]["error"].endswith("… (500 characters)")
    assert len(json.dumps(fitting(["y" * 3000] * 50, 2_000))) <= ANSWER_CHARS
