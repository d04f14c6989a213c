"""Our classes with the arguments and members of hivemind's, as far as hivemind's tests use them.

An adapter translates names and holds no averaging of its own. What ours do not offer is not here: a test that asks for
it is left out by name (`NOT_APPLICABLE` in noxfile.py).
"""
