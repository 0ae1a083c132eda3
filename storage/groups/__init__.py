"""Groups and offsets as rows: reading, decoding."""
