"""Which params a flow takes, how they reach its tasks, and which are refused."""

import dataclasses
import datetime
import enum
import uuid
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from pyoco import Flow, task
from pyoco.core.models import RunContext
from pyoco.dsl.syntax import switch

from fleet_contracts.catalogue import REPLACES_RESULT_OF, FlowSource, SourceKind
from fleet_worker.runner.coroutines import Coroutines
from fleet_worker.runner.loading.offers import offer_of, params_schema
from fleet_worker.runner.loading.params import ParamsRefused, Signature
from fleet_worker.runner.pyoco_context import FleetRunContext
from fleet_worker.runner.pyoco_engine import FleetEngine
from fleet_worker.runner.recording.recorder import Recorder

SOURCE = FlowSource(kind=SourceKind.FILE, place="flows.py")


class Colour(enum.Enum):
    RED = "red"


class Order(BaseModel):
    item: str
    count: Annotated[int, Field(ge=1)]


@dataclasses.dataclass
class Place:
    name: str
    since: datetime.date


def schema_of(flow: Flow) -> dict[str, Any]:
    return params_schema(Signature.of(flow))


def run(flow: Flow, *, is_complete: bool = True, **params: Any) -> RunContext:
    inputs = Signature.of(flow).convert(params, is_complete=is_complete)
    context = FleetRunContext()
    FleetEngine(Recorder([], log_max_bytes=0), Coroutines(), inputs).run(flow, params, context)
    return context


def refused(flow: Flow, **params: Any) -> str:
    with pytest.raises(ParamsRefused) as failure:
        Signature.of(flow).convert(params, is_complete=True)
    return str(failure.value)


@task
def book(
    order: Order,
    places: list[Place],
    price: Decimal,
    colour: Colour = Colour.RED,
    at: datetime.datetime = None,  # type: ignore[assignment]  # noqa: RUF013
    key: uuid.UUID | None = None,
    folder: Path = Path("out"),
    kind: Literal["a", "b"] = "a",
    *,
    free=None,  # type: ignore[no-untyped-def]
) -> Any:
    return [order, places, price, colour, at, key, folder, kind, free]


@task
def report(book: list[Any], share: float) -> float:
    return share


booking = Flow("booking") >> book >> report


