"""Which fleet is meant, and with which key."""

from pathlib import Path

import pytest

from pyoco_fleet import Fleet, PyocoHttpClient, Unreachable
from pyoco_fleet.config import InvalidConfiguration, Server, server

PROFILES = """\
[default]
server = "https://fleet.example/"
api_key = "of-default"

[lab]
server = "http://lab:8000"
api_key = "of-lab"
api_key_header = "X-Lab-Key"
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "pyoco").mkdir()
    (tmp_path / "pyoco" / "config.toml").write_text(PROFILES)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_without_any_setting_it_is_the_fleet_of_this_machine(tmp_path: Path) -> None:
    assert server(environ={"XDG_CONFIG_HOME": str(tmp_path)}) == Server("http://127.0.0.1:8000", None, "X-API-Key")


def test_arguments_come_before_the_environment_and_that_before_the_profile(env: dict[str, str]) -> None:
    assert server(environ=env) == Server("https://fleet.example", "of-default")
    assert server(environ=env | {"PYOCO_PROFILE": "lab"}) == Server("http://lab:8000", "of-lab", "X-Lab-Key")
    assert server(profile="lab", environ=env | {"PYOCO_PROFILE": "default"}).url == "http://lab:8000"
    named = env | {"PYOCO_SERVER": "http://env:1", "PYOCO_API_KEY": "of-env", "PYOCO_API_KEY_HEADER": "X-Env"}
    assert server(environ=named) == Server("http://env:1", "of-env", "X-Env")
    given = server("http://given:2/", api_key="given", api_key_header="X-Given", environ=named)
    assert given == Server("http://given:2", "given", "X-Given")


def test_the_key_of_a_profile_is_sent_to_no_other_server(env: dict[str, str]) -> None:
    assert server("http://elsewhere:1", environ=env).api_key is None
    assert server(environ=env | {"PYOCO_SERVER": "http://elsewhere:1"}).api_key is None
    assert server("https://fleet.example", environ=env).api_key == "of-default"


def test_what_can_be_no_key_and_no_address_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="copy it again"):
        Server(api_key="sécret")
    with pytest.raises(InvalidConfiguration, match="copy it again"):
        Server(api_key="secret ")
    with pytest.raises(InvalidConfiguration, match="is no address of a fleet"):
        PyocoHttpClient("http://[1::2")


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Server(api_key="secret"))


def test_the_password_of_an_address_is_sent_and_not_shown() -> None:
    behind_proxy = Server("http://ada:se%40cret@127.0.0.1:1/fleet/", "key")
    assert behind_proxy.url == "http://127.0.0.1:1/fleet"
    assert behind_proxy.headers == {"X-API-Key": "key", "Authorization": "Basic YWRhOnNlQGNyZXQ="}
    assert "cret" not in repr(behind_proxy)
    with Fleet("http://ada:secret@127.0.0.1:1") as fleet, pytest.raises(Unreachable) as caught:
        fleet.http.issue_key("tenant")
    assert "secret" not in f"{caught.value} {fleet!r} {fleet._repr_html_()}"
    assert fleet.http.server.headers == {"Authorization": "Basic YWRhOnNlY3JldA=="}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[default", r"config\.toml cannot be read"),
        ('[default]\nurl = "http://x"', "unknown key 'url'; known: api_key, api_key_header, server"),
        ("[default]\nserver = 3", "must have texts only"),
        ('[default]\nserver = "fleet.example"', "is no address of a fleet; an address is like"),
    ],
)
def test_a_wrong_configuration_says_what_to_mend(env: dict[str, str], text: str, said: str) -> None:
    (Path(env["XDG_CONFIG_HOME"]) / "pyoco" / "config.toml").write_text(text)
    with pytest.raises(InvalidConfiguration, match=said):
        server(environ=env)


def test_a_profile_that_is_not_there_names_those_that_are(env: dict[str, str]) -> None:
    with pytest.raises(InvalidConfiguration, match=r"no profile 'prod' in .*known profiles: default, lab"):
        server(profile="prod", environ=env)
