"""Topics and settings, cached. Rules are in core.topic and core.config."""
