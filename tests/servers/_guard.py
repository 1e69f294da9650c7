"""Run a command and end it, with everything it started, when whoever started this goes away.

``python _guard.py COMMAND…`` with a pipe as its standard input. The end of that pipe is the only sign that is
sure to come: it comes from a test that finished, from one that was interrupted, and from a pytest that was
killed with SIGKILL.
"""

import os
import signal
import subprocess
import sys
import threading

GRACE = 3.0
"""Seconds a server has to end in good order."""


def _end(child: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 4096):
        pass
    child.terminate()
    try:
        child.wait(GRACE)
    finally:
        # The group is this process too: nothing is left behind, whatever the server started.
        os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Run the command in this process group and return its status."""
    os.setsid()
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_end, args=(child,), daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
