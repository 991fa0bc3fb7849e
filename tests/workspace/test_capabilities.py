"""The page of capabilities lists the promises that the contracts make today."""

from pathlib import Path

import pytest

from fray.testing.matrix import contracts, expected_rows, rows_of

PAGE = Path(__file__).parents[2] / "docs" / "capabilities.md"


@pytest.mark.parametrize("heading", contracts())
def test_the_page_lists_the_promises_of_the_contracts(heading: str) -> None:
    assert rows_of(heading, PAGE.read_text()) == expected_rows(contracts()[heading]), (
        "docs/capabilities.md is out of date: python noxfile.py -s local ray queue slurm matrix"
    )
