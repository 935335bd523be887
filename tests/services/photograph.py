"""Pictures of the tables, so that a refusal can be shown to have changed nothing at all."""

from functools import cache

from django.db import connection


def photograph(table: str | None = None, *, rows: str = "true") -> dict[str, str]:
    """Return a digest of all rows of every table of leaseq, or of some rows of one."""
    names = [table] if table else list(_names())
    parts = [
        f"SELECT '{one}', count(*) || ' ' || md5(coalesce(string_agg(t::text, '' ORDER BY t::text)"
        f", '')) FROM {one} t WHERE {rows}"
        for one in names
    ]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts))
        return dict(cursor.fetchall())


@cache
def _names() -> tuple[str, ...]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables "
            "WHERE table_schema = 'public' AND table_name LIKE 'leaseq\\_%'"
        )
        return tuple(sorted(row[0] for row in cursor.fetchall()))
