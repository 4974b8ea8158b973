"""Texts that even a small model goes on with as one would expect: copies, a table to rewrite, and prose."""

from __future__ import annotations

_GLOSSARY = "".join(
    f"{word}: {meaning}\n"
    for word, meaning in [
        ("harbour", "a place where ships are safe from the sea"),
        ("lantern", "a light that is carried by hand"),
        ("orchard", "a piece of land where fruit trees grow"),
        ("bakery", "a shop where bread is made and sold"),
        ("compass", "an instrument that shows where north is"),
        ("ladder", "two poles with steps between them"),
        ("mattress", "the soft part of a bed"),
        ("violin", "an instrument with four strings and a bow"),
        ("anchor", "a heavy piece of iron that holds a ship"),
        ("needle", "a thin piece of steel with a hole for thread"),
        ("barrel", "a round box of wood for wine or beer"),
        ("helmet", "a hard hat that protects the head"),
        ("saddle", "a seat for the rider of a horse"),
        ("kettle", "a pot in which water is boiled"),
        ("curtain", "a piece of cloth in front of a window"),
        ("shovel", "a tool for moving earth or snow"),
    ]
)
_PEOPLE = [
    ("Ann Lee", 25, "Oslo"), ("Bob Ray", 32, "Bonn"), ("Cy Dunn", 39, "Lyon"), ("Di Fox", 46, "Bari"),
    ("Ed Poe", 53, "Graz"), ("Flo Kim", 60, "Cork"), ("Gus Orr", 27, "Lodz"), ("Hal Roy", 34, "Gent"),
    ("Ida May", 41, "Oslo"), ("Jo Bell", 48, "Bonn"), ("Kit Low", 55, "Lyon"), ("Lea Ash", 62, "Bari"),
    ("Max Ham", 29, "Graz"), ("Ned Pye", 36, "Cork"), ("Ola Lind", 43, "Lodz"), ("Pia Berg", 50, "Gent"),
]  # fmt: skip
_TABLE = "id,name,age,town\n" + "".join(
    f"{number},{name},{age},{town}\n" for number, (name, age, town) in enumerate(_PEOPLE, 1)
)
_CODE = '''def area(width, height):
    """Square metres of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("a length is negative")
    return width * height


def volume(width, height, depth):
    """Cubic metres of a box."""
    return area(width, height) * depth


def surface(width, height, depth):
    """Square metres of all sides of a box."""
    sides = area(width, height) + area(width, depth) + area(height, depth)
    return 2 * sides


def longest_side(boxes):
    """Metres of the longest side of any box, or zero where there is none."""
    longest = 0
    for width, height, depth in boxes:
        longest = max(longest, width, height, depth)
    return longest


def total_weight(boxes, density):
    """Kilograms of all boxes, filled with something so dense."""
    total = 0.0
    for width, height, depth in boxes:
        total += volume(width, height, depth) * density
    return total
'''
_ROWS = "".join(
    f'{name}, {age}, {town}\n{{"name": "{name}", "age": {age}, "town": "{town}"}}\n' for name, age, town in _PEOPLE[:4]
)


def _again(text: str) -> str:
    return f"The text:\n{text}\nThe text again:\n{text}\nThe text again:\n"


TASKS = {
    "copy a glossary": _again(_GLOSSARY),
    "copy a table": _again(_TABLE),
    "copy code": f"```python\n{_CODE}```\n\nThe file again:\n```python\n{_CODE}```\n\nThe file again:\n```python\n",
    "rows as JSON": f"{_ROWS}Ed Poe, 38, Graz\n",
    "prose": "Once upon a time, in a small village by the sea, there lived",
}
"""Those that copy have answers of some 250 tokens, to be gone on with for as long."""
SCHEMA = {
    "type": "object",
    "properties": {"full_name": {"type": "string", "maxLength": 20}, "age_in_years": {"type": "integer"}},
    "required": ["full_name", "age_in_years"],
    "additionalProperties": False,
}
SCHEMA_TASK = "JSON to a schema"
