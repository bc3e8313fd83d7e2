"""What a run under chaos comes to: failures, partial answers, recovery after each strike, times. Pure: records in, figures out."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from jobs.chaos_load import Asked, JobRun
from jobs.chaos_victims import Strike

SLOWEST, MOST_BAD = 20, 200  # requests that the report has one by one, beside the strikes, to see what led to what


def percentile(values: Iterable[float], share: float) -> float | None:
    """The least value that so large a share of all does not exceed; None of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


def recovery_s(records: Sequence[Asked], strike: Strike, until: float) -> float:
    """Seconds from a strike to the end of the last request that showed it, of those that ended before `until`, the next strike; 0 if none
    did. What a request that was under way at a strike shows is taken for that strike's."""
    shown = [end for r in records if r.bad and strike.at <= (end := r.at + r.seconds) < until]
    return max((end - strike.at for end in shown), default=0.0)


def latencies(records: Iterable[Asked]) -> dict[str, Any]:
    """Number, p50, p95, p99 and the longest, milliseconds, of requests that were answered."""
    took = [1000 * r.seconds for r in records if not r.failure]
    if not took:
        return {"n": 0}
    marks = {f"p{round(100 * share)}_ms": round(percentile(took, share) or 0.0, 1) for share in (0.5, 0.95, 0.99)}
    return {"n": len(took), **marks, "max_ms": round(max(took), 1)}


def figures(records: Sequence[Asked], strikes: Sequence[Strike], jobs: Sequence[JobRun], seconds: float) -> dict[str, Any]:
    """The whole run."""
    struck = [strike for strike in strikes if strike.pid]
    ends = [*(strike.at for strike in struck[1:]), math.inf]
    after = [recovery_s(records, strike, end) for strike, end in zip(struck, ends)]
    by_victim: dict[str, list[float]] = {}
    windows: dict[str, list[Asked]] = {}
    for strike, end, took in zip(struck, ends, after, strict=True):
        name = f"{strike.way} {strike.kind}"
        by_victim.setdefault(name, []).append(took)
        windows.setdefault(name, []).extend(r for r in records if strike.at <= r.at + r.seconds < end)
    return {
        "seconds": round(seconds, 1),
        "requests": dict(Counter(r.kind for r in records)),
        "failed": sum(bool(r.failure) for r in records),
        "failures": dict(Counter(f"{r.kind}: {r.failure[:120]}" for r in records if r.failure).most_common(10)),
        "retried": dict(Counter(r.retried for r in records if r.retried and not r.failure)),
        "partial": sum(r.partial for r in records),
        "generations": len({r.generation for r in records if r.generation}),
        "search": latencies(r for r in records if r.kind == "search"),
        "push": latencies(r for r in records if r.kind == "push"),
        "strikes": len(struck),
        "recovery_s": _recoveries(after),
        "by_victim": {
            name: {
                "n": len(took),
                "recovery_s": _recoveries(took),
                "requests": len(windows[name]),
                "partial": sum(r.partial for r in windows[name]),
                "retried": sum(bool(r.retried) for r in windows[name]),
                "failed": sum(bool(r.failure) for r in windows[name]),
            }
            for name, took in sorted(by_victim.items())
        },
        "jobs": {
            kind: {
                "n": len(runs),
                **Counter("failed" if run.outcome not in ("done", "killed") else run.outcome for run in runs),
                "p50_s": round(statistics.median(run.seconds for run in runs), 1),
                "said": sorted({run.outcome for run in runs} - {"done", "killed"})[:5],
            }
            for kind in sorted({run.kind for run in jobs})
            for runs in [[run for run in jobs if run.kind == kind]]
        },
        "job_runs": [asdict(run) for run in jobs],
        "slowest": [asdict(r) for r in sorted(records, key=lambda r: -r.seconds)[:SLOWEST]],
        "bad": [asdict(r) for r in records if r.bad][:MOST_BAD],
    }


def _recoveries(took: Sequence[float]) -> dict[str, float]:
    return {f"p{round(100 * share)}": round(percentile(took, share) or 0.0, 2) for share in (0.5, 0.95)} | {
        "max": round(max(took, default=0.0), 2)
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The figures for people."""
    search, push = found["search"], found["push"]
    out = [
        f"{found['seconds']:.0f} s, {sum(found['requests'].values()):,} requests over {found['generations']} generations, "
        f"{found['strikes']} strikes",
        f"{'victim':<20}{'n':>4}{'requests':>10}{'partial':>9}{'retried':>9}{'failed':>8}{'recovery p50':>14}{'p95':>8}{'max':>8}",
    ]
    for name, row in found["by_victim"].items():
        took = row["recovery_s"]
        out.append(
            f"{name:<20}{row['n']:>4}{row['requests']:>10,}{row['partial']:>9,}{row['retried']:>9,}{row['failed']:>8,}"
            f"{took['p50']:>12.2f} s{took['p95']:>6.2f} s{took['max']:>6.2f} s"
        )
    took = found["recovery_s"]
    out.append(f"recovery p50 {took['p50']:.2f} s, p95 {took['p95']:.2f} s, longest {took['max']:.2f} s")
    for what, row in (("searches", search), ("pushes", push)):
        if row["n"]:
            out.append(f"{what}: {row['n']:,} answered, p50 {row['p50_ms']:.0f}, p95 {row['p95_ms']:.0f}, p99 {row['p99_ms']:.0f}, "
                       f"longest {row['max_ms']:.0f} ms")  # fmt: skip
    for kind, row in found["jobs"].items():
        told = ", ".join(f"{row.get(name, 0)} {name}" for name in ("done", "killed", "failed"))
        out.append(f"{kind} jobs: {told}, median {row['p50_s']:.1f} s" + "".join(f"\n  {said}" for said in row["said"]))
    for failure, n in found["failures"].items():
        out.append(f"failed {n} x {failure}")
    return out
