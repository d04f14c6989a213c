"""Tickets by which members take part: the maintainer's server signs them, and each peer checks them by itself.

    ticket.py, keys.py, bans.py    what the server signs
    server/                        the server: it checks proofs and credentials, and gives tickets
    client.py, member.py           a peer gets its ticket, renews it, and fetches the ban list
    proof.py, refusals.py          a peer's proof for the server, and the server's reasons to refuse
    check.py                       the rules by which a peer checks another peer's ticket

`training.swarm.node.admission` checks tickets wherever peers meet: in records, groups and downloads.
"""
