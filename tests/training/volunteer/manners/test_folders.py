"""The state folder of a volunteer who has named none."""

from training.swarm.node.identity import Identity
from training.volunteer.manners.folders import free_folder, of_running


def test_a_restart_has_the_same_folder_and_a_second_program_another_one(tmp_path):
    first = Identity(free_folder(tmp_path, "demo"))
    second = Identity(free_folder(tmp_path, "demo"))
    assert [one.path.parent.name for one in (first, second)] == ["demo", "demo-2"]
    assert free_folder(tmp_path, "other").name == "other"
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "lock").touch()
    running = [one.path.parent for one in (first, second)]
    assert of_running(tmp_path) == running and of_running(running[0]) == running[:1]
    assert of_running(tmp_path / "ended") == of_running(tmp_path / "nothing") == []
    first._lock.close()
    again = Identity(free_folder(tmp_path, "demo"))
    assert again.peer_id == first.peer_id != second.peer_id
