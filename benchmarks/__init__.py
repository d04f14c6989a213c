"""Programs that measure this project and the peers that it is compared with; README.md lists them."""
