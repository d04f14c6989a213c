"""Swarms: throughput, bytes, losses, and the simulator beside measured swarms."""
