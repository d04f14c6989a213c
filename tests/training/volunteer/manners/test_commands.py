"""Commands to a running volunteer, by files in its state folder."""

import stat

import pytest

from training.errors import BadInput, TrainingError
from training.volunteer.manners.commands import ANSWER_FILE, ANSWER_SECONDS, COMMAND_FILE, WORDS, command, obey
from training.volunteer.manners.manners import Manners


class Volunteer:
    """A volunteer that looks at its folder whenever the command waits."""

    def __init__(self, folder, answers=True):
        self.folder, self.answers, self.now, self.left = folder, answers, 0.0, 0
        self.manners = Manners(leave=self._leave, describe=lambda: "Epoch 7 of 400; training.", clock=lambda: 0.0)

    def _leave(self):
        self.left += 1

    def wait(self, seconds):
        self.now += seconds
        if self.answers:
            obey(self.folder, self.manners)

    def tell(self, word):
        return command(self.folder, word, clock=lambda: self.now, wait=self.wait)


def test_commands_do_what_keys_do(tmp_path):
    ada = Volunteer(tmp_path)
    assert ada.tell("status") == "Epoch 7 of 400; training."
    assert (
        ada.tell("pause") == ada.tell("status") == "Paused: as you wish, until you press p again or tell it to resume."
    )
    assert ada.tell("resume") == "Epoch 7 of 400; training."
    assert ada.tell("snooze").startswith("Paused: snoozing until")
    ada.tell("finish")
    assert ada.manners.is_finishing and not ada.left
    ada.tell("leave")
    assert ada.left == 1
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_their_owners_alone(tmp_path):
    ada = Volunteer(tmp_path, answers=False)
    modes = []

    def wait(seconds):
        modes.append(stat.S_IMODE((tmp_path / COMMAND_FILE).stat().st_mode))
        obey(tmp_path, ada.manners)
        modes.append(stat.S_IMODE((tmp_path / ANSWER_FILE).stat().st_mode))

    command(tmp_path, "status", clock=lambda: 0.0, wait=wait)
    assert modes == [0o600, 0o600]


def test_a_volunteer_that_does_not_answer_is_named(tmp_path):
    ada = Volunteer(tmp_path, answers=False)
    with pytest.raises(TrainingError, match="has not answered"):
        ada.tell("pause")
    assert ada.now >= ANSWER_SECONDS and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["", "rest", "__init__", "describe", "pause\n", "\x00" * 9, "é" * 1000])
def test_other_words_do_nothing(tmp_path, word):
    assert "rest" not in WORDS
    ada = Volunteer(tmp_path)
    (tmp_path / COMMAND_FILE).write_text(word)
    obey(tmp_path, ada.manners)
    assert ada.manners.rest() is None and not ada.left and list(tmp_path.iterdir()) == []


def test_without_a_running_volunteer_the_command_says_so(tmp_path, monkeypatch):
    from training.commands.volunteer import run

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(BadInput, match="No volunteer of yours runs"):
        run("pause")
    with pytest.raises(BadInput, match=f"state folder {tmp_path}"):
        run("pause", tmp_path)