def test_the_schema_has_types_defaults_and_what_is_required() -> None:
    schema = schema_of(booking)
    assert schema["required"] == ["order", "places", "price", "share"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["order"] == {"$ref": "#/$defs/Order"}
    assert properties["places"]["items"] == {"$ref": "#/$defs/Place"}
    assert schema["$defs"]["Order"]["properties"]["count"]["minimum"] == 1
    assert properties["colour"]["default"] == "red"
    assert {"format": "date-time", "type": "string"} in properties["at"]["anyOf"]
    assert (properties["folder"]["format"], properties["folder"]["default"]) == ("path", "out")
    assert properties["kind"]["enum"] == ["a", "b"]
    assert properties["free"] == {"default": None}
    assert properties["share"] == {"type": "number"}
    assert properties["book"]["description"] == "in place of the result of the task book"
    assert [name for name, part in properties.items() if REPLACES_RESULT_OF in part] == ["book"]


def test_params_reach_tasks_as_the_types_they_are_annotated_with() -> None:
    key = uuid.uuid4()
    given: dict[str, Any] = {
        "order": {"item": "cup", "count": 2},
        "places": [{"name": "Nara", "since": "0710-03-10"}],
        "price": 0.1,
        "at": "2026-01-02T03:04:05Z",
        "key": str(key),
        "folder": "/srv/in",
        "free": {"any": "thing"},
        "share": 1,
    }
    records = run(booking, **given).task_records
    order, places, price, colour, at, own_key, folder, kind, free = records["book"].output
    assert order == Order(item="cup", count=2)
    assert places == [Place("Nara", datetime.date(710, 3, 10))]
    assert (price, colour, kind) == (Decimal("0.1"), Colour.RED, "a")
    assert at == datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert (own_key, folder) == (key, Path("/srv/in"))
    assert free is given["free"]
    assert type(records["report"].output) is float


def test_what_does_not_fit_is_refused_with_the_name_of_the_param_and_the_reason() -> None:
    sentence = refused(
        booking, order={"item": "cup", "count": 0}, places=[{"name": "Nara"}], price="1", share="many", pirce=1
    )
    assert sentence.split("; ") == [
        "no task takes the param 'pirce'",
        "did you mean 'price'?",
        "param 'order' does not fit the task 'book': count: Input should be greater than or equal to 1",
        "param 'places' does not fit the task 'book': [0].since: Field required",
        "param 'share' does not fit the task 'report': "
        "Input should be a valid number, unable to parse string as a number",
    ]
    assert "param 'order' is missing: the task 'book' needs it" in refused(booking)


def test_a_param_that_several_tasks_take_reaches_each_as_its_own_type() -> None:
    @task
    def as_date(day: datetime.date, none: str = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
        return day, none

    @task
    def as_text(day: str) -> str:
        return day

    @task
    def from_elsewhere(when: datetime.date) -> Any:
        return when

    from_elsewhere.task.inputs = {"when": "$ctx.params.day"}
    flow = Flow("days") >> as_date >> as_text >> from_elsewhere
    assert schema_of(flow)["properties"]["day"] == {
        "allOf": [{"format": "date", "type": "string"}, {"type": "string"}]
    }
    records = run(flow, day="2026-01-02", none=None).task_records
    day = datetime.date(2026, 1, 2)
    assert [record.output for record in records.values()].count(day) == 1
    assert (records["as_date"].output, records["as_text"].output) == ((day, None), "2026-01-02")


def test_a_text_is_never_taken_for_a_reference_and_a_changed_param_wins() -> None:
    class Name(enum.StrEnum):
        HOME = "$env.HOME"

    @task
    def show(name: Name) -> Any:
        return name

    @task
    def change(ctx: Any, name: Name) -> None:
        ctx.params["name"] = "changed"

    assert run(Flow("one") >> show, name="$env.HOME").task_records["show"].output is Name.HOME
    assert run(Flow("two") >> change >> show, name="$env.HOME").task_records["show"].output == "changed"


def test_tasks_that_may_look_at_any_param_accept_all() -> None:
    @task
    def look(ctx: Any) -> Any:
        return ctx.params["unknown"]

    @task
    def gather(size: int, **others: Any) -> int:
        return size

    @task
    def needs(colour: Any) -> Any:
        return colour

    assert schema_of(Flow("looking") >> look)["additionalProperties"] is True
    assert run(Flow("looking") >> look, unknown=7).task_records["look"].output == 7
    assert schema_of(Flow("gathering") >> gather)["additionalProperties"] is True
    # A task that comes before may set what is missing, one that comes after cannot.
    assert schema_of(Flow("before") >> look >> needs)["required"] == []
    [again, last] = [task(needs.task.func), task(look.task.func)]
    assert schema_of(Flow("after") >> again >> last)["required"] == ["colour"]


def test_types_that_json_cannot_have_are_left_open_and_break_nothing() -> None:
    class Own:
        pass

    @task
    def odd(own: Own, missing: "Absent", call: "Any" = print, pairs: dict[Own, int] | None = None) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return own, missing

    @task
    def no_type(choice: ("a", "b") = None, other: ["c"] = "c") -> Any:  # type: ignore[valid-type, assignment]  # noqa: F821
        return choice, other

    assert run(Flow("choosing") >> no_type, choice="a", other=1).task_records["no_type"].output == ("a", 1)
    flow = Flow("odd") >> odd
    assert schema_of(flow)["properties"] == {
        "call": {},
        "missing": {},
        "own": {},
        "pairs": {"default": None},
    }
    assert run(flow, own=1, missing="x").task_records["odd"].output == (1, "x")


def test_a_value_for_an_iterable_can_be_read_again_and_again() -> None:
    @task
    def total(sizes: Iterable[int], more: "Iterator[int] | None" = None, named: dict[str, Iterable[int]] = {}) -> Any:  # noqa: B006
        return [sum(sizes), sum(sizes), list(sizes), more, named]

    records = run(Flow("sum") >> total, sizes=[1, 2], more=[3], named={"a": [4]}).task_records
    assert records["total"].output == [3, 3, [1, 2], [3], {"a": [4]}]


def test_branches_and_loops_say_what_they_need_of_params() -> None:
    @task
    def left(size: int) -> int:
        return size

    @task
    def right() -> None: ...

    flow = Flow("way") >> switch("$ctx.params.way")["l" >> left, "r" >> right] >> right["$ctx.params.xs as x"]
    schema = schema_of(flow)
    assert schema["properties"] == {
        "size": {"type": "integer"},
        "way": {"enum": ["l", "r"]},
        "xs": {"type": "array"},
    }
    assert schema["required"] == ["way", "xs"]
    assert run(flow, way="l", size=3, xs=[]).task_records["left"].output == 3
    assert "'size' does not fit" in refused(flow, way="l", size="x", xs=[])


def test_the_graph_shows_branches_loops_and_conditions() -> None:
    @task
    def a() -> None: ...

    @task
    def b() -> None: ...

    @task
    def c() -> None: ...

    def drawn(flow: Flow) -> list[str]:
        graph = offer_of(flow, SOURCE, Signature.of(flow), module_doc=None).graph
        assert graph is not None
        return [f"{edge.source}>{edge.target}" + (f" {edge.label}" if edge.label else "") for edge in graph.edges]

    assert drawn(Flow("dag") >> a >> [b, c]) == ["a>b", "a>c"]
    assert drawn(Flow("switch") >> a >> switch("$ctx.params.x")["l" >> b, "*" >> c]) == [
        "a>switch $ctx.params.x",
        "switch $ctx.params.x>b l",
        "switch $ctx.params.x>c *",
    ]
    assert drawn(Flow("loops") >> (a >> b)[2] >> c % "$ctx.params.done") == [
        "repeat 2>a each",
        "a>b",
        "b>repeat 2 again",
        "repeat 2>c",
        "c>until $ctx.params.done",
        "until $ctx.params.done>c again",
    ]
