"""PostgreSQL, the only store. Implements `core.ports`; knows no wire and no rule."""
