"""The file name of a wheel, and which version may follow which."""

import pytest

from fleet_wheels_api.errors import InvalidUpload, VersionNotNewer
from fleet_wheels_api.names import parse_name, require_newer


def test_a_name_contains_package_version_and_tags() -> None:
    wheel = parse_name("Shop_Tasks-1.2.0-1-py2.py3-none-any.whl")
    assert (wheel.package, str(wheel.version)) == ("shop-tasks", "1.2.0")
    assert {str(tag) for tag in wheel.tags} == {"py2-none-any", "py3-none-any"}
    assert str(parse_name("shop-1!2.0+local.1-py3-none-any.whl").version) == "1!2.0+local.1"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "shop.whl",
        "shop-1.0.whl",
        "shop-1.0-py3-none-any.zip",
        "shop-1.0-py3-none-any.whl.exe",
        "shop-one-py3-none-any.whl",
        "shop-1.0-x-py3-none-any.whl",
        "../shop-1.0-py3-none-any.whl",
        "a/shop-1.0-py3-none-any.whl",
        "a\\shop-1.0-py3-none-any.whl",
        "/shop-1.0-py3-none-any.whl",
        ".shop-1.0-py3-none-any.whl",
        "shop-1.0-py3-none-any\0.whl",
        "shop-1.0-py3-none-any.whl\n",
        "shop 1.0-py3-none-any.whl",
        "schön-1.0-py3-none-any.whl",
        "店-1.0-py3-none-any.whl",
        's"hop-1.0-py3-none-any.whl',
        "shop-1.0-" + ".".join(["a"] * 40) + "-" + ".".join(["b"] * 40) + "-any.whl",
        "shop-" + "1" * 300 + "-py3-none-any.whl",
    ],
)
def test_a_name_that_is_none_is_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(InvalidUpload) as refusal:
        parse_name(name)
    assert refusal.value.message.startswith("wheel: ")
    assert refusal.value.message.isascii() or "…" in refusal.value.message
    assert len(refusal.value.message) < 500


@pytest.mark.parametrize(
    ("registered", "wanted"),
    [
        ([], "0.1"),
        (["shop-1.0-py3-none-any.whl"], "1.0.1"),
        (["shop-1.9-py3-none-any.whl"], "1.10"),
        (["shop-1.0rc1-py3-none-any.whl"], "1.0"),
        (["shop-9-py3-none-any.whl", "shop-1-py3-none-any.whl"], "1!0"),
        (["other-9.0-py3-none-any.whl", "not a wheel", "shop-x-py3-none-any.whl", "shop-9.whl"], "1.0"),
    ],
)
def test_a_newer_version_may_follow(registered: list[str], wanted: str) -> None:
    require_newer(parse_name(f"shop-{wanted}-py3-none-any.whl"), registered)


@pytest.mark.parametrize(
    ("registered", "wanted"),
    [
        (["shop-1.0-py3-none-any.whl"], "1.0"),
        (["shop-1.0-py3-none-any.whl"], "1.0.0"),
        (["shop-1.10-py3-none-any.whl"], "1.9"),
        (["shop-1.0-py3-none-any.whl"], "1.0rc1"),
        (["SHOP-2.0-py3-none-any.whl", "shop-1.0-py3-none-any.whl"], "1.5"),
        (["shop-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"], "1.0"),
    ],
)
def test_the_same_or_an_older_version_may_not(registered: list[str], wanted: str) -> None:
    with pytest.raises(VersionNotNewer) as refusal:
        require_newer(parse_name(f"Shop-{wanted}-py3-none-any.whl"), registered)
    assert refusal.value.meta["registered_version"] in refusal.value.message
    assert refusal.value.http_status == 409
