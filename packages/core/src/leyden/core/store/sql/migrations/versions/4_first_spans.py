"""Changed the functions with which spans were stored, which the eighth version replaces: nothing is left to do."""

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Change nothing."""
