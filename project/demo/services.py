"""The services of the demo and the tests: PostgreSQL, a broker and a model server, from wheels.

Each is a child process on 127.0.0.1 and a free port, used as a context manager or by `start` and
`stop`. Several may run at once. They end with their owner, even if it is killed (Linux).
"""

from project.demo.broker import EmbeddedBroker
from project.demo.model_server import ModelServer
from project.demo.packages import missing_packages, require_packages
from project.demo.postgres import EmbeddedPostgres
from project.demo.processes import free_port

__all__ = [
    "EmbeddedBroker",
    "EmbeddedPostgres",
    "ModelServer",
    "free_port",
    "missing_packages",
    "require_packages",
]
