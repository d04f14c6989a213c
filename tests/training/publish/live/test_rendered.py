"""Documents of the live API: when they are computed anew."""

import pytest

from training.publish.live.rendered import RenderedDocuments


class Count:
    """A document that counts how often it is computed; that takes so many seconds of its own clock."""

    def __init__(self, monkeypatch, seconds):
        self.times, self.now, self.seconds = 0, 0.0, seconds
        monkeypatch.setattr("training.publish.live.rendered.time.monotonic", lambda: self.now)

    def __call__(self):
        self.times += 1
        self.now += self.seconds
        return {"times": self.times}


def test_a_document_that_is_quickly_computed_is_computed_at_once_if_there_is_news(monkeypatch):
    compute, documents = Count(monkeypatch, 0.001), RenderedDocuments()
    for version, times in [(1, 1), (1, 1), (2, 1)]:
        documents.get("state", compute, version=version)
        assert compute.times == times
    compute.now += 0.021  # 20 times what computing took
    documents.get("state", compute, version=1)
    assert compute.times == 1
    documents.get("state", compute, version=2)
    assert compute.times == 2
    compute.now += 0.6
    documents.get("state", compute, version=2)
    assert compute.times == 3


def test_one_that_takes_long_is_kept_for_twenty_times_as_long(monkeypatch):
    compute, documents = Count(monkeypatch, 0.1), RenderedDocuments()
    documents.get("history", compute, version=1)
    compute.now += 1.9
    documents.get("history", compute, version=2)
    assert compute.times == 1
    compute.now += 0.2
    documents.get("history", compute, version=2)
    assert compute.times == 2


def test_of_documents_that_cannot_be_computed_nothing_is_kept():
    documents = RenderedDocuments()
    for number in range(100):
        with pytest.raises(ZeroDivisionError):
            documents.get(number, lambda: 1 / 0)
    assert not documents._computing and not documents._kept


def test_large_documents_that_one_reader_asks_for_do_not_fill_the_memory():
    """A stranger may ask for ever other parts of a long document."""
    documents = RenderedDocuments()
    for number in range(12):
        documents.get(("losses", number), lambda number=number: {"text": f"{number}" * (8 << 20)})
    kept = [one.rendered.content for one in documents._kept.values()]
    assert sum(map(len, kept)) <= 64 << 20
    assert kept[-1].startswith(b'{"text":"11'), "the newest is kept"
