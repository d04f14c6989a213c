"""Memory of a training step: the recorded steps, the programs that trace them, and measurements on real devices."""
