"""Describes a flow for the catalogue: its description, the JSON Schema of its params, its graph, its defaults."""

import inspect
import json
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from pyoco import Flow

from fleet_contracts.catalogue import REPLACES_RESULT_OF, FlowOffer, FlowSource

from ...boundary.masking import SECRETS
from .annotations import EMPTY
from .graphs import entry_tasks, graph_of
from .options import options_of
from .params import Signature, Use

_MOST_CHARACTERS = 500
_MOST_DEFAULT_CHARACTERS = 1000
_Schema = dict[str, Any]


def offer_of(flow: Flow, source: FlowSource, signature: Signature, *, module_doc: str | None) -> FlowOffer:
    """Raises OptionsUnusable. `module_doc`: of the module that defines this flow and no other."""
    options = options_of(flow)
    return FlowOffer(
        name=flow.name,
        source=source,
        description=options.description or _description(flow, module_doc),
        params_schema=params_schema(signature),
        graph=graph_of(flow),
        defaults=options.defaults,
    )


def _description(flow: Flow, module_doc: str | None) -> str | None:
    entries = entry_tasks(flow)
    doc = (inspect.getdoc(entries[0].func) if len(entries) == 1 else None) or module_doc
    paragraph = inspect.cleandoc(doc).partition("\n\n")[0] if doc else ""
    return SECRETS.beginning(" ".join(paragraph.split()), _MOST_CHARACTERS) or None


def params_schema(signature: Signature) -> _Schema:
    """The JSON Schema of an object with the params of the flow."""
    by_param: dict[str, list[Use]] = {}
    for use in signature.uses:
        by_param.setdefault(use.param, []).append(use)
    schemas, definitions = _converters_schemas(signature)
    schema: _Schema = {
        "type": "object",
        "properties": {param: _property(uses, schemas) for param, uses in sorted(by_param.items())},
        "required": sorted({use.param for use in signature.uses if use.is_required}),
        "additionalProperties": signature.is_open,
    }
    return schema | ({"$defs": definitions} if definitions else {})


def _property(uses: list[Use], schemas: dict[int, _Schema]) -> _Schema:
    wanted: list[_Schema] = []
    for use in uses:
        found = schemas.get(id(use.converter)) if use.converter is not None else use.schema
        if found and found not in wanted:
            wanted.append(found)
    schema: _Schema = dict(wanted[0]) if len(wanted) == 1 else {"allOf": wanted} if wanted else {}
    if all(use.replaces_result for use in uses):
        schema[REPLACES_RESULT_OF] = uses[0].param
        schema.setdefault("description", f"in place of the result of the task {uses[0].param}")
    defaults = [default for use in uses if (default := _shown_default(use)) is not EMPTY]
    if defaults and all(default == defaults[0] for default in defaults):
        schema["default"] = defaults[0]
    return schema


def _shown_default(use: Use) -> Any:
    """EMPTY if there is none, or none that JSON can show in short."""
    try:
        default = to_jsonable_python(use.default) if use.default is not EMPTY else EMPTY
        return default if len(json.dumps(default, allow_nan=False)) <= _MOST_DEFAULT_CHARACTERS else EMPTY
    except Exception:  # noqa: BLE001 - it may be any object
        return EMPTY


def _converters_schemas(signature: Signature) -> tuple[dict[int, _Schema], _Schema]:
    """The schemas of the arguments' types, by the id of the converter, and the definitions that they share."""
    adapters = {id(use.converter): use.converter.adapter for use in signature.uses if use.converter is not None}
    if not adapters:
        return {}, {}
    usable = {key: adapter for key, adapter in adapters.items() if _has_schema(adapter)}
    schemas, shared = TypeAdapter.json_schemas(
        [(key, "validation", adapter) for key, adapter in usable.items()], ref_template="#/$defs/{model}"
    )
    return {key: schema for (key, _), schema in schemas.items()}, shared.get("$defs", {})


def _has_schema(adapter: TypeAdapter[Any]) -> bool:
    try:
        adapter.json_schema()
    except Exception:  # noqa: BLE001 - a callable, or a user's own code
        return False
    return True
