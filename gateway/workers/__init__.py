"""Several brokers on one host, `serve --workers`: one process supervises those that serve."""
