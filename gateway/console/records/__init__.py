"""Records as people see them: read from the log a little at a time, decoded, filtered, streamed."""
