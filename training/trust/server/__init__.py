"""The membership server: admission, the register of members, and the maintainers' page."""
