"""Programs that try for the doctor what may hang or crash."""
