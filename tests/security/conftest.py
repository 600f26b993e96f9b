"""The server that most tests of the API share."""

from tests.server.conftest import client as client
from tests.server.conftest import shared_worker as shared_worker
from tests.server.conftest import worker as worker
