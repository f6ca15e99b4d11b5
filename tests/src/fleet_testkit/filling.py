"""Fills a ledger with many ended runs, generated inside the database."""

from sqlalchemy import Connection, text

_VALUES = {
    "run_id": "'run-' || i",
    "tenant_id": "CASE WHEN i <= 10 THEN 'acme' ELSE 'anonymous' END",
    "flow_name": "'flow-' || (i % 7)",
    "tag": "CASE WHEN i % 1000 = 0 THEN 'gpu' ELSE 'default' END",
    "tags": "'[]'",
    "status": "CASE WHEN i % 50 = 0 THEN 'FAILED' ELSE 'COMPLETED' END",
    "error": "CASE WHEN i % 50 = 0 THEN 'ValueError: number ' || i END",
    "workflow_yaml_sha256": "CASE WHEN i % 100 = 0 THEN 'sha-' || (i % 3) END",
    **dict.fromkeys(("attempt", "dispatch"), "1"),
    **dict.fromkeys(("failures", "reopened", "kv_released"), "0"),
    **dict.fromkeys(("submitted_at", "updated_at", "changed_at", "heartbeat_at", "checked_at"), "i"),
    **dict.fromkeys(("finished_at", "revision"), "i"),
}


def fill_ledger(connection: Connection, count: int) -> None:
    """`count` runs with documents and counters, the n-th at second n: see _VALUES for what they are like."""
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
        if connection.dialect.name == "sqlite"
        else "WITH n(i) AS (SELECT generate_series(1, :count))"
    )
    columns, values = ", ".join(_VALUES), ", ".join(_VALUES.values())
    connection.execute(text(f"INSERT INTO runs ({columns}) {numbers} SELECT {values} FROM n"), {"count": count})
    connection.execute(
        text(
            "INSERT INTO run_documents (run_id, job) SELECT run_id, "
            '\'{"run_id": "\' || run_id || \'","flow_name": "f", "tag": "default","submitted_at": 1}\' FROM runs'
        )
    )
    for table, keys in (("run_counts", "tenant_id, status"), ("flow_counts", "tenant_id, flow_name, tag, status")):
        connection.execute(
            text(f"INSERT INTO {table} ({keys}, total) SELECT {keys}, count(*) FROM runs GROUP BY {keys}")
        )
    if connection.dialect.name == "postgresql":
        connection.execute(text("ANALYZE"))  # as autovacuum would
