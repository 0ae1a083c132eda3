"""`python -m demo`: the flights."""

from __future__ import annotations

import sys

from demo.flights import main

sys.exit(main())
