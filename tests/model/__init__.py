"""A store and a plain model of it take the same random steps."""

import pytest

pytest.register_assert_rewrite("tests.model.machine")
