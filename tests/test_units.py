"""Figures as people read them."""

from edgeinfer.units import human_bytes


def test_sizes_for_people() -> None:
    sizes = (0, 999, 1000, 98_362_432, 808_000_000, 2_497_280_256, 999_600_000, 5 * 10**12)
    assert [human_bytes(size) for size in sizes] == [
        *("0 bytes", "999 bytes", "1.0 kB", "98 MB", "808 MB", "2.5 GB", "1.0 GB", "5.0 TB"),
    ]
