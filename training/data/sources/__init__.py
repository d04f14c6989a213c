"""What people have: pictures, captions and documents, on disk, on the hub, or as a list of addresses."""
