"""What Alembic runs to migrate: everything on the connection that it was given."""

from alembic import context

from leyden.core.store.sql import migrations, schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    version_table=migrations.TABLE,
)
context.run_migrations()
