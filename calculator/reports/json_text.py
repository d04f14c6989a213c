"""JSON from people and pages; anything else is refused in one sentence."""

from __future__ import annotations

import json

from calculator.errors import BadSetup


def parsed(text: str, what: str = "This") -> object:
    """The data of a JSON text.

    Args:
        text: Text from a file, a line or a request.
        what: Name of the text in the refusal.

    Raises:
        BadSetup: If the text is not JSON, or exceeds Python's limits.

    >>> parsed('{"model": "gpt2"}')
    {'model': 'gpt2'}
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadSetup(f"{what} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except RecursionError:
        raise BadSetup(f"{what} cannot be read: it is nested too deeply.") from None
    # Python refuses to convert numbers of more than 4300 digits, which would take very long.
    except ValueError:
        raise BadSetup(f"{what} cannot be read: it has a whole number of thousands of digits.") from None
