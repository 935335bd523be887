from collections.abc import Iterator

import pytest
import pytest_django
from django.core.management import call_command
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

EMPTY = "leaseq_empty"
LEFT = """
SELECT 'table ' || tablename FROM pg_tables WHERE tablename LIKE 'leaseq\\_%'
UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE proname LIKE 'leaseq\\_%'
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgname LIKE 'leaseq\\_%'
UNION ALL SELECT 'sequence ' || sequencename FROM pg_sequences WHERE sequencename LIKE 'leaseq\\_%'
"""


@pytest.fixture
def empty_database(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[str]:
    """A database of its own, so that nothing of the others' is migrated away."""
    with django_db_blocker.unblock():
        _administer(f"DROP DATABASE IF EXISTS {EMPTY}", f"CREATE DATABASE {EMPTY}")
        connections.databases[EMPTY] = {**connection.settings_dict, "NAME": EMPTY}
        yield EMPTY
        connections[EMPTY].close()
        del connections[EMPTY]
        del connections.databases[EMPTY]
        _administer(f"DROP DATABASE {EMPTY}")


def _administer(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def left(database: str) -> list[str]:
    with connections[database].cursor() as cursor:
        cursor.execute(LEFT)
        return sorted(row[0] for row in cursor.fetchall())


def migrate(database: str, *, to: str | None = None) -> None:
    target = [] if to is None else [to]
    call_command("migrate", "leaseq", *target, database=database, verbosity=0)


def test_the_tables_come_from_nothing_go_to_nothing_and_come_again(empty_database: str) -> None:
    migrate(empty_database)
    first = left(empty_database)
    assert {one.split()[0] for one in first} == {"table", "function", "trigger", "sequence"}

    migrate(empty_database, to="zero")
    assert left(empty_database) == []

    migrate(empty_database)
    assert left(empty_database) == first


@pytest.mark.django_db
def test_the_models_ask_for_no_migration_that_is_not_written() -> None:
    call_command("makemigrations", "leaseq", check=True, dry_run=True, verbosity=0)
    executor = MigrationExecutor(connection)
    applied = MigrationRecorder(connection).applied_migrations()
    assert set(executor.loader.graph.leaf_nodes("leaseq")) <= set(applied)
