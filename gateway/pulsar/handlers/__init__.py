"""One file a command; each enters itself into the registry (`gateway/pulsar/api.py`)."""
