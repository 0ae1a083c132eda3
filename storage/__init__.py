"""PostgreSQL, the only store. Implements `core.ports.log`; knows no wire and no rule."""
