"""`python -m demo`: the flights."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # processes of the demo's own import this file as well
    from demo.flights import main

    sys.exit(main())
