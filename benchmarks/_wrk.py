"""wrk, which takes objects from a server and throws the bytes away: what a client could reach at best."""

from __future__ import annotations

import resource
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _far import Stage

SCRIPT = """
-- Requests for all objects in turn, made before the clock starts: each thread begins somewhere else.
local requests, at = {{}}, 0
function init(args)
  for number = 0, {count} - 1 do
    requests[number] = wrk.format("GET", string.format("/{bucket}/%05d.bin", number))
  end
  math.randomseed(tonumber(tostring(requests):sub(8), 16) or 1)
  at = math.random({count})
end
function request()
  at = (at + 1) % {count}
  return requests[at]
end
"""


@dataclass
class Tool:
    """wrk with its best setting."""

    where: Stage
    threads: int = 1
    connections: int = 64

    @property
    def setting(self) -> str:
        """For the results."""
        return f"threads={self.threads}, connections={self.connections}"

    def run(self, seconds: float) -> dict[str, float]:
        """Objects a second, and CPU time an object."""
        script = self.where.folder / "wrk.lua"
        script.write_text(SCRIPT.format(count=self.where.count, bucket=self.where.buckets["objects"]))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = ["wrk", f"-t{self.threads}", f"-c{self.connections}", f"-d{max(1, round(seconds))}s"]
        done = subprocess.run(
            [*command, "-s", str(script), self.where.endpoint],
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = {line.split(":")[0].strip(): line for line in done.stdout.splitlines() if ":" in line}
        if "Non-2xx or 3xx responses" in lines:
            raise RuntimeError(lines["Non-2xx or 3xx responses"])
        rate = float(lines["Requests/sec"].split(":")[1])
        total = next(int(line.split()[0]) for line in done.stdout.splitlines() if "requests in" in line)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        line = {"samples_per_s": rate, "cpu_us_per_sample": cpu / total * 1e6}
        print(f"  wrk {self.setting}: {rate:,.0f}/s, {line['cpu_us_per_sample']:.1f} CPU µs", flush=True)
        return line


def wrk(where: Stage, *, sweep: bool) -> Tool | None:
    """The tool at its best; None where it is not installed."""
    if shutil.which("wrk") is None:
        return None
    best = Tool(where)
    if sweep:
        tools = [Tool(where, threads, connections) for threads in (1, 2) for connections in (16, 64, 256)]
        best = max(tools, key=lambda tool: tool.run(2)["samples_per_s"])
    return best
