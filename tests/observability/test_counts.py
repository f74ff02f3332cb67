from app_toolkit.observability.counts import LATENCY_S, Counts


def test_a_bucket_holds_what_took_at_most_so_long():
    counts = Counts()
    for seconds in (0.0, 0.001, 0.0011, 59.9, 60.0, 1_000.0):
        counts.took(seconds)
    assert counts.latency[0] == 2
    assert counts.latency[1] == 1
    assert counts.latency[LATENCY_S.index(60.0)] == 2
    assert counts.latency[-1] == 1
    assert sum(counts.latency) == 6
    assert counts.latency_sum_s == sum((0.0, 0.001, 0.0011, 59.9, 60.0, 1_000.0))


def test_a_copy_stays_as_it_was():
    counts = Counts()
    counts.note("ok")
    copy = counts.copy()
    counts.note("ok")
    counts.took(1.0)
    assert (copy.outcomes, sum(copy.latency), copy.latency_sum_s) == ({"ok": 1}, 0, 0.0)
