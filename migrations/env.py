"""Alembic's entry point; called by `storage.migrate`, and by `alembic` itself for new revisions."""

import psycopg
from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from storage.schema import SCHEMA, metadata


def run() -> None:
    """Runs the migrations in one transaction."""
    url = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True)["url"]
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool
    )
    with engine.connect() as connection:
        context.configure(
            connection=connection, target_metadata=metadata, version_table_schema=SCHEMA
        )
        with context.begin_transaction():
            # The steps name no schema.
            connection.exec_driver_sql(f"SET LOCAL search_path = {SCHEMA}")
            context.run_migrations()


run()
