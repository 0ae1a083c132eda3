"""Demonstrations with real data and stock clients; like any client, they import no server room."""
