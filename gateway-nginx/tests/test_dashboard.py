"""The dashboard's files: served openly, in the right language, with nothing a page should not do."""

import json
import re
from hashlib import sha256

import pytest

from fleet_gateway.config import STATIC_DIR

# Ours: neither what is generated nor what is of others.
FILES = sorted(
    path
    for path in STATIC_DIR.rglob("*")
    if path.is_file() and path.name != "openapi.json" and "vendor" not in path.relative_to(STATIC_DIR).parts
)
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


def texts() -> dict[str, set[str]]:
    """The keys of the texts in each language."""
    source = (STATIC_DIR / "static" / "i18n.js").read_text()
    blocks = re.findall(r"^  (\w\w): \{$(.*?)^  \},$", source, re.MULTILINE | re.DOTALL)
    return {lang: set(re.findall(r'(?:^|\s)(\w+): "', block)) for lang, block in blocks}


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/static/app.js", "text/javascript; charset=utf-8"),
        ("/static/i18n.js", "text/javascript; charset=utf-8"),
        ("/static/config.js", "text/javascript; charset=utf-8"),
        ("/static/style.css", "text/css; charset=utf-8"),
        ("/static/favicon.svg", "image/svg+xml"),
        ("/docs", "text/html; charset=utf-8"),
        ("/static/vendor/swagger-ui/swagger-ui.css", "text/css; charset=utf-8"),
        ("/openapi.json", "application/json"),
    ],
)
def test_a_file_is_served_to_anybody_and_asked_for_again_after_an_upgrade(shared_gateway, path, content_type):
    with shared_gateway.client(None) as client:
        answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == content_type
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(("page", "script"), [("/", "/static/app.js"), ("/docs", "/static/docs.js")])
def test_everything_a_page_names_is_there(shared_gateway, page, script):
    with shared_gateway.client(None) as client:
        named = re.findall(r'(?:src|href)="(/[^"]+)"', client.get(page).text)
        assert script in named
        assert {path: client.get(path).status_code for path in named} == dict.fromkeys(named, 200)
        for script in SCRIPTS:
            for imported in re.findall(r'from "\./([^"]+)"', script.read_text()):
                assert client.get(f"/static/{imported}").status_code == 200


@pytest.mark.parametrize(
    ("option", "locale", "lang"),
    [("ja", "C", "ja"), ("en", "ja_JP.UTF-8", "en"), ("auto", "ja_JP.UTF-8", "ja"), ("auto", "C.UTF-8", "en")],
)
def test_the_page_gets_its_language_and_the_header_of_the_key(start_gateway, monkeypatch, option, locale, lang):
    monkeypatch.setenv("LC_ALL", locale)
    gateway = start_gateway(dashboard_lang=option, api_key_header="X-Fleet-Key")
    with gateway.client(None) as client:
        script = client.get("/static/config.js").text
    found = re.fullmatch(r"window\.PYOCO = (\{.*\});\n", script)
    assert found
    assert json.loads(found.group(1)) == {"lang": lang, "apiKeyHeader": "X-Fleet-Key"}


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/openapi.json", "/docs/x", "/health", "/runs", "/nothing", "/static/nothing"]
)
@pytest.mark.parametrize("key", ["good", None, "bad"])
def test_every_answer_carries_the_security_headers_once(shared_gateway, path, key):
    with shared_gateway.client(key) as client:
        headers = client.get(path).headers
    assert headers.get_list("content-security-policy") == [POLICY]
    assert headers.get_list("x-content-type-options") == ["nosniff"]
    assert headers.get_list("x-frame-options") == ["DENY"]
    assert headers.get_list("referrer-policy") == ["no-referrer"]
    assert headers.get_list("server") == ["nginx"]


@pytest.mark.parametrize("path", ["/docs", "/docs?x=1"])
def test_the_page_of_the_api_may_also_show_images_that_are_part_of_a_style(shared_gateway, path):
    with shared_gateway.client(None) as client:
        headers = client.get(path).headers
    assert headers.get_list("content-security-policy") == [POLICY.replace("img-src 'self'", "img-src 'self' data:")]


def test_vendored_files_are_those_that_the_list_names():
    folder = STATIC_DIR / "static" / "vendor"
    listed = {
        name: digest
        for part in json.loads((folder / "vendored.json").read_text())
        for name, digest in part["files"].items()
    }
    there = [path for path in folder.rglob("*") if path.is_file() and path.name != "vendored.json"]
    assert {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in there} == listed


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_turns_data_into_html_or_code(path):
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|srcdoc"
    assert not re.search(forbidden, path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_fetched_from_elsewhere_or_written_inline(path):
    text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|@import|url\(", text)
    if path.suffix == ".html":
        assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*src=)", text)


def test_both_languages_say_the_same_things():
    languages = texts()
    assert languages.keys() == {"en", "ja"}
    assert languages["en"] == languages["ja"]


def test_every_text_that_is_used_exists():
    pages = [path.read_text() for path in FILES if path.suffix == ".html"]
    used = {name for page in pages for name in re.findall(r'data-(?:text|label)="(\w+)"', page)}
    for script in SCRIPTS:
        used |= set(re.findall(r'\bt\("(\w+)"', script.read_text()))
    assert used <= texts()["en"]
