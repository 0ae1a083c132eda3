"""Cases that drive whole brokers with stock clients, one module per group, each with `cases()`."""
