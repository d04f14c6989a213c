"""What a peer knows of the other peers."""
