"""The swarm: how peers find each other, average gradients and parameters, and say how they are doing."""
