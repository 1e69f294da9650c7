"""Real servers on loopback for tests and benchmarks.

Each is a context manager that returns when the server serves and ends it by process id, also when the process
that started it is killed. ``ServerMissing`` says which command installs what is not there.
"""

from .process import Server, ServerFailed, ServerMissing, free_ports
from .seaweed import S3, seaweed
from .static import Static, nginx
from .wire import Wire, slowwire, slowwire_binary

__all__ = [
    "S3",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "Static",
    "Wire",
    "free_ports",
    "nginx",
    "seaweed",
    "slowwire",
    "slowwire_binary",
]
