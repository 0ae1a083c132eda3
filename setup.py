"""How the wheel is laid out: `penstock/` and nothing else beside it in site-packages.

The server's rooms have common names (`core`, `storage`). In the wheel they lie in
`penstock/_server`, where only the server's own process looks (`penstock/__main__.py`). In a
checkout, and in an editable installation of it, they stay in the repository's root.
"""

from setuptools import find_namespace_packages, setup

ROOMS = ("cli", "core", "gateway", "migrations", "storage")
SERVER = "penstock._server"

rooms = find_namespace_packages(include=[*ROOMS, *(f"{room}.*" for room in ROOMS)])

setup(
    packages=[
        *find_namespace_packages(include=["penstock", "penstock.*"]),
        *(f"{SERVER}.{package}" for package in rooms),
    ],
    package_dir={f"{SERVER}.{room}": room for room in ROOMS},
    package_data={
        f"{SERVER}.gateway.console": ["templates/*.html", "static/*"],
        f"{SERVER}.gateway.kafka.schemas": ["*.json"],
        f"{SERVER}.migrations": ["*.mako"],
        f"{SERVER}.storage.sql_doors": ["*.sql"],
    },
    include_package_data=False,
)
