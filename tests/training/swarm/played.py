"""What tests without real peers play."""

from hivemind.p2p import PeerID

from training.swarm.peers.groups import AveragedGroup, RoundReport


def averaged(*announcements, **facts):
    """A group that has averaged; what is not announcements of it does not matter."""
    unknown = dict.fromkeys(("own_share", "weight", "torn"))
    known = {"group_size": 2, "senders": 2, "bytes_sent": 1, "bytes_received": 1, "seconds": 1.0}
    messages = {PeerID(str(number).encode()): list(one) for number, one in enumerate(announcements)}
    return AveragedGroup(messages=messages, report=RoundReport(**unknown | known | facts))


def nested(depth):
    """A list in a list in a list, and so on."""
    found = []
    for _ in range(depth):
        found = [found]
    return found
