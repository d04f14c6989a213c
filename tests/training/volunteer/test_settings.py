"""The state folder of a volunteer who has named none."""

from training.swarm.node.identity import Identity
from training.volunteer.settings import free_folder


def test_a_restart_has_the_same_folder_and_a_second_program_another_one(tmp_path):
    first = Identity(free_folder(tmp_path, "demo"))
    second = Identity(free_folder(tmp_path, "demo"))
    assert [one.path.parent.name for one in (first, second)] == ["demo", "demo-2"]
    assert free_folder(tmp_path, "other").name == "other"
    first._lock.close()
    again = Identity(free_folder(tmp_path, "demo"))
    assert again.peer_id == first.peer_id != second.peer_id
