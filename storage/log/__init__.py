"""Reading and cleaning the log: index rows, chunks, segments."""
