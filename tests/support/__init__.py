"""What several test directories share. `pythonpath = ["tests"]` in pyproject.toml makes it importable::

    from support.cases import CORPUS, TVM_CORPUS
"""
