"""The inbox: publishes what applications have committed in transactions of their own."""
