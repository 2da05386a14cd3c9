"""Settings given by keyword are checked at once."""

import pytest

from rksc_tot import rows_task
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import function_task

MAKERS = [
    lambda **options: function_task(prompt=str, is_solution=lambda problem, path: True, **options),
    lambda **options: rows_task([{"question": "?"}], prompt="{question}", **options),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"thoughts": "numberd"}, "there is no boundary 'numberd' - did you mean 'numbered'"),
        ({"max_thoughts": 0}, "max_thoughts is 0"),
        ({"temperature": "hot"}, "temperature: should be a valid number, not 'hot'"),
        ({"closing": 5}, "closing is 5"),
        ({"thinking": 512}, "thinking is 512"),
        ({"constraint": "a+"}, "constraint is 'a\\+'"),
        ({"stop": "\n"}, "stop is"),
    ],
)
def test_an_invalid_setting_is_refused_where_it_is_given(make, options, wrong):
    with pytest.raises(ConfigError, match=wrong):
        make(**options)
