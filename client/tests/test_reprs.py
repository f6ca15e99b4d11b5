"""How objects show themselves in a shell and in a notebook."""

from pyoco_fleet import Fleet
from pyoco_fleet.models import FlowInfo, RunState, TaskRecord, explain


def test_a_model_shows_what_it_says_and_keeps_the_rest() -> None:
    flow = FlowInfo.model_validate({"name": "etl", "workers": 2, "graph": {"nodes": [{"name": "a"}]}, "new": [1]})
    assert repr(flow) == "FlowInfo(name='etl', workers=2)"
    assert flow.model_extra == {"new": [1]}
    assert "<td>etl</td>" in flow._repr_html_()
    run = RunState(run_id="r1", status="FAILED", error="<b>", task_records={"a": TaskRecord(state="FAILED")})
    assert repr(run) == "RunState(run_id='r1', status='FAILED', error='<b>')"
    assert "&lt;b&gt;" in run._repr_html_()


def test_a_why_shows_its_sentences() -> None:
    why = explain(RunState(run_id="r1", flow_name="etl", status="PENDING", waiting_detail="no <worker>"), [], [])
    assert repr(why) == "<Why: The run r1 of the flow etl is PENDING: no <worker>.>"
    assert why._repr_html_() == "The run r1 of the flow etl is PENDING: no &lt;worker&gt;."


def test_a_part_of_a_group_is_a_group() -> None:
    with Fleet("http://127.0.0.1:1") as fleet:
        group = fleet.group(["r1", "r2", "r3"])
        assert group[1:].ids == ["r2", "r3"]
        assert group[-1].id == "r3"
