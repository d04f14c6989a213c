"""The programs of a run that go on for long: bootstrap, peer and monitor."""
