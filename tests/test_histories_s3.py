"""Random histories over S3 behind a proxy that fails: 500s, throttling, broken connections, torn requests and answers."""

import random
from collections import Counter

import pytest
from fault_proxy import FAULTS, fault_proxy
from source_kinds import InBucket
from test_histories import number

from jobs.histories import through_failures
from jobs.history_checks import Bench
from shards import retries
from shards.store import open_store


@pytest.mark.s3
def test_after_a_history_over_a_failing_server_the_index_is_as_if_built_from_scratch(s3_server, tmp_path, monkeypatch, request):
    n = number(request, 2, all=50)
    monkeypatch.setattr(retries, "WAITS_S", (0.0, 0.0, 0.0))
    bench, fates, faults = Bench(tmp_path), Counter(), Counter()
    for seed in range(n):
        print("seed", seed)
        bucket = s3_server.bucket()
        kinds = {name: InBucket(s3_server.options, bucket, f"source-{name}") for name in ("one", "two")}
        with fault_proxy(s3_server.endpoint_url) as proxy:
            rng = random.Random(seed)
            proxy.decide = lambda _asked, rng=rng: rng.choice(FAULTS) if rng.random() < 0.05 else None
            options = s3_server.options | {"endpoint_url": proxy.url}
            store = open_store(f"s3://{bucket}/index", **options)
            fates += through_failures(
                bench,
                seed,
                store,
                lambda name, kinds=kinds, options=options: (kinds[name].url if name else "", options),
                lambda model, name, kinds=kinds: kinds[name].set(model.files[name]),
            )
            faults += Counter(fault for _, fault in proxy.faults)
    assert fates["done"] >= 2 * n and min(fates[fate] for fate in ("looks", "pushed")) >= 1, fates
    assert set(faults) == set(FAULTS), faults
