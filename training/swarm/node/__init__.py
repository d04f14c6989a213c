"""This peer in the DHT: its identity, its node, its records, and the check of other peers' tickets."""
