"""The families of models, each as a short list of operations in the order and the scopes of its real code."""
