"""The transaction coordinator of this broker. Rules are in core.transaction."""
