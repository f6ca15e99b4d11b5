"""Settings that contradict each other are refused with a sentence."""

import pytest

from fleet_kit.settings import SettingsError
from fleet_worker.settings import WorkerSettings


@pytest.fixture(autouse=True)
def _no_dotenv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "0")


def test_tags_are_a_comma_separated_list(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerSettings.load().tags == ["default"]
    monkeypatch.setenv("PYOCO_TAGS", "cpu, gpu,cpu")
    assert WorkerSettings.load().tags == ["cpu", "gpu"]
    assert WorkerSettings.load(tags="a").tags == ["a"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tags": "a.b"}, "PYOCO_TAGS='a.b' is not allowed"),
        ({"slots": 0}, "PYOCO_SLOTS=0 is not allowed"),
        ({"worker_id": "a b"}, "PYOCO_WORKER_ID='a b' is not allowed"),
        ({"flow_resolver": "nofunction"}, "PYOCO_FLOW_RESOLVER='nofunction' is not allowed"),
        ({"run_heartbeat_interval_sec": 9}, "PYOCO_RUN_HEARTBEAT_INTERVAL_SEC=9 must be smaller than PYOCO_RUN_LOST"),
    ],
)
def test_a_bad_value_is_named(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence.replace(".", r"\.")):
        WorkerSettings.load(**given)
