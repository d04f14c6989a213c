"""The collaborative run: data, model, optimizer, swarm, roles, publishing.

Importing this package, or `training.recipe`, loads no torch: the site's build reads recipes from it.
"""
