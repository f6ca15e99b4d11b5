"""Hooks of mkdocs: links to files outside of docs/ become their paths, and a folder in `nav` stands for its pages."""

import os
import re
from pathlib import Path
from typing import Any

_FENCED = re.compile(r"(^```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def on_config(config: Any) -> None:
    config.nav = _with_pages(config.nav, Path(config.docs_dir))


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    return in_site(markdown, page.file.src_uri, Path(config.docs_dir))


def in_site(markdown: str, page: str, docs: Path) -> str:
    """The page's text with links that stay below `docs`; those to other files of the repository are only named."""

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = Path(os.path.normpath(docs / Path(page).parent / target))
        if path.is_relative_to(docs):
            return link[0]
        name = path.relative_to(docs.parent).as_posix()
        return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"

    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(named, part) for part in parts)


def _with_pages(nav: Any, docs: Path) -> Any:
    match nav:
        case list():
            return [_with_pages(item, docs) for item in nav]
        case dict():
            return {title: _with_pages(item, docs) for title, item in nav.items()}
        case str() if nav.endswith("/"):
            return [page.relative_to(docs).as_posix() for page in sorted((docs / nav).glob("*.md"))]
        case _:
            return nav
