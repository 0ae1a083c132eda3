"""`python -m cli`: the `penstock` program, from a checkout."""

from cli.main import main

main()
