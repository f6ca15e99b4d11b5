"""Lists through the gateway: filters, a walk from page to page while runs are executed, and differences."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.waiting import wait_until

Item = dict[str, Any]


def ask(stack: Fleet, **query: Any) -> Any:
    answer = stack.client.get("/runs", params=query)
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer.json()


def pages(stack: Fleet, **query: Any) -> Iterator[list[Item]]:
    cursor: str | None = ""
    while cursor is not None:
        page = ask(stack, **{**query, "cursor": cursor})
        yield page["items"]
        cursor = page["next_cursor"]


@pytest.mark.also_composed("PostgreSQL")
def test_filters_text_and_totals_go_through_the_gateway(stack: Fleet) -> None:
    done = submit(stack.client, "hello", name="lists")
    broken = submit(stack.client, "failing", message="Lists: 100% wrong")
    nobody = submit(stack.client, "hello", tag="nobody-lists-this")
    wait_ended(stack.client, [done, broken])
    wait_until(lambda: ask(stack, q="lists: 100% WRONG"), what="the error in the ledger")

    [found] = ask(stack, q="lists: 100% WRONG", status="FAILED,COMPLETED")
    assert (found["run_id"], found["error"]) == (broken, "ValueError: Lists: 100% wrong")
    assert [run["run_id"] for run in ask(stack, q=done[:-4])] == [done]
    [waiting] = ask(stack, tag="nobody-lists-this", flow=["hello", "failing"])
    assert (waiting["run_id"], waiting["waiting_reason"]) == (nobody, "no_worker")
    since = found["submitted_at"]
    assert {run["run_id"] for run in ask(stack, since=since)} >= {broken, nobody}
    assert done not in {run["run_id"] for run in ask(stack, since=since)}

    listed = stack.client.get("/runs", params={"flow": "failing", "limit": 1})
    everything = [run for page in pages(stack, flow="failing", limit=200) for run in page]
    assert int(listed.headers["x-total-count"]) == len(everything) >= 1
    stack.client.post(f"/runs/{nobody}/cancel").raise_for_status()


@pytest.mark.also_composed("PostgreSQL")
def test_a_walk_misses_nothing_while_runs_are_submitted_and_executed(stack: Fleet) -> None:
    before = [submit(stack.client, "hello", name=f"walk {number}") for number in range(30)]
    shown: Counter[str] = Counter()
    later = []
    for page in pages(stack, limit=7):
        shown.update(run["run_id"] for run in page)
        later.append(submit(stack.client, "hello", name="meanwhile"))
    assert not set(before) - shown.keys()
    assert set(shown.values()) == {1}
    assert not shown.keys() & set(later)
    wait_ended(stack.client, [*before, *later])


@pytest.mark.also_composed("PostgreSQL")
def test_a_client_that_follows_differences_sees_every_run_end(stack: Fleet) -> None:
    after = 0.0
    known: dict[str, str] = {}

    def follow() -> dict[str, str]:
        nonlocal after
        page = ask(stack, updated_after=after, limit=5)
        while True:
            known.update((run["run_id"], run["status"]) for run in page["items"])
            if page["next_cursor"] is None:
                after = page["updated_until"]
                return known
            page = ask(stack, cursor=page["next_cursor"], limit=5)

    follow()
    runs = [submit(stack.client, "hello", name=f"difference {number}") for number in range(12)]
    wait_until(lambda: all(follow().get(run) == "COMPLETED" for run in runs), what="every end in a difference")


@pytest.mark.also_composed("PostgreSQL")
def test_an_accepted_run_is_in_the_very_next_difference(stack: Fleet) -> None:
    after = time.time() - 1
    for number in range(10):
        run_id = submit(stack.client, "hello", name=f"difference {number}")
        page = ask(stack, updated_after=after, limit=200)
        assert run_id in {run["run_id"] for run in page["items"]}
        after = page["updated_until"]
