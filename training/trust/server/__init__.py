"""The membership server: who is admitted, the register of members, and its pages."""
