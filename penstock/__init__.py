"""What users import into their own processes. Self-contained: imports no room of the server."""
