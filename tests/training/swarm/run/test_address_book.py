"""The address book: what comes back from the disk, and what does not."""

import json

import pytest

from training.swarm.run.address_book import LARGEST_BOOK_BYTES, MOST_ADDRESSES, MOST_PEERS, OLDEST_SECONDS, AddressBook

ADA = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
BOB = "12D3KooWKKMWeHvg67RxPjomexUnzhB3MRcVUYhWEJvx7fHLNTB1"


def address(peer_id, port=31337):
    return f"/ip4/203.0.113.7/tcp/{port}/p2p/{peer_id}"


def test_what_was_written_is_read_again_newest_first(tmp_path):
    times = iter(range(1000, 2000))
    book = AddressBook(tmp_path / "book.json", clock=lambda: float(next(times)))
    book.note(ADA, [address(ADA)])
    book.note(BOB, [address(BOB), address(BOB, 2), address(BOB)])
    book.write()
    again = AddressBook(tmp_path / "book.json", clock=lambda: 3000.0)
    assert [peer.peer_id for peer in again.peers()] == [BOB, ADA]
    assert again.addresses(BOB) == (address(BOB), address(BOB, 2))
    assert ADA in again and "QmOther" not in again and again.addresses("QmOther") == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"version": 1, "peers": [{"peer_id": "Qm',
        b"\xff\xfe\x00",
        b"[]",
        b'{"peers": 7}',
        b'{"peers": [7]}',
        b'{"peers": [{"peer_id": "x", "addresses": 7, "seen": 0}]}',
        b'{"peers": [{"peer_id": "x", "addresses": [], "seen": "yesterday"}]}',
        b"[" * 100_000,
        b" " * (LARGEST_BOOK_BYTES + 1),
    ],
)
def test_a_damaged_book_is_empty_and_is_replaced(tmp_path, content):
    path = tmp_path / "book.json"
    path.write_bytes(content)
    book = AddressBook(path)
    assert book.peers() == []
    book.note(ADA, [address(ADA)])
    book.write()
    assert [peer.peer_id for peer in AddressBook(path).peers()] == [ADA]


def test_addresses_of_somebody_else_and_no_addresses_are_left_out(tmp_path):
    book = AddressBook(tmp_path / "book.json")
    book.note(ADA, [address(BOB), "/ip4/203.0.113.7/tcp/1", "somewhere", f"/dns4/{'x' * 400}/tcp/1/p2p/{ADA}"])
    assert ADA not in book
    book.note(ADA, [address(ADA, port) for port in range(1, 100)])
    assert len(book.addresses(ADA)) == MOST_ADDRESSES


def test_the_book_keeps_neither_old_peers_nor_too_many(tmp_path):
    now = 10.0**9
    some = [
        {"peer_id": ADA, "addresses": [address(ADA)], "seen": now - OLDEST_SECONDS - 1},
        {"peer_id": BOB, "addresses": [address(BOB)], "seen": now + 10**6},
    ]
    (tmp_path / "book.json").write_text(json.dumps({"version": 1, "peers": some}))
    book = AddressBook(tmp_path / "book.json", clock=lambda: now)
    assert [(peer.peer_id, peer.seen) for peer in book.peers()] == [(BOB, now)]  # whose clock was ahead
    prefix, letters = ADA[:-2], "123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
    for one in letters:
        for other in letters[:10]:
            book.note(prefix + one + other, [address(prefix + one + other)])
    book.write()
    assert len(book.peers()) == MOST_PEERS < len(letters) * 10
    assert len(AddressBook(tmp_path / "book.json", clock=lambda: now).peers()) == MOST_PEERS


def test_on_a_disk_that_takes_nothing_the_peer_goes_on(tmp_path):
    book = AddressBook(tmp_path / "gone" / "book.json")
    book.note(ADA, [address(ADA)])
    book.write()
    assert ADA in book
