"""What the doctor finds out once for all its checks."""
