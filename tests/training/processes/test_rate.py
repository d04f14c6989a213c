"""A limit of bytes a second that processes keep together."""

import multiprocessing
import random

from training.processes.rate import RateLimit


def test_no_stretch_of_time_has_more_bytes_than_the_limit_and_one_message():
    """Messages of random sizes at random times, each sent when its turn comes."""
    numbers, now = random.Random(0), [0.0]
    limit, rate, largest, sent = RateLimit(1000, lambda: now[0]), 1000, 600, []
    for _ in range(300):
        size = numbers.randrange(largest)
        sent.append((now[0] + limit.take(size), size))
        now[0] = sent[-1][0] + numbers.choice([0.0, 0.0, 0.0, 2.0])
    for first in range(0, 300, 7):
        for last in range(first, 300, 7):
            size = sum(size for _, size in sent[first : last + 1])
            assert size <= rate * (sent[last][0] - sent[first][0]) + largest + 1e-6


def test_a_busy_sender_uses_the_whole_limit():
    now = [0.0]
    limit = RateLimit(1000, lambda: now[0])
    for _ in range(100):
        now[0] += limit.take(250)
    assert abs(now[0] - 99 * 0.25) < 1e-9


def test_forked_processes_share_the_limit():
    limit = RateLimit(1000, lambda: 50.0)
    child = multiprocessing.get_context("fork").Process(target=limit.take, args=(3000,))
    child.start()
    child.join()
    assert limit.take(1) == 3.0
