"""docs/reference/settings.md names every setting that some process honours, with its default, and no other."""

import re
from pathlib import Path

import pytest

from fleet_auth.settings import Settings as AuthSettings
from fleet_gateway.render import HTTP_TEMPLATE, variables_of
from fleet_kit.settings import FleetSettings
from fleet_launcher.settings import LauncherSettings
from fleet_runs_api.settings import RunsSettings
from fleet_wheels_api.settings import Settings as WheelsSettings
from fleet_worker.settings import WorkerSettings
from fleet_workers_api.settings import Settings as WorkersSettings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/settings.md"
SETTINGS: dict[str, type[FleetSettings]] = {
    "launcher": LauncherSettings,
    "auth": AuthSettings,
    "runs-api": RunsSettings,
    "workers-api": WorkersSettings,
    "wheels-api": WheelsSettings,
    "worker": WorkerSettings,
}
SERVICES = {"auth", "runs-api", "workers-api", "wheels-api"}
SOURCES = [file for pattern in ("*/src/**/*.py", "services/*/src/**/*.py") for file in ROOT.glob(pattern)]

_ROW = re.compile(r"^\| `(PYOCO_[A-Z0-9_]+)` \|(.*)\|$", re.MULTILINE)
_READ_DIRECTLY = re.compile(r"""environ(?:\.get\(|\[)["'](PYOCO_[A-Z0-9_]+)["']""")


def _page() -> dict[str, list[str]]:
    """The cells after the name, by the name of the variable."""
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in _ROW.findall(PAGE.read_text())}


def _fields() -> dict[str, dict[str, object]]:
    """The default of every setting in each process that knows it; None stands for none."""
    fields: dict[str, dict[str, object]] = {}
    for process, settings in SETTINGS.items():
        for field, info in settings.model_fields.items():
            fields.setdefault(f"PYOCO_{field.upper()}", {})[process] = info.default_factory is None and info.default
    return fields


def _read_directly() -> set[str]:
    return {name for file in SOURCES for name in _READ_DIRECTLY.findall(file.read_text())}


def test_the_page_names_every_setting_and_no_other() -> None:
    honoured = _fields().keys() | _read_directly() | variables_of(HTTP_TEMPLATE.read_text())
    assert _page().keys() == honoured


@pytest.mark.parametrize("name", sorted(_fields()))
def test_the_page_gives_the_default(name: str) -> None:
    shown = _page()[name][0]
    defaults = {_shown(default) for default in _fields()[name].values()}
    assert shown in defaults, f"the page says {shown}, the code {defaults}"


@pytest.mark.parametrize("name", sorted(_fields()))
def test_the_page_names_only_processes_that_read_the_setting(name: str) -> None:
    users = {user.strip() for user in _page()[name][2].split(",")}
    if "services" in users:
        users = users - {"services"} | SERVICES
    assert users <= _fields()[name].keys()


def test_a_setting_without_effect_is_named_as_such_with_the_reason() -> None:
    code = "\n".join(file.read_text() for file in SOURCES)

    def is_read(setting: str) -> bool:
        field = setting.removeprefix("PYOCO_").lower()
        # Anywhere but where it is declared.
        return re.search(rf"^(?!\s*{field}\s*:).*\b{field}\b", code, re.MULTILINE) is not None

    without_effect = {setting for setting in _fields() if not is_read(setting)}
    _, _, rule = PAGE.read_text().partition("A setting has no effect only where")
    assert without_effect == set(re.findall(r"`(PYOCO_[A-Z0-9_]+)` alone: ", rule))


def _shown(default: object) -> str:
    match default:
        case None | False | []:
            return "–"
        case True:
            return "`true`"
        case float() if default >= 1000:
            return f"`{default:.0f}`"
        case _:
            return f"`{default}`"
