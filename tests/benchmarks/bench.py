"""`make bench`: how fast `capacity analyze` reads a 200 MB log, and in how much memory.

Measured, for a generated log of each framework, in interleaved runs of which the median counts:

* `capacity analyze LOG` as a whole child process, start-up and report included: its CPU time (user
  and system) and its peak resident memory, both as the kernel counts them for that child.
* What one would write without the scanner: `for line in file: for pattern in patterns:
  pattern.search(line)`, with the compiled patterns of all installed matchers, in a child of its
  own. Only the loop's CPU time counts, over the log's first megabytes; a speed in MB/s needs no
  more.

The log has just been written, so both read it from the page cache. Ends with 1 when the ratio of
the speeds is below `LEAST_RATIO` or the memory is `MOST_MB` or more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from statistics import median

from generate_log import FRAMEWORKS, MEGABYTE, generate

LEAST_RATIO = 20
MOST_MB = 60
RUNS = 5
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of one ru_maxrss


def analyze(log: Path) -> tuple[float, float]:
    """CPU seconds and peak MB of one `capacity analyze`."""
    command = Path(sysconfig.get_path("scripts")) / "capacity"
    child = subprocess.Popen([command, "analyze", log], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"capacity analyze ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * RSS_UNIT / MEGABYTE


def line_by_line(sample: Path) -> float:
    """CPU seconds of the plain loop, from a child of its own."""
    command = [sys.executable, __file__, "--plain-loop", str(sample)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def plain_loop(sample: str) -> tuple[float, int]:
    """CPU seconds of every pattern on every line, and how often one matched."""
    from capacity_core.loader import load

    patterns = [matcher.regex for matcher in load().matchers]
    found = 0
    before = time.process_time()
    with open(sample, encoding="utf-8", errors="replace") as file:
        for line in file:
            for pattern in patterns:
                if pattern.search(line):
                    found += 1
    spent = time.process_time() - before
    return spent, found


def cut(log: Path, sample: Path, megabytes: int) -> None:
    with log.open("rb") as whole, sample.open("wb") as part:
        for _ in range(megabytes):
            part.write(whole.read(MEGABYTE))


def measure(framework: str, megabytes: int, sample_megabytes: int, runs: int) -> bool:
    """Print one framework's row; whether it keeps both limits."""
    with tempfile.TemporaryDirectory() as folder:
        log, sample = Path(folder, "server.log"), Path(folder, "sample.log")
        generate(framework, megabytes, str(log))
        cut(log, sample, sample_megabytes)
        size, sample_size = (path.stat().st_size / MEGABYTE for path in (log, sample))
        ours, plain = [], []
        for _ in range(runs):
            ours.append(analyze(log))
            plain.append(line_by_line(sample))
    speed = size / median(cpu for cpu, _ in ours)
    plain_speed = sample_size / median(plain)
    ratio, rss = speed / plain_speed, max(rss for _, rss in ours)
    good = ratio >= LEAST_RATIO and rss < MOST_MB
    print(
        f"{framework:<10}{size:>7.0f}{speed:>17.0f}{plain_speed:>19.1f}{ratio:>8.0f}{rss:>13.0f}"
        f"   {'ok' if good else 'TOO SLOW' if ratio < LEAST_RATIO else 'TOO BIG'}",
        flush=True,
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--sample-megabytes", type=int, default=8)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--plain-loop", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain_loop:
        spent, found = plain_loop(options.plain_loop)
        if not found:
            raise SystemExit("the plain loop found nothing: it does not do the same work")
        print(spent)
        return 0
    print(
        f"CPU time (user+system), median of {options.runs} interleaved runs; MB = 10^6 bytes.\n"
        f"analyze: whole process. line by line: all installed matchers' patterns on every line of "
        f"the first {options.sample_megabytes} MB, loop only.\n"
        f"Limits: ratio at least {LEAST_RATIO}, peak memory (highest run) below {MOST_MB} MB.\n\n"
        f"{'log':<10}{'MB':>7}{'analyze MB/s':>17}{'line by line MB/s':>19}{'ratio':>8}"
        f"{'peak RSS MB':>13}"
    )
    kept = [
        measure(framework, options.megabytes, options.sample_megabytes, options.runs)
        for framework in sorted(FRAMEWORKS)
    ]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
