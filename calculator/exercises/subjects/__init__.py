"""The exercises, a file for each subject. Each ends with `SUBJECT = Subject(...)`."""
