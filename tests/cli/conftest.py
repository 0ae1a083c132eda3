"""What the tests of the command line share."""

from tests.gateway.conftest import certificate as certificate
