"""The flush: decides and commits together all that waits. One queue, one commit."""
