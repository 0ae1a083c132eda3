"""The flush: everything that waits is decided and committed together. One queue, one commit."""
