"""Fill a ledger with many ended runs, made inside the database."""

from sqlalchemy import Connection, text


def fill_ledger(connection: Connection, count: int) -> None:
    """`count` runs with documents and counters: ten of them of the tenant acme, one in fifty failed."""
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
        if connection.dialect.name == "sqlite"
        else "WITH n(i) AS (SELECT generate_series(1, :count))"
    )
    columns = (
        "run_id, tenant_id, flow_name, tag, tags, status, attempt, submitted_at, updated_at, heartbeat_at, "
        "finished_at, revision, dispatch, checked_at"
    )
    values = (
        "'run-' || i, CASE WHEN i <= 10 THEN 'acme' ELSE 'anonymous' END, 'flow-' || (i % 7), 'default', '[]', "
        "CASE WHEN i % 50 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, 1, i, i, i, i, i, 1, i"
    )
    connection.execute(text(f"INSERT INTO runs ({columns}) {numbers} SELECT {values} FROM n"), {"count": count})
    connection.execute(
        text(
            "INSERT INTO run_documents (run_id, job) SELECT run_id, "
            '\'{"run_id": "\' || run_id || \'","flow_name": "f", "tag": "default","submitted_at": 1}\' FROM runs'
        )
    )
    connection.execute(
        text("INSERT INTO run_counts SELECT tenant_id, status, count(*) FROM runs GROUP BY tenant_id, status")
    )
    if connection.dialect.name == "postgresql":
        connection.execute(text("ANALYZE"))  # as autovacuum would
