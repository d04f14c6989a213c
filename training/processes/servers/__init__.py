"""Programs that serve: a web application in a thread, and child programs that are started again."""
