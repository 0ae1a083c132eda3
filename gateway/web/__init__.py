"""HTTP: metrics, health, and what front-ends serve by it. Knows no protocol but HTTP, no SQL."""
