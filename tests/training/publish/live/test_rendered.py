"""Documents of the live API: when they are computed anew."""

import asyncio

import pytest

from training.publish.live.rendered import RenderedDocuments


class Count:
    """A document that counts how often it is computed; computing it takes so many seconds of its own clock."""

    def __init__(self, seconds):
        self.times, self.now, self.seconds = 0, 0.0, seconds
        self.documents = RenderedDocuments(clock=lambda: self.now)

    def compute(self):
        self.times += 1
        self.now += self.seconds
        return {"times": self.times}

    def asked(self, version):
        """How often the document has been computed when a reader has got it."""
        asyncio.run(self.documents.current("document", self.compute, version=version))
        return self.times


def test_a_document_that_is_quickly_computed_is_computed_at_once_if_there_is_news():
    count = Count(0.001)
    assert [count.asked(version) for version in (1, 1, 2)] == [1, 1, 1]
    count.now += 0.021  # 20 times what computing took
    assert [count.asked(version) for version in (1, 2)] == [1, 2]
    count.now += 0.6
    assert count.asked(2) == 3


def test_one_that_takes_long_is_kept_for_twenty_times_as_long():
    count = Count(0.1)
    count.asked(1)
    count.now += 1.9
    assert count.asked(2) == 1
    count.now += 0.2
    assert count.asked(2) == 2


def test_all_who_ask_meanwhile_wait_for_one_computation():
    count = Count(0.001)

    async def ask_at_once():
        return await asyncio.gather(*(count.documents.current("document", count.compute) for _ in range(20)))

    assert len(set(map(id, asyncio.run(ask_at_once())))) == count.times == 1


def test_of_documents_that_cannot_be_computed_nothing_is_kept():
    documents = RenderedDocuments()
    for number in range(100):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(documents.current(number, lambda: 1 / 0))
    assert not documents._computing and not documents._kept


def test_large_documents_that_one_reader_asks_for_do_not_fill_the_memory():
    """A stranger may ask for ever other parts of a long document."""
    documents = RenderedDocuments(clock=lambda: 0.0)
    for number in range(12):
        document = {"text": f"{number}" * (8 << 20)}
        asyncio.run(documents.current(number, lambda document=document: document))
    kept = [rendered.content for rendered in documents._kept.values()]
    assert sum(map(len, kept)) <= 64 << 20
    assert kept[-1].startswith(b'{"text":"11'), "the newest is kept"
